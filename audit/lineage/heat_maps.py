"""Heat maps of one visit, to lay over its picture: where a layer was active, where its gradient was large, which pixels a mask has wrong.

They come from recorded values alone: layers whose values were kept (`keep="full"`), and graded masks. Nothing runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audit.lineage.layer_values import Array, layer_value
from audit.picture_formats import open_picture
from audit.tables import ActivationRow

if TYPE_CHECKING:
    from audit.lineage.trace import Trace

_FORWARD, _BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One number for each place of a layer's output, or for each pixel of a mask."""

    name: str
    #: What the numbers are, in words.
    meaning: str
    values: Array


def heat_maps(trace: Trace) -> list[HeatMap]:
    """Return the heat maps of a visit: of masks first, then Grad-CAM, then each layer in the order of recording."""
    kept = {(row["layer"], row["direction"], row["port"]): row for row in trace.activations if is_spatial(row)}
    layers = [_of_layer(row, value) for row in kept.values() if (value := _value(trace, row)) is not None]
    return [*_wrong_pixels(trace), *_weigh_channels(trace, kept), *layers]


def is_spatial(row: ActivationRow) -> bool:
    """Return whether a layer's values were kept, and lie in height and width."""
    shape = row["shape"] or []
    return row["payload"] is not None and len(shape) in (2, 3) and min(shape[-2:]) > 1


def _of_layer(row: ActivationRow, value: Array) -> HeatMap:
    what = "activation" if row["direction"] == _FORWARD else "gradient"
    meaning = f"mean size of the {what} over {len(value)} channel{'s' if len(value) != 1 else ''}"
    name = f"{row['layer']} {row['port']}" + ("" if row["direction"] == _FORWARD else " gradient")
    return HeatMap(name, meaning, np.abs(value).mean(axis=0))


def _weigh_channels(trace: Trace, kept: dict[tuple[str, str, str], ActivationRow]) -> Iterator[HeatMap]:
    """Yield Grad-CAM for each layer whose output was kept in both directions: channels weighted by their mean gradient."""
    for (layer, direction, port), row in kept.items():
        other = kept.get((layer, _BACKWARD, port))
        if direction != _FORWARD or other is None or row["shape"] != other["shape"]:
            continue
        value, gradient = _value(trace, row), _value(trace, other)
        if value is None or gradient is None:
            continue
        # What was recorded is the gradient of the loss: what makes it smaller speaks for the label.
        weighted = -(gradient.mean(axis=(1, 2), keepdims=True) * value).sum(axis=0)
        yield HeatMap(f"{layer} Grad-CAM", "activations that make the loss smaller", np.maximum(weighted, 0))


def _value(trace: Trace, row: ActivationRow) -> Array | None:
    """Return a layer's value as channels, height and width; None if its bytes do not have its digest."""
    found = layer_value(trace.run, row["payload"], row["digest"])
    return found if found is None or found.ndim == 3 else found[None]


def _wrong_pixels(trace: Trace) -> Iterator[HeatMap]:
    masks = {row["kind"]: np.asarray(open_picture(row["data"])) for row in trace.masks if row["data"] is not None}
    target, predicted = masks.get("target"), masks.get("predicted")
    if target is None or predicted is None or target.shape != predicted.shape or target.ndim != 2:
        return
    wrong = ((target != predicted) & (target != 255)).astype(np.float32)
    yield HeatMap("mask", "1 where the predicted mask differs from the target", wrong)
