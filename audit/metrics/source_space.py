"""From pixels of a model's input back to pixels of the stages before it, through stages whose geometry is known.

Only what is certain: stages that leave every pixel in its place, a resize of the whole picture, crops and flips whose
place was recorded. Beyond any other stage the place is not known.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.records import Stage

Array = np.ndarray[Any, Any]

#: Stages that change values and move none.
_IN_PLACE = frozenset(
    [
        "ConvertRGB", "ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "Normalize", "ToPureTensor",
        "Grayscale", "RGB", "ColorJitter", "GaussianBlur", "RandomGrayscale", "RandomAdjustSharpness", "Identity",
        "RandomAutocontrast", "RandomEqualize", "RandomPosterize", "RandomSolarize", "RandomInvert", "item", "pil_to_tensor",
        "RandomPhotometricDistort", "RandomErasing", "SanitizeBoundingBoxes", "ClampBoundingBoxes", "ToPILImage",
    ]
)  # fmt: skip
_FLIPS = {"RandomHorizontalFlip": 0, "RandomVerticalFlip": 1}
_CROPS = frozenset(["RandomCrop", "RandomResizedCrop", "RandomIoUCrop"])

#: Where the classes come from whose names are known here; a class of the user's own may have the same name.
_KNOWN_HOMES = ("torchvision.", "audit.")

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SourceSpace:
    """Where one picture lies in an earlier one: earlier = later * scale + offset, for x and y."""

    scale: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)

    def locate(self, boxes: Array) -> Array:
        """Return boxes (n, 4) of the later picture in pixels of the earlier one."""
        moved = boxes * np.array([*self.scale, *self.scale]) + np.array([*self.offset, *self.offset])
        # A flip exchanges the two ends of a box.
        for axis in (axis for axis in (0, 1) if self.scale[axis] < 0):
            moved[:, [axis, axis + 2]] = moved[:, [axis + 2, axis]]
        return np.asarray(moved)

    def follow(self, step: SourceSpace) -> SourceSpace:
        """Return where the picture after `step` lies, if this is where the picture before it lies."""
        return SourceSpace(
            (self.scale[0] * step.scale[0], self.scale[1] * step.scale[1]),
            (self.scale[0] * step.offset[0] + self.offset[0], self.scale[1] * step.offset[1] + self.offset[1]),
        )


def own_stage_names(stages: Iterable[Stage]) -> list[str]:
    """Return the names of stages whose geometry is not known by their name, because they are the user's own."""
    known = (*_IN_PLACE, *_FLIPS, *_CROPS, "Resize", "CenterCrop")
    return sorted(
        {stage.name for stage in stages if stage.qualname and not stage.qualname.startswith(_KNOWN_HOMES)} & {*known}
    )


def find_source_space(outputs: Iterable[Mapping[str, Any]], own: Collection[str] = ()) -> SourceSpace | None:
    """Return where the last of a visit's stage outputs lies in the first; None where that is not known."""
    spaces = place_in_stages(outputs, own)
    return spaces[min(spaces)] if spaces else None


def place_in_stages(outputs: Iterable[Mapping[str, Any]], own: Collection[str] = ()) -> dict[int, SourceSpace | None]:
    """Return where the last of a visit's stage outputs lies in each of them, by stage; None where that is not known.

    `outputs` have `stage`, `name`, `kind` and `shape`, and where they are known `changed`, `params` and `target`.
    `own` are names of stages that are the user's own.
    """
    ordered = sorted(outputs, key=lambda output: int(output["stage"]))
    found: dict[int, SourceSpace | None] = {}
    space: SourceSpace | None = SourceSpace()
    for number in reversed(range(len(ordered))):
        size = output_size(ordered[number])
        found[ordered[number]["stage"]] = space = None if size is None else space
        if space is not None and number:
            before = output_size(ordered[number - 1])
            step = None if before is None or size is None else _step(ordered[number], before, size, own)
            space = None if step is None else step.follow(space)
    return found


def output_size(output: Mapping[str, Any]) -> Size | None:
    """Return (height, width) of the picture in a stage's output; None if it has none."""
    kind = output["kind"]
    shape: Sequence[int] = output["shape"] or ()  # a picture beside its target has none
    if kind == "image" and len(shape) >= 2:
        return int(shape[0]), int(shape[1])
    if kind == "tensor" and len(shape) == 3 and shape[0] in (1, 3, 4):
        return int(shape[1]), int(shape[2])
    if output.get("target"):
        joint = json.loads(output["target"])
        return int(joint["height"]), int(joint["width"])
    return None


def _step(output: Mapping[str, Any], before: Size, now: Size, own: Collection[str]) -> SourceSpace | None:
    """Return where a stage's output lies in what it was given; None where that is not known."""
    name, (height, width), (high, wide) = str(output["name"]), before, now
    if output.get("changed") is False and before == now:
        return SourceSpace()
    if name in _IN_PLACE and name not in own:
        return SourceSpace() if before == now else None
    if not high or not wide or name in own:
        return None
    if name == "Resize":
        return SourceSpace((width / wide, height / high))
    if name == "CenterCrop" and high <= height and wide <= width:
        left, top = round((width - wide) / 2.0), round((height - high) / 2.0)
        return SourceSpace(offset=(left, top))
    if name in _FLIPS and before == now:
        return SourceSpace((-1.0, 1.0), (width, 0.0)) if _FLIPS[name] == 0 else SourceSpace((1.0, -1.0), (0.0, height))
    return _crop(output, now) if name in _CROPS else None


def _crop(output: Mapping[str, Any], now: Size) -> SourceSpace | None:
    """Follow a random crop by what it drew; one that pads as well is not followed."""
    drawn = json.loads(output.get("params") or "{}")
    place = [drawn.get(key) for key in ("top", "left", "height", "width")]
    if drawn.get("needs_pad") or not all(isinstance(number, int) for number in place):
        return None
    top, left, height, width = place
    return SourceSpace((width / now[1], height / now[0]), (left, top))


def spaces_by_visit(stage_outputs: Any, own: Collection[str] = ()) -> dict[tuple[int, int], SourceSpace | None]:
    """Return where the input of each visit lies in its source, by (index, visit), from a table of stage outputs."""
    if stage_outputs is None:
        return {}
    visits: dict[tuple[int, int], list[dict[str, Any]]] = {}
    wanted = ("index", "visit", "stage", "name", "kind", "shape", "changed", "params", "target")
    names = [name for name in wanted if name in stage_outputs.column_names]
    for row in stage_outputs.select(names).to_pylist():
        visits.setdefault((row["index"], row.get("visit", 0)), []).append(row)
    return {key: find_source_space(rows, own) for key, rows in visits.items()}
