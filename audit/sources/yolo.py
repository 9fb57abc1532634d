"""Objects in YOLO's format: `yolo:data.yaml`, or `yolo:data.yaml?split=train&first=1`.

The file names a folder, or a list, of pictures for each split. The labels of images/…/NAME.jpg are in labels/…/NAME.txt:
a class number and a box (centre, width, height, as shares of the picture), or a polygon, in each line. A picture
without a file of labels has no objects. The split is `val` if the file has it, else `test`, else `train`.
Class numbers are those of the files, from 0; torchvision's detectors count the background as class 0: `first=1` adds 1.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from audit.errors import DatasetError, MissingExtra
from audit.sources.annotated_pictures import BoxedPictures, Objects, parse_spec, shown_path
from audit.sources.base import Options
from audit.sources.files import PackedNames, size_of
from audit.sources.scan import scan

description = "yolo:data.yaml, objects in YOLO's format"
runs_no_code = True

path_prefix = "yolo:"
_SPLITS = ("val", "test", "train")


def recognise(spec: str) -> bool:
    """Return whether it starts with yolo:."""
    return spec.startswith(path_prefix)


def open_source(spec: str, options: Options) -> YoloPictures:
    """Return the pictures of one split, with their boxes."""
    path, settings = parse_spec(spec, path_prefix, ("split", "first"))
    content = _read(path)
    split = settings.get("split") or next((name for name in _SPLITS if content.get(name)), None)
    if split is None or not content.get(split):
        known = [name for name in _SPLITS if content.get(name)]
        raise DatasetError(
            f"{shown_path(path)} has no split {split or 'val'!r}.", hint=f"It has: {', '.join(known) or 'none'}."
        )
    first = settings.get("first", "0")
    if first not in ("0", "1"):
        raise DatasetError(f"first cannot be {first!r} in {spec}.", hint="Give 0, or 1 if class 0 is the background.")
    home = os.path.dirname(os.path.abspath(path))
    base = os.path.join(home, str(content.get("path") or ""))
    base = base if os.path.isdir(base) else home
    names = _pictures(base, content[split])
    if not names:
        raise DatasetError(f"The split {split!r} of {shown_path(path)} has no pictures.", hint=f"Look into {base}.")
    return YoloPictures(base, names, options, _classes(content.get("names"), int(first)), int(first), split)


class YoloPictures(BoxedPictures):
    """The pictures of one split of a dataset in YOLO's format."""

    def __init__(
        self, base: str, names: list[bytes], options: Options, classes: list[str] | None, first: int, split: str
    ) -> None:
        super().__init__(base, PackedNames(names), options, classes=classes, notes=())
        self._first = first
        self.split = split

    def objects(self, index: int, size: tuple[int, int]) -> Objects:
        """Return the objects in the picture's file of labels; raise ValueError for a line that is not one."""
        rows = [_parse(line, number) for number, line in enumerate(self._lines(index), 1) if line.strip()]
        boxes: Any = np.array([box for _, box in rows], dtype=np.float64).reshape(-1, 4)
        boxes = boxes * np.array([size[0], size[1], size[0], size[1]], dtype=np.float64)
        return Objects(boxes, np.array([kind + self._first for kind, _ in rows], dtype=np.int64))

    def _lines(self, index: int) -> list[str]:
        path = _label_file(self._path(self._names[index]))
        if size_of(path) < 0:
            return []
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()

    def fingerprint(self, index: int) -> bytes:
        """Return the labels of a picture as bytes."""
        try:
            return "\n".join(self._lines(index)).encode()
        except (OSError, UnicodeDecodeError):
            return b""


def _label_file(picture: bytes) -> bytes:
    stem = os.path.splitext(picture)[0]
    before, found, after = stem.rpartition(b"/images/")
    return (before + b"/labels/" + after if found else stem) + b".txt"


def _parse(line: str, number: int) -> tuple[int, list[float]]:
    """Return class number and box, as shares of the picture, of one line."""
    try:
        kind, *values = (float(part) for part in line.split())
    except ValueError:
        kind, values = -1.0, []
    if kind < 0 or kind != int(kind) or not (len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0)):
        raise ValueError(
            f"line {number} of its labels is neither a class and a box nor a class and a polygon: {line[:80]!r}"
        )
    if len(values) == 4:
        x, y, width, height = values
        return int(kind), [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    return int(kind), [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])]


def _read(path: str) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("pyyaml", "Reading a YOLO dataset") from error
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DatasetError(
            f"{shown_path(path)} cannot be read as YAML: {error}", hint="Give YOLO's data.yaml."
        ) from error
    if not isinstance(content, dict):
        raise DatasetError(
            f"{shown_path(path)} is not a YOLO dataset.", hint="It must name `val` or `train`, and `names`."
        )
    return content


def _pictures(base: str, named: Any) -> list[bytes]:
    """Return the pictures of a split, relative to the base: a folder, a list in a file, or several of these."""
    found: list[bytes] = []
    for one in named if isinstance(named, list) else [named]:
        path = os.path.normpath(os.path.join(base, str(one)))
        if os.path.isfile(path) and path.endswith(".txt"):
            with open(path, encoding="utf-8") as file:
                lines = [line.strip() for line in file if line.strip()]
            found += [os.fsencode(os.path.relpath(os.path.join(base, line), base)) for line in lines]
        elif os.path.isdir(path):
            inside = os.fsencode(os.path.relpath(path, base))
            found += [
                os.path.normpath(os.path.join(inside, name))
                for directory in sorted(scan(path).directories, key=lambda directory: directory.path)
                for name in directory.names(False)
            ]
        else:
            raise DatasetError(f"There is no {shown_path(path)}.", hint="Check `path` and the splits in data.yaml.")
    return found


def _classes(names: Any, first: int) -> list[str] | None:
    background = ["__background__"] * first
    if isinstance(names, list):
        return background + [str(name) for name in names]
    if isinstance(names, dict) and all(isinstance(number, int) and number >= 0 for number in names):
        return background + [str(names.get(number, "N/A")) for number in range(max(names, default=-1) + 1)]
    return None
