"""The DataLoader that fetches, behind whatever object the user calls a loader."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

_MOST_LEVELS = 20


def base_of(loader: Any) -> Any:
    """Return the DataLoader that fetches; `loader` itself where it holds no other.

    accelerate's loaders hold one and answer for it. timm's PrefetchLoader and webdataset's WebLoader are not DataLoaders
    themselves, and hold one in an attribute or in a list.
    """
    for _ in range(_MOST_LEVELS):
        held = _find_held_loader(loader)
        if held is None:
            break
        loader = held
    return loader


def _find_held_loader(loader: Any) -> Any:
    attributes = getattr(loader, "__dict__", {})
    if isinstance(loader, DataLoader):
        base = attributes.get("base_dataloader")
        return base if isinstance(base, DataLoader) else None
    if not hasattr(type(loader), "__iter__"):
        return None
    found: dict[int, Any] = {}
    for value in attributes.values():
        for part in value if isinstance(value, (list, tuple)) else (value,):
            inner = part if isinstance(part, DataLoader) else None
            if inner is None and isinstance(part, type(loader)) and part is not loader:
                inner = part
            if inner is not None:
                found[id(inner)] = inner
    # Of several it is not known which gives the batches.
    return next(iter(found.values())) if len(found) == 1 else None


#: References to a sampler that only its loader holds: the loader's, and that of the call which counts them.
_REFERENCES_OF_A_LOADER = 2


def is_being_iterated(loader: DataLoader[Any]) -> bool:
    """Return whether an iterator of this loader is under way: what it yields cannot be recorded any more."""
    if getattr(loader, "_iterator", None) is not None:
        return True
    if sys.getrefcount(loader._index_sampler) <= _REFERENCES_OF_A_LOADER:
        return False
    # Nobody but the collector knows who else holds the sampler; it looks at every object there is.
    for holder in gc.get_referrers(loader._index_sampler):
        state = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        is_iterator = isinstance(holder, _BaseDataLoaderIter) or "_sampler_iter" in state
        if is_iterator and state.get("_index_sampler") is loader._index_sampler and state.get("_num_yielded"):
            return True
    return False
