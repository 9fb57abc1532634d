"""Objects in the format of Pascal VOC: `voc:FOLDER`, or `voc:FOLDER?split=val`.

The folder has `Annotations/NAME.xml` and `JPEGImages/NAME.jpg`; a split is a list of names in `ImageSets/Main`. Without
one, every annotation is a sample. Class 0 is the background, as in torchvision's detectors: the names of classes, in text
order, are numbered from 1. If all of them are VOC's own twenty, the order is that of VOC, whichever of them occur.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from audit.errors import DatasetError
from audit.sources.annotated_pictures import BoxedPictures, Objects, parse_spec, shown_path
from audit.sources.base import Options
from audit.sources.files import PackedNames

description = "voc:FOLDER, objects in the format of Pascal VOC"
runs_no_code = True

path_prefix = "voc:"
_VOC = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def recognise(spec: str) -> bool:
    """Return whether it starts with voc:."""
    return spec.startswith(path_prefix)


def open_source(spec: str, options: Options) -> VocPictures:
    """Return the annotated pictures, in the order of the split or of their names."""
    folder, settings = parse_spec(spec, path_prefix, ("split",))
    annotations = os.path.join(folder, "Annotations")
    if not os.path.isdir(annotations):
        raise DatasetError(
            f"{shown_path(folder)} has no folder Annotations.",
            hint="Give the folder that holds Annotations and JPEGImages.",
        )
    names = _names(folder, annotations, settings.get("split"))
    if not names:
        raise DatasetError(f"{shown_path(annotations)} has no annotations.", hint="It must have one .xml per picture.")
    return VocPictures(folder, names, options)


class VocPictures(BoxedPictures):
    """The pictures of one folder in the format of Pascal VOC."""

    def __init__(self, folder: str, names: list[str], options: Options) -> None:
        notes: list[str] = []
        found = [_annotation(os.path.join(folder, "Annotations", f"{name}.xml")) for name in names]
        kinds = sorted({kind for annotation in found if annotation is not None for kind, _ in annotation[1]})
        known = list(_VOC) if set(kinds) <= set(_VOC) else kinds
        numbers = {kind: number for number, kind in enumerate(known, 1)}
        self._objects = [None if annotation is None else _objects(annotation[1], numbers) for annotation in found]
        self._stems = names
        if unread := [name for name, annotation in zip(names, found, strict=True) if annotation is None]:
            notes.append(f"{len(unread)} annotations cannot be read, the first: {unread[0]}.xml. Their samples fail.")
        files = [
            (annotation[0] if annotation is not None else None) or f"{name}.jpg"
            for name, annotation in zip(names, found, strict=True)
        ]
        super().__init__(
            os.path.join(folder, "JPEGImages"),
            PackedNames(os.fsencode(file) for file in files),
            options,
            classes=["__background__", *known],
            notes=notes,
        )

    def objects(self, index: int, size: tuple[int, int]) -> Objects:
        """Return the objects of the picture's annotation; raise OSError if it could not be read."""
        found = self._objects[index]
        if found is None:
            raise OSError(f"the annotation {self._stems[index]}.xml cannot be read")
        return found

    def fingerprint(self, index: int) -> bytes:
        """Return the boxes and classes of a picture as bytes."""
        found = self._objects[index]
        return b"" if found is None else found.boxes.tobytes() + found.labels.tobytes()


def _names(folder: str, annotations: str, split: str | None) -> list[str]:
    if split is None:
        return sorted(os.path.splitext(name)[0] for name in os.listdir(annotations) if name.endswith(".xml"))
    path = os.path.join(folder, "ImageSets", "Main", f"{split}.txt")
    try:
        with open(path, encoding="utf-8") as file:
            return [line.split()[0] for line in file if line.strip()]
    except OSError as error:
        raise DatasetError(
            f"The split {split!r} cannot be read: {error}", hint="Splits are in ImageSets/Main."
        ) from error


def _annotation(path: str) -> tuple[str | None, list[tuple[str, list[float]]]] | None:
    """Return the name of the picture's file and its objects; None for a file that cannot be read."""
    # Loaded here: every process that reads a store loads this module.
    import xml.etree.ElementTree as ElementTree

    try:
        root = ElementTree.parse(path).getroot()
        objects = [
            (str(one.findtext("name")).strip(), [float(str(one.findtext(f"bndbox/{name}"))) for name in _CORNERS])
            for one in root.iter("object")
        ]
    except (OSError, ElementTree.ParseError, ValueError):
        return None
    name = root.findtext("filename")
    return os.path.basename(name.strip()) if name and name.strip() else None, objects


def _objects(found: list[tuple[str, list[float]]], numbers: dict[str, int]) -> Objects:
    boxes: Any = np.array([box for _, box in found], dtype=np.float64).reshape(-1, 4)
    return Objects(boxes, np.array([numbers[kind] for kind, _ in found], dtype=np.int64))
