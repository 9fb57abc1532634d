"""From pixels of a model's input back to pixels of the decoded source, through stages whose geometry is known.

Only what is certain: stages that leave every pixel in its place, a resize of the whole picture, and a crop at the centre. After any other
stage, or one that takes picture and target together, the place in the source is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Stages that change values and move none.
_IN_PLACE = frozenset(
    [
        "ConvertRGB", "ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "Normalize", "ToPureTensor",
        "Grayscale", "RGB", "ColorJitter", "GaussianBlur", "RandomGrayscale", "RandomAdjustSharpness", "Identity",
        "RandomAutocontrast", "RandomEqualize", "RandomPosterize", "RandomSolarize", "RandomInvert", "item", "pil_to_tensor",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceSpace:
    """source = input * scale + offset, for x and y."""

    scale: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)

    def locate(self, boxes: Array) -> Array:
        """Return boxes of the input in pixels of the source."""
        return np.asarray(boxes * np.array([*self.scale, *self.scale]) + np.array([*self.offset, *self.offset]))


def find_source_space(outputs: Iterable[Mapping[str, Any]], size: tuple[int, int] | None = None) -> SourceSpace | None:
    """Return where the last of a visit's stage outputs lies in the first; None where that is not known.

    `outputs` have `stage`, `name`, `kind` and `shape`; `size` is (height, width) of the model's input, if it is known.
    """
    space, before = SourceSpace(), None
    for output in sorted(outputs, key=lambda output: output["stage"]):
        now = _size(output["kind"], output["shape"])
        if now is None:
            return None
        if before is not None:
            found = _step(space, str(output["name"]), before, now)
            if found is None:
                return None
            space = found
        before = now
    return space if before is not None and size in (None, before) else None


def _size(kind: str, shape: Any) -> tuple[int, int] | None:
    """Return (height, width) of a picture, or of a tensor (C, H, W)."""
    if kind == "image" and len(shape) >= 2:
        return int(shape[0]), int(shape[1])
    if kind == "tensor" and len(shape) == 3 and shape[0] in (1, 3, 4):
        return int(shape[1]), int(shape[2])
    return None


def _step(space: SourceSpace, name: str, before: tuple[int, int], now: tuple[int, int]) -> SourceSpace | None:
    (height, width), (high, wide) = before, now
    if name in _IN_PLACE:
        return space if before == now else None
    if name == "Resize":
        scale = (space.scale[0] * width / wide, space.scale[1] * height / high)
        return SourceSpace(scale, space.offset)
    if name == "CenterCrop" and high <= height and wide <= width:
        left, top = round((width - wide) / 2.0), round((height - high) / 2.0)
        return SourceSpace(
            space.scale, (space.offset[0] + left * space.scale[0], space.offset[1] + top * space.scale[1])
        )
    return None


def spaces_by_visit(stage_outputs: Any) -> dict[tuple[int, int], SourceSpace | None]:
    """Return where the input of each visit lies in its source, by (index, visit), from a table of stage outputs."""
    if stage_outputs is None:
        return {}
    visits: dict[tuple[int, int], list[dict[str, Any]]] = {}
    names = [
        name for name in ("index", "visit", "stage", "name", "kind", "shape") if name in stage_outputs.column_names
    ]
    for row in stage_outputs.select(names).to_pylist():
        visits.setdefault((row["index"], row.get("visit", 0)), []).append(row)
    return {key: find_source_space(rows) for key, rows in visits.items()}
