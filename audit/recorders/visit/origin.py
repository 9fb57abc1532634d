"""Which file an index means, for any dataset that can tell.

Ours have `source(index)`. torchvision's folders keep `samples`; Subset and ConcatDataset pass the
question on. A dataset that cannot tell has the source `dataset://<index>`: of a Subset the index in the dataset it is of,
so that the parts of a random split do not share identities.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Subset

from audit.recorders.visit.items import label_number


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sample came from, and what the dataset says of it before it is read."""

    source: str
    root: str | None = None
    raw: bytes | None = None
    split: str | None = None
    label: int | None = None
    path: str | None = None
    #: The folder that a dataset which does not tell its files names as its root.
    folder: str | None = None


def origin_of(dataset: Any, index: int) -> Origin:
    """Return the origin of one sample; never raises."""
    try:
        return _origin(dataset, index)
    except Exception:
        return Origin(f"dataset://{index}")


def _origin(dataset: Any, index: int) -> Origin:
    kind = type(dataset).__name__
    if callable(getattr(dataset, "source", None)):
        source = dataset.source(index)
        split = dataset.split_of(index) if hasattr(dataset, "split_of") else getattr(dataset, "split", None)
        label = dataset.label(index) if callable(getattr(dataset, "label", None)) else None
        if not hasattr(source, "path"):
            return _named(source, dataset, split, label)
        return Origin(source.path, source.root, source.raw, split, label)
    if isinstance(dataset, Subset):
        return _origin(dataset.dataset, int(dataset.indices[index]))
    if kind == "ConcatDataset" and hasattr(dataset, "cumulative_sizes"):
        number = bisect.bisect_right(dataset.cumulative_sizes, index)
        before = dataset.cumulative_sizes[number - 1] if number else 0
        found = _origin(dataset.datasets[number], index - before)
        # Two of the joined datasets may have a sample of one number: theirs is no identity here.
        return found if found.root is not None else replace(found, source=f"dataset://{index}")
    return _listed(dataset, index) or _wrapped(dataset, index)


def _named(source: Any, dataset: Any, split: Any, label: Any) -> Origin:
    """Return the origin by what a dataset of the user's own calls its source: a path, several, or a mapping by role."""
    if isinstance(source, Mapping):
        source = list(source.values())
    if isinstance(source, (list, tuple)):
        source = source[0]
    path = os.path.abspath(os.fsdecode(source))
    folder = _folder(dataset)
    root = os.path.abspath(folder) if folder is not None else ""
    if not root or not path.startswith(os.path.join(root, "")):
        root = os.path.dirname(path)
    relative = os.path.relpath(path, root)
    return Origin(
        printable_path(relative), root, raw_path(relative), split if isinstance(split, str) else None, label, path
    )


def _listed(dataset: Any, index: int) -> Origin | None:
    """Return the origin by the list `samples` that torchvision's folders keep."""
    samples = getattr(dataset, "samples", None)
    if isinstance(samples, list) and samples and isinstance(samples[index], tuple):
        path, label = samples[index][0], samples[index][1] if len(samples[index]) > 1 else None
        if isinstance(path, str):
            root = os.path.abspath(getattr(dataset, "root", os.path.dirname(path)))
            relative = os.path.relpath(os.path.abspath(path), root)
            given = label if isinstance(label, int) else None
            return Origin(printable_path(relative), root, raw_path(relative), None, given, path)
    return None


def _wrapped(dataset: Any, index: int) -> Origin:
    wrapped = getattr(dataset, "dataset", None)
    if wrapped is not None and hasattr(wrapped, "__getitem__") and len(wrapped) == len(dataset):
        return _origin(wrapped, index)
    return Origin(f"dataset://{index}", label=_target(dataset, index), folder=_folder(dataset))


def _folder(dataset: Any) -> str | None:
    root = getattr(dataset, "root", None)
    return os.fspath(root) if isinstance(root, (str, os.PathLike)) else None


def _target(dataset: Any, index: int) -> int | None:
    """Return what the dataset's own list of targets says, as torchvision's datasets have one."""
    targets: Any = getattr(dataset, "targets", None)
    if not isinstance(targets, (list, tuple)) and not hasattr(targets, "shape"):
        return None
    return label_number(targets[index]) if len(targets) == len(dataset) else None


def printable_path(path: str) -> str:
    """Return a path as text that can be stored; bytes that are not UTF-8 are shown as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def raw_path(path: str) -> bytes | None:
    """Return the bytes of a path whose text is not exactly them; None for all others."""
    data = os.fsencode(path)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    return None


def class_names(dataset: Any) -> list[str] | None:
    """Return the dataset's own class names, in label order, through wrappers."""
    for _ in range(20):
        names = getattr(dataset, "classes", None)
        if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
            return list(names)
        inner = getattr(dataset, "datasets", None)
        dataset = inner[0] if isinstance(inner, list) and inner else getattr(dataset, "dataset", None)
        if dataset is None:
            return None
    return None
