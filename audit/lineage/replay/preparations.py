"""A batch's inputs prepared otherwise: from the picture as it was just before it was normalised, where one was recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit import values
from audit.lineage.replay.pipeline import ReplayedVisit

Preparation = Callable[[], torch.Tensor]

#: Usual normalisations by name: mean and standard deviation of each channel.
_USUAL_SCALES: dict[str, tuple[list[float], list[float]]] = {
    "normalised as ImageNet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "normalised with mean 0.5 and std 0.5": ([0.5], [0.5]),
    "normalised as CIFAR-10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "normalised as MNIST": ([0.1307], [0.3081]),
    "as 0 to 1, not normalised": ([0.0], [1.0]),
    "as 0 to 255": ([0.0], [1 / 255]),
}
#: The share of the input's variance that a gain and an offset for each channel must explain.
_AFFINE = 0.995
#: Sides whose ratio differs by more than this are another aspect.
_ASPECT = 1.05


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The inputs of a batch (N, C, H, W), the pictures they were made of in 0–1, and the loaded ones."""

    inputs: torch.Tensor
    #: The pictures before they were normalised; None if no recorded stage shows them.
    units: torch.Tensor | None
    #: Each channel's gain and offset from `units` to `inputs`; None if that is not how they were made.
    gain: torch.Tensor | None
    offset: torch.Tensor | None
    #: What `load` returned, as (C, H, W) in 0–1; None where it is not a picture.
    loaded: list[torch.Tensor | None]

    def normalise(self, units: torch.Tensor) -> torch.Tensor:
        """Return pictures in 0–1 as the pipeline normalises them."""
        return units if self.gain is None or self.offset is None else units * self.gain + self.offset


def read_batch(visits: Sequence[ReplayedVisit]) -> PreparedBatch | None:
    """Return the batch of visits that were made again; None unless their inputs are pictures of one shape."""
    finals = [one.final for one in visits]
    if not finals or not all(isinstance(value, torch.Tensor) and value.dim() == 3 for value in finals):
        return None
    if len({value.shape for value in finals}) > 1 or finals[0].shape[0] not in (1, 3):
        return None
    inputs = torch.stack([value.as_subclass(torch.Tensor).float() for value in finals])
    units = _units(visits, inputs)
    gain, offset = _fit_gain_and_offset(units, inputs) if units is not None else (None, None)
    loaded = [_as_unit(_decode(one, "0"), inputs.shape[1]) for one in visits]
    return PreparedBatch(inputs, units, gain, offset, loaded)


def preparations(batch: PreparedBatch) -> dict[str, Preparation]:
    """Return every preparation that can be made of this batch and differs from its inputs."""
    x, units = batch.inputs, batch.units
    found: dict[str, Preparation] = {}
    known = units if batch.gain is not None else None
    if x.shape[1] == 3:
        found["with red and blue swapped"] = lambda: x.flip(1) if known is None else batch.normalise(known.flip(1))
    if units is not None:
        found |= _normalisations(units, x)
    else:
        found |= {
            f"{description}, once more": _scaler(x, *usual) for description, usual in list(_USUAL_SCALES.items())[:2]
        }
    if known is not None:
        found["with light and dark inverted"] = lambda: batch.normalise(torch.ones_like(known) - known)
    if x.shape[2] == x.shape[3]:
        found["with rows and columns exchanged"] = lambda: x.transpose(2, 3)
    found["turned upside down"] = lambda: x.flip(2)
    found["mirrored"] = lambda: x.flip(3)
    # Last, because they begin at the loaded picture and so also undo what turned it; of equal gains the first counts.
    return found | ({} if known is None else _aspects(batch))


def _normalisations(units: torch.Tensor, x: torch.Tensor) -> dict[str, Preparation]:
    made = {
        description: _scaler(units, mean, std)
        for description, (mean, std) in _USUAL_SCALES.items()
        if len(mean) in (1, int(x.shape[1]))
    }
    # What the pipeline does already is not a counterfactual.
    spread = float(x.std()) or 1.0
    return {description: make for description, make in made.items() if float((make() - x).abs().mean()) > 0.05 * spread}


