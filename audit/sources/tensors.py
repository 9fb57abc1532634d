"""Tensors in one file: a .pt or .pth of tensors, or an .npz of arrays, with the samples along the first axis.

It accepts {"x": …, "y": …} (also data/images/inputs and label/labels/target/targets), a tuple (x, y), or x alone. A
.pt file is loaded with `weights_only=True` and an .npz without pickle: a file that would run code is refused.
"""

from __future__ import annotations

import operator
import os
import zipfile
from pathlib import Path
from typing import Any, SupportsIndex

from audit.errors import DatasetError
from audit.sources.base import Options, Source
from audit.sources.files import to_printable

description = "a .pt or .npz file of tensors {x, y}"
runs_no_code = True

_X = ("x", "data", "images", "inputs", "features", "x_test", "x_train")
_Y = ("y", "label", "labels", "target", "targets", "y_test", "y_train")
#: Compressed arrays of few values are much smaller than unpacked ones: up to so many bytes any ratio is allowed.
_ALWAYS_UNPACKED = 2**30
_FORM = 'Save it as {"x": samples, "y": labels} with one row for each sample.'


def recognise(spec: str) -> bool:
    """Return whether it is a file with the ending of saved tensors."""
    return spec.lower().endswith((".pt", ".pth", ".npz")) and os.path.isfile(spec)


def open_source(spec: str, options: Options) -> TensorItems:
    """Return one sample for each entry of the first axis."""
    shown = to_printable(os.fsencode(spec))
    _check_size(spec)
    x, y, classes = _parts(_load_npz(spec, shown) if spec.lower().endswith(".npz") else _load_pt(spec, shown), shown)
    if not getattr(x, "ndim", 0) or (y is not None and len(y) != len(x)):
        lengths = f"{_shape(x)} samples and {_shape(y)} labels" if y is not None else f"samples of shape {_shape(x)}"
        raise DatasetError(f"The file {shown} has {lengths}, which do not fit.", hint=_FORM)
    if len(x) == 0:
        raise DatasetError(f"The file {shown} holds no samples.", hint=_FORM)
    return TensorItems(os.path.abspath(spec), x, y, classes, options)


class TensorItems:
    """Samples that are rows of one tensor; the source of each is dataset://<index>."""

    def __init__(self, root: str, x: Any, y: Any, classes: list[str] | None, options: Options) -> None:
        self.root = root
        self.x = x
        self.y = y
        self.classes = classes
        self.transform = options.transform
        self.target_transform = options.target_transform

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return (a copy of the value, label), or only the copy if there are no labels."""
        at = self._at(index)
        value = self.x[at]
        value = value.clone() if hasattr(value, "clone") else value.copy()
        if self.transform is not None:
            value = self.transform(value)
        if self.y is None:
            return value
        label = self.label(at)
        target = self.y[at] if label is None else label
        return value, target if self.target_transform is None else self.target_transform(target)

    def source(self, index: SupportsIndex) -> Source:
        """Return the sample's place in the file."""
        return Source(f"dataset://{self._at(index)}")

    def label(self, index: SupportsIndex) -> int | None:
        """Return the class index, or None if targets are not whole numbers."""
        at = self._at(index)
        if self.y is None or self.y.ndim != 1:
            return None
        value = self.y[at].item()
        return int(value) if isinstance(value, (bool, int)) else None

    def split_of(self, index: SupportsIndex) -> str | None:
        """Return None: tensors have no splits."""
        return None

    def _at(self, index: SupportsIndex) -> int:
        at = operator.index(index)
        at = at + len(self) if at < 0 else at
        if not 0 <= at < len(self):
            raise IndexError(f"index {index} is outside a dataset of {len(self)} samples")
        return at


def _check_size(spec: str) -> None:
    """Refuse a small file that unpacks to far more than arrays do, or is damaged: a stranger's store can name one."""
    from audit.models.archives import check_archive

    if zipfile.is_zipfile(spec):
        check_archive(Path(spec), DatasetError, _ALWAYS_UNPACKED)


def _load_pt(spec: str, shown: str) -> Any:
    import torch

    try:
        return torch.load(spec, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets in a damaged file
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DatasetError(
            f"The tensors in {shown} cannot be loaded without running code from the file, or it is damaged: {reason}",
            hint=_FORM,
        ) from error


def _load_npz(spec: str, shown: str) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(spec, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive raises from zipfile, zlib or numpy
        raise DatasetError(f"The arrays in {shown} cannot be loaded: {error}.", hint=_FORM) from error


def _parts(content: Any, shown: str) -> tuple[Any, Any, list[str] | None]:
    """Return the samples, labels and class names in the file."""
    if hasattr(content, "ndim"):
        return content, None, None
    if isinstance(content, (tuple, list)) and content and all(hasattr(part, "ndim") for part in content[:2]):
        return content[0], content[1] if len(content) > 1 else None, None
    if isinstance(content, dict):
        lower = {str(name).lower(): value for name, value in content.items()}
        x = next((lower[name] for name in _X if hasattr(lower.get(name), "ndim")), None)
        y = next((lower[name] for name in _Y if hasattr(lower.get(name), "ndim")), None)
        if x is not None:
            classes = lower.get("classes")
            return x, y, None if classes is None else [str(name) for name in classes]
        names = ", ".join(map(str, list(content)[:8])) or "nothing"
        what = "is a checkpoint, not a dataset" if "state_dict" in lower else f"has no samples; it holds {names}"
        raise DatasetError(f"The file {shown} {what}.", hint=_FORM)
    raise DatasetError(f"The file {shown} holds a {type(content).__name__}, not tensors.", hint=_FORM)


def _shape(value: Any) -> str:
    return str(tuple(getattr(value, "shape", ())))
