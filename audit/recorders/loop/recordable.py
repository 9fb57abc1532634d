"""Whether a loader or a dataset can be recorded, and why not."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader

from audit.errors import UsageError
from audit.recorders.calls.callables import read_attribute
from audit.recorders.loop.base_loader import base_of, is_being_iterated
from audit.recorders.loop.dataset_proxy import RecordedDatasetProxy, RecordedIterableProxy
from audit.recorders.loop.loader import RecordedLoader
from audit.recorders.loop.loader_recording import LoaderRecording
from audit.recorders.problems import RecordingWarning


def check_loader(loader: Any, recorded: Sequence[LoaderRecording]) -> None:
    """Raise `UsageError` if this loader cannot be recorded; warn if a loop over it is under way."""
    base = base_of(loader)
    if type(loader) is RecordedLoader or any(known.base is base for known in recorded):
        raise UsageError("This loader is recorded already.", hint="Call run.loader once for each loader.")
    if not isinstance(base, DataLoader):
        raise UsageError(
            f"run.loader takes a torch DataLoader, or an object that holds one, not a {type(loader).__name__}.",
            hint="Use run.dataset for a Dataset, and run.log(indices=…, logits=…, labels=…) for other loops.",
        )
    if _is_recorded(base.dataset):
        raise UsageError(
            "The dataset of this loader is recorded already.", hint="Wrap the dataset or its loader, not both."
        )
    if getattr(base, "_iterator", None) is not None:
        raise UsageError(
            "This loader is being iterated already, with workers that do not record.",
            hint="Wrap it before its first epoch.",
        )
    if is_being_iterated(base):
        warnings.warn(
            "audit: this loader is being iterated already; batches of that loop are not recorded.",
            RecordingWarning,
            stacklevel=3,
        )


def check_dataset(dataset: Any) -> None:
    """Raise `UsageError` if this is not a dataset, or is recorded already."""
    kind, hint = type(dataset).__name__, "Give the object that a DataLoader would be made of."
    if isinstance(dataset, DataLoader):
        hint = "Use run.loader for a DataLoader."
    elif isinstance(dataset, type):
        kind, hint = f"class ({dataset.__name__})", "Create an instance of it, and pass the instance."
    elif isinstance(dataset, (str, bytes)):
        hint = "Open it first, for instance with torchvision.datasets.ImageFolder(path); audit.run takes a path."
    elif hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__"):
        if _is_recorded(dataset):
            raise UsageError("This dataset is recorded already.", hint="Call run.dataset once for each dataset.")
        return
    raise UsageError(f"run.dataset takes a Dataset, not a {kind}.", hint=hint)


def _is_recorded(dataset: Any) -> bool:
    """Return whether a recorded dataset lies somewhere in this one."""
    for _ in range(20):
        if isinstance(dataset, (list, tuple)):
            return any(_is_recorded(part) for part in dataset)
        if type(dataset) in (RecordedDatasetProxy, RecordedIterableProxy):
            return True
        inner = read_attribute(dataset, "datasets")
        dataset = inner if isinstance(inner, (list, tuple)) else read_attribute(dataset, "dataset")
        if dataset is None:
            return False
    return False


def estimate_length(dataset: Any) -> int:
    """Return how many samples a dataset has, or a guess."""
    try:
        return len(dataset)
    except TypeError:
        # An iterable without a length: the estimate of what it will take needs some number.
        return 10_000