def _scaler(pictures: torch.Tensor, mean: list[float], std: list[float]) -> Preparation:
    shape = (1, -1, 1, 1)
    return lambda: (pictures - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def _aspects(batch: PreparedBatch) -> dict[str, Preparation]:
    """Return the pictures cropped instead of squeezed, and squeezed instead of cropped."""
    loaded = [picture for picture in batch.loaded if picture is not None]
    height, width = batch.inputs.shape[2:]
    if len(loaded) < len(batch.inputs):
        return {}
    ratios = [(one.shape[2] / one.shape[1]) / (width / height) for one in loaded]
    if sum(max(ratio, 1 / ratio) > _ASPECT for ratio in ratios) < len(ratios) / 2:
        return {}
    return {
        "with the aspect kept (resized by the shorter side, centre cropped)": lambda: batch.normalise(
            torch.stack([_crop(one, height, width) for one in loaded])
        ),
        "with the whole picture squeezed to the input's size": lambda: batch.normalise(
            torch.stack([_resize(one, height, width) for one in loaded])
        ),
    }


def _crop(picture: torch.Tensor, height: int, width: int) -> torch.Tensor:
    scale = max(height / picture.shape[1], width / picture.shape[2])
    sides = max(height, round(picture.shape[1] * scale)), max(width, round(picture.shape[2] * scale))
    resized = _resize(picture, *sides)
    top, left = (sides[0] - height) // 2, (sides[1] - width) // 2
    return resized[:, top : top + height, left : left + width]


def _resize(picture: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return torch.nn.functional.interpolate(
        picture[None], size=(height, width), mode="bilinear", antialias=True, align_corners=False
    )[0]


def _units(visits: Sequence[ReplayedVisit], inputs: torch.Tensor) -> torch.Tensor | None:
    """Return the last recorded pictures in 0–1 that have the input's size; None if no stage of every sample shows them."""
    for path in reversed(list(visits[0].exact)):
        found = [_as_unit(_decode(one, path), inputs.shape[1]) for one in visits]
        pictures = [one for one in found if one is not None and one.shape == inputs.shape[1:]]
        if len(pictures) == len(inputs):
            return torch.stack(pictures)
    return None


def _decode(visit: ReplayedVisit, path: str) -> Any:
    if path not in visit.exact:
        return None
    kind, encoded = visit.exact[path]
    return values.decode(kind, encoded, allow_pickle=True) if kind in ("image", "tensor", "array") else None


def _as_unit(value: Any, channels: int) -> torch.Tensor | None:
    """Return a picture as (C, H, W) in 0–1; None if it is not one, or was normalised already."""
    if value is None:
        return None
    array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.ndim == 2:
        array = array[None]
    elif array.ndim == 3 and not isinstance(value, torch.Tensor):
        array = array.transpose(2, 0, 1)
    if array.ndim != 3 or array.dtype.kind not in "uif" or not array.size:
        return None
    if array.shape[0] != channels:
        if channels == 3 and array.shape[0] == 1:
            array = array.repeat(3, axis=0)
        else:
            return None
    low, high = float(array.min()), float(array.max())
    if low < -1e-6 or high > 255 or (array.dtype.kind != "f" and array.dtype != np.uint8):
        return None
    whole = array.dtype == np.uint8 or high > 2
    return torch.from_numpy(np.ascontiguousarray(array).astype(np.float32) / (255 if whole else 1))


def _fit_gain_and_offset(units: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return each channel's gain and offset from the pictures to the inputs; None if they do not explain the inputs."""
    a = units.transpose(0, 1).flatten(1).double()
    b = inputs.transpose(0, 1).flatten(1).double()
    a0, b0 = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    gain = (a0 * b0).sum(1) / (a0 * a0).sum(1).clamp_min(1e-12)
    left = ((b0 - gain[:, None] * a0) ** 2).sum() / (b0**2).sum().clamp_min(1e-12)
    if float(left) > 1 - _AFFINE:
        return None, None
    offset = b.mean(1) - gain * a.mean(1)
    return gain.float().view(1, -1, 1, 1), offset.float().view(1, -1, 1, 1)
