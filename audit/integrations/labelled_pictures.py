"""Pictures with their recorded labels and predictions, as tools for labelling take them.

A picture is a sample whose size is known and whose source is a file that exists, or an address. Labels and predictions are
class names, or boxes in pixels of the source. A picture with a box that cannot be placed in the source, because a stage between
is not known, is left out: without the box it would look as if nothing were there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from audit.integrations import run_facts as facts
from audit.picture_formats import open_picture
from audit.records import Run
from audit.sources.files import read_file
from audit.store.read.reader import Reader


@dataclass(frozen=True, slots=True)
class LabelledBox:
    """A box in pixels of the source. A target has no score."""

    label: str
    x1: float
    y1: float
    x2: float
    y2: float
    score: float | None


@dataclass(frozen=True, slots=True)
class LabelledPicture:
    """One sample: where its picture is, and what was recorded about it."""

    row: dict[str, Any]
    #: An absolute path, or an address such as https://… or s3://….
    place: str
    width: int
    height: int
    boxes: list[LabelledBox] = field(default_factory=list)

    @property
    def is_file(self) -> bool:
        """Return whether the picture is a local file."""
        return "://" not in self.place

    @property
    def label(self) -> str | None:
        """Return the recorded label's name, or its number as text."""
        return _name(self.row["label_name"], self.row["label"])

    @property
    def predicted_name(self) -> str | None:
        """Return the predicted class's name, or its number as text."""
        return _name(self.row["predicted_name"], self.row["predicted"])


def read_labelled_pictures(reader: Reader, run: Run, samples: list[dict[str, Any]]) -> list[LabelledPicture]:
    """Return the samples that are pictures, with their boxes."""
    sizes = _read_recorded_sizes(reader, run)
    boxes = _boxes(reader, run)
    unplaced = {key for key, found in boxes.items() if None in found}
    found = []
    for row in samples:
        place = facts.source_file(row) or _address(row)
        key = (row["epoch"], row["index"], row["visit"])
        size = sizes.get(key) or (_file_size(place) if place else None)
        if place is not None and size is not None and key not in unplaced:
            found.append(LabelledPicture(row, place, *size, [box for box in boxes.get(key, []) if box is not None]))
    return found


def class_names(run: Run, pictures: list[LabelledPicture]) -> list[str]:
    """Return the classes of the run, then any other class that a picture has, each once."""
    names = dict.fromkeys(run.classes or [])
    for picture in pictures:
        single = (picture.label, picture.predicted_name)
        names |= dict.fromkeys(name for name in single if name is not None)
        names |= dict.fromkeys(box.label for box in picture.boxes)
    return list(names)


def common_root(pictures: list[LabelledPicture]) -> str:
    """Return the folder that holds all local files: the dataset's root, or the folder above several roots."""
    roots = {os.path.abspath(picture.row["root"]) for picture in pictures if picture.is_file}
    return os.path.commonpath(roots) if roots else "/"


def _name(name: str | None, number: int | None) -> str | None:
    return name if name is not None or number is None else str(number)


def _address(row: dict[str, Any]) -> str | None:
    """Return the source if it is an address that a labelling tool can open."""
    source = row["source"] or ""
    return source if source.startswith(("http://", "https://", "s3://", "gs://", "az://")) else None


def _read_recorded_sizes(reader: Reader, run: Run) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Return (width, height) of each decoded source that was a picture."""
    rows = reader.sql(
        """
        SELECT epoch, index, visit, shape[2], shape[1] FROM stage_outputs
        WHERE run_id = ? AND stage = 0 AND kind = 'image' AND len(shape) >= 2
        """,
        run=run.run_id,
        parameters=[run.run_id],
    ).fetchall()
    return {(epoch, index, visit): (width, height) for epoch, index, visit, width, height in rows}


def _file_size(path: str) -> tuple[int, int] | None:
    """Return (width, height) from the header of a picture file; None if it is not a picture."""
    from PIL import Image

    try:
        with open_picture(read_file(os.fsencode(path))) as picture:
            return picture.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _boxes(reader: Reader, run: Run) -> dict[tuple[int, int, int], list[LabelledBox | None]]:
    """Return the boxes of each visit, targets first; None for a box that cannot be placed in the source."""
    rows = reader.sql(
        """
        SELECT epoch, index, visit, coalesce(class_name, class::VARCHAR), sx1, sy1, sx2, sy2, score FROM boxes
        WHERE run_id = ? AND call = 0 ORDER BY kind DESC, box
        """,
        run=run.run_id,
        parameters=[run.run_id],
    ).fetchall()
    found: dict[tuple[int, int, int], list[LabelledBox | None]] = {}
    for epoch, index, visit, *values in rows:
        placed = all(facts.finite_or_none(corner) is not None for corner in values[1:5])
        found.setdefault((epoch, index, visit), []).append(LabelledBox(*values) if placed else None)
    return found
