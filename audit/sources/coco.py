"""Objects in COCO's format: `coco:annotations.json`, or `coco:annotations.json?images=FOLDER`.

Without `images`, the pictures are looked for beside the file, in `images`, in the folder above, and in the folder that the
file's name ends with (instances_val2017.json: val2017). Class numbers are the file's own category ids; torchvision's
detectors count the background as class 0, which COCO leaves free. Pictures without an object are samples too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from audit.errors import DatasetError
from audit.metrics.target_boxes import coco_keypoints
from audit.sources.annotated_pictures import BoxedPictures, Objects, parse_spec, shown_path
from audit.sources.base import Options
from audit.sources.files import PackedNames

description = "coco:FILE.json, objects in COCO's format"
runs_no_code = True

path_prefix = "coco:"
#: Class names are listed up to this number; ids beyond it are numbers without a name.
_MOST_CLASSES = 100_000


def recognise(spec: str) -> bool:
    """Return whether it starts with coco:."""
    return spec.startswith(path_prefix)


def open_source(spec: str, options: Options) -> CocoPictures:
    """Return the pictures that the file lists, in its order, with their boxes."""
    path, settings = parse_spec(spec, path_prefix, ("images",))
    content = _read(path)
    pictures = content["images"]
    names = [str(picture.get("file_name", "")) for picture in pictures]
    if not names:
        raise DatasetError(f"{shown_path(path)} lists no pictures.", hint="Its list `images` is empty.")
    folder = _folder(path, settings.get("images"), names[0])
    return CocoPictures(folder, names, content, options, shown_path(path))


class CocoPictures(BoxedPictures):
    """The pictures of one file of annotations."""

    def __init__(self, folder: str, names: list[str], content: dict[str, Any], options: Options, shown: str) -> None:
        order = {picture["id"]: at for at, picture in enumerate(content["images"])}
        by_picture: list[list[Any]] = [[] for _ in names]
        strangers = unboxed = 0
        for one in content.get("annotations") or []:
            at = order.get(one.get("image_id"))
            if at is None:
                strangers += 1
            elif not _is_box(one.get("bbox")) or not isinstance(one.get("category_id"), int):
                unboxed += 1
            else:
                by_picture[at].append(one)
        notes = []
        if strangers:
            notes.append(f"{strangers} annotations in {shown} are of pictures that it does not list.")
        if unboxed:
            notes.append(f"{unboxed} annotations in {shown} have no box or no category, and were left out.")
        flat = [one for found in by_picture for one in found]
        self._ends = np.cumsum([len(found) for found in by_picture])
        corners = np.array([one["bbox"] for one in flat], dtype=np.float64).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        self._boxes = corners
        self._numbers = np.array([one["category_id"] for one in flat], dtype=np.int64)
        self._crowd = np.array([bool(one.get("iscrowd")) for one in flat], dtype=bool)
        self._keypoints, areas = coco_keypoints(flat)
        with np.errstate(divide="ignore", invalid="ignore"):
            boxed = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
            self._shares = None if areas is None else areas / boxed
        raw = PackedNames(os.fsencode(name) for name in names)
        super().__init__(folder, raw, options, classes=_classes(content, notes), notes=notes)

    def _span(self, index: int) -> slice:
        return slice(int(self._ends[index - 1]) if index else 0, int(self._ends[index]))

    def objects(self, index: int, size: tuple[int, int]) -> Objects:
        """Return the objects that the file lists for this picture."""
        span = self._span(index)
        points = None if self._keypoints is None else self._keypoints[span]
        shares = None if self._shares is None else self._shares[span]
        return Objects(self._boxes[span], self._numbers[span], self._crowd[span], points, shares)

    def fingerprint(self, index: int) -> bytes:
        """Return the boxes, classes and crowds of a picture as bytes."""
        span = self._span(index)
        parts = [self._boxes[span], self._numbers[span], self._crowd[span]]
        parts += [] if self._keypoints is None else [self._keypoints[span]]
        return b"".join(part.tobytes() for part in parts)


def _is_box(box: Any) -> bool:
    return isinstance(box, list) and len(box) == 4 and all(isinstance(value, (int, float)) for value in box)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = json.load(file)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{shown_path(path)} cannot be read as JSON: {error}", hint="Give COCO's file of annotations."
        ) from error
    pictures = content.get("images") if isinstance(content, Mapping) else None
    if not isinstance(pictures, list) or not all(isinstance(one, Mapping) and "id" in one for one in pictures):
        raise DatasetError(
            f"{shown_path(path)} is not in COCO's format: it has no list `images` of pictures with an id.",
            hint="It must have `images`, `annotations` and `categories`.",
        )
    return dict(content)


def _folder(path: str, named: str | None, first: str) -> str:
    home = os.path.dirname(os.path.abspath(path))
    if named is not None:
        folder = os.path.join(home, os.path.expanduser(named))
        if not os.path.isdir(folder):
            raise DatasetError(f"There is no folder {shown_path(folder)}.", hint="Check images= in --dataset coco:…")
        return folder
    stem = os.path.splitext(os.path.basename(path))[0].rpartition("_")[2]
    tried = [
        os.path.join(home, *parts) for parts in ((), ("images",), ("..",), ("..", "images"), ("..", stem), (stem,))
    ]
    for folder in tried:
        if os.path.exists(os.path.join(folder, first)):
            return os.path.normpath(folder)
    raise DatasetError(
        f"The first picture of {shown_path(path)}, {first}, is not in the folder of that file.",
        hint=f"Say where the pictures are: {path_prefix}{shown_path(path)}?images=FOLDER",
    )


def _classes(content: dict[str, Any], notes: list[str]) -> list[str] | None:
    """Return the names by category id; ids that no category has are N/A, as torchvision writes them."""
    named = {one["id"]: str(one.get("name", one["id"])) for one in content.get("categories") or []}
    if not named:
        return None
    if not all(isinstance(number, int) and 0 <= number < _MOST_CLASSES for number in named):
        notes.append("The category ids are not small whole numbers, so classes have no names.")
        return None
    names = [named.get(number, "N/A") for number in range(max(named) + 1)]
    if 0 not in named:
        names[0] = "__background__"
    return names
