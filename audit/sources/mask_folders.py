"""Pictures with a mask each: `masks:FOLDER` with `images/NAME.jpg` and `masks/NAME.png`.

A mask is a picture of class numbers (grey or with a palette), read without any conversion. `classes.txt` in the folder, one name
in each line, names the classes from 0. A picture without a mask is a sample that fails.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from audit.errors import DatasetError
from audit.sources.annotated_pictures import AnnotatedPictures, parse_spec, shown_path
from audit.sources.base import Options
from audit.sources.decode import decode_sample
from audit.sources.files import PackedNames, read_file, size_of
from audit.sources.scan import scan

description = "masks:FOLDER, with images/ and masks/"
runs_no_code = True

path_prefix = "masks:"
_MODES = ("L", "P", "1", "I", "I;16", "I;16B", "I;16L")


def recognise(spec: str) -> bool:
    """Return whether it starts with masks:."""
    return spec.startswith(path_prefix)


def open_source(spec: str, options: Options) -> MaskedPictures:
    """Return the pictures in images/, each with the mask of the same name."""
    folder, _ = parse_spec(spec, path_prefix, ())
    parts = [os.path.join(folder, name) for name in ("images", "masks")]
    for part in parts:
        if not os.path.isdir(part):
            raise DatasetError(
                f"There is no folder {shown_path(part)}.", hint="masks:FOLDER needs FOLDER/images and FOLDER/masks."
            )
    pictures = _files(parts[0])
    if not pictures:
        raise DatasetError(f"{shown_path(parts[0])} has no pictures.", hint="Put the pictures there.")
    masks = {os.path.splitext(name)[0]: name for name in _files(parts[1])}
    without = [name for name in pictures if os.path.splitext(name)[0] not in masks]
    notes = [f"{len(without)} pictures have no mask, the first: {os.fsdecode(without[0])}."] if without else []
    return MaskedPictures(parts[0], pictures, options, parts[1], masks, _classes(folder), notes)


class MaskedPictures(AnnotatedPictures):
    """The pictures of one folder, each with a mask."""

    def __init__(
        self,
        root: str,
        names: list[bytes],
        options: Options,
        mask_root: str,
        masks: dict[bytes, bytes],
        classes: list[str] | None,
        notes: list[str],
    ) -> None:
        super().__init__(root, PackedNames(names), options, classes=classes, notes=notes)
        self._mask_root = os.fsencode(os.path.abspath(mask_root))
        self._masks = masks

    def _mask_path(self, index: int) -> bytes | None:
        name = self._masks.get(os.path.splitext(self._names[index])[0])
        return None if name is None else os.path.join(self._mask_root, name)

    def target(self, index: int, picture: Any) -> Any:
        """Return the mask of a picture as class numbers (H, W)."""
        import torch
        from torchvision import tv_tensors

        path = self._mask_path(index)
        if path is None:
            raise FileNotFoundError("the picture has no mask of the same name")
        found: Any = decode_sample(read_file(path))
        if getattr(found, "mode", "L") not in _MODES:
            raise ValueError(f"its mask is a picture of mode {found.mode}, and not one of class numbers")
        numbers = np.asarray(found)
        if numbers.ndim != 2:
            raise ValueError(f"its mask has the shape {numbers.shape}, and not (H, W)")
        return tv_tensors.Mask(torch.from_numpy(numbers.astype(np.int64)))

    def fingerprint(self, index: int) -> bytes:
        """Return the name and size of the mask's file as bytes."""
        path = self._mask_path(index)
        return b"" if path is None else hashlib.sha256(path).digest() + str(size_of(path)).encode()


def _files(folder: str) -> list[bytes]:
    found = scan(folder)
    return [name for one in sorted(found.directories, key=lambda one: one.path) for name in one.names(False)]


def _classes(folder: str) -> list[str] | None:
    path = os.path.join(folder, "classes.txt")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]
