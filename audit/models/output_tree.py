"""The tensors in what a model returned: mappings, sequences and dataclasses are walked, each tensor has a port."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from audit.models.task_outputs import looks_like_boxes

#: So many containers may lie in each other.
_DEEPEST = 8
#: What says nothing about samples, and is not an output.
_PLAIN_TYPES = (bool, int, float, str, type(None))


def iterate_leaves(output: Any, size: int | None, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield what lies in mappings, sequences and dataclasses, with the keys or positions that lead to it.

    `size` is the number of rows that the model was given, where it is known.
    """
    entries = list_entries(output, size) if depth < _DEEPEST else None
    if entries is not None:
        for name, value in entries:
            yield from iterate_leaves(value, size, f"{path}.{name}" if path else str(name), depth + 1)
    elif path and not isinstance(output, _PLAIN_TYPES):
        yield path, output


def is_weight(value: torch.Tensor, module: nn.Module | None) -> bool:
    """Return whether a tensor lies in the memory of a model's own parameters or buffers."""
    if module is None:
        return False
    with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
        memory = value.untyped_storage().data_ptr()
        own = itertools.chain(module.parameters(), module.buffers())
        return bool(memory) and any(one.untyped_storage().data_ptr() == memory for one in own)
    return False


def list_entries(output: Any, size: int | None) -> list[tuple[Any, Any]] | None:
    """Return what a container holds; None for anything else, and for a list of dicts that are about one sample each."""
    if isinstance(output, Mapping):
        return list(output.items())
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return list(zip(output._fields, output, strict=True))
    if isinstance(output, (tuple, list)):
        is_by_sample = len(output) == size and all(isinstance(one, Mapping) for one in output)
        return None if is_by_sample or looks_like_boxes(output) else list(enumerate(output))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    return None
