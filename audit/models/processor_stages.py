"""An image processor of transformers, laid out as stages that are recorded one by one.

Each stage is the processor itself with one of its steps switched on. Whether the stages give exactly what the processor gives
at once is tried on two pictures; where they do not, fewer and larger stages are tried, down to the processor as one stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

_STEPS = ("do_convert_rgb", "do_resize", "do_center_crop", "do_pad", "do_rescale", "do_normalize")


class ProcessorStage(nn.Module):
    """A processor with some of its steps switched on."""

    steps: tuple[str, ...] = _STEPS

    def __init__(self, processor: Any) -> None:
        super().__init__()
        self._processor = processor
        self._chosen = {name: name in self.steps and _is_on(processor, name) for name in _own_steps(processor)}
        # Attributes are what a stage is described by.
        for step in self.steps if type(self) is not ProcessorStage else _STEPS:
            for name in _SETTINGS.get(step, ()) if _is_on(processor, step) else ():
                if (value := getattr(processor, name, None)) is not None:
                    setattr(self, name, _as_json(value))

    def forward(self, picture: Any) -> torch.Tensor:
        found: torch.Tensor = self._processor(picture, return_tensors="pt", **self._chosen)["pixel_values"][0]
        return found

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items() if name in _KNOWN_SETTINGS)


_SETTINGS = {
    "do_resize": ("size", "resample"),
    "do_center_crop": ("crop_size",),
    "do_pad": ("pad_size",),
    "do_rescale": ("rescale_factor",),
    "do_normalize": ("image_mean", "image_std"),
}
_KNOWN_SETTINGS = {name for names in _SETTINGS.values() for name in names}


class Resize(ProcessorStage):
    """The processor's resize of the whole picture."""

    steps = ("do_convert_rgb", "do_resize")


class CenterCrop(ProcessorStage):
    """The processor's crop."""

    steps = ("do_center_crop",)


class PadPicture(ProcessorStage):
    """The processor's padding."""

    steps = ("do_pad",)


class Rescale(ProcessorStage):
    """The processor's factor for all values."""

    steps = ("do_rescale",)


class Normalize(ProcessorStage):
    """The processor's mean and standard deviation."""

    steps = ("do_normalize",)


class RescaleAndNormalize(ProcessorStage):
    """Both at once, where the processor joins them in one computation."""

    steps = ("do_rescale", "do_normalize")


class ProcessorPreset:
    """The stages of a processor, as `flatten_preset` takes them."""

    def __init__(self, stages: list[ProcessorStage], processor: Any) -> None:
        self.stages = stages
        self.mean = getattr(processor, "image_mean", None) if getattr(processor, "do_normalize", False) else None
        self.std = getattr(processor, "image_std", None) if getattr(processor, "do_normalize", False) else None


class TokenizeText:
    """A text as token numbers, by the tokenizer of a model."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: str) -> torch.Tensor:
        found: torch.Tensor = self.tokenizer(text, truncation=True, return_tensors="pt")["input_ids"][0]
        return found

    def __repr__(self) -> str:
        return f"TokenizeText({type(self.tokenizer).__name__})"


def processor_preset(processor: Any) -> ProcessorPreset:
    """Return the smallest stages that together give exactly what the processor gives."""
    layouts: list[list[type[ProcessorStage]]] = [
        [Resize, CenterCrop, PadPicture, Rescale, Normalize],
        [Resize, CenterCrop, PadPicture, RescaleAndNormalize],
    ]
    for layout in layouts:
        used = [
            kind for kind in layout if any(_is_on(processor, step) for step in kind.steps if step != "do_convert_rgb")
        ]
        stages = [kind(processor) for kind in used]
        if stages and all(_is_same(processor, stages, seed) for seed in (0, 1)):
            return ProcessorPreset(stages, processor)
    return ProcessorPreset([ProcessorStage(processor)], processor)


def _as_json(value: Any) -> Any:
    """Return a setting as JSON has it."""
    if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        parts = dict(value) if isinstance(value, Mapping) else vars(value)
        return {str(key): part for key, part in parts.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (bool, float, str)):
        return value
    return int(value) if isinstance(value, int) else str(value)


def _own_steps(processor: Any) -> list[str]:
    return [name for name in _STEPS if getattr(processor, name, None) is not None]


def _is_on(processor: Any, step: str) -> bool:
    return bool(getattr(processor, step, None))


def _is_same(processor: Any, stages: list[ProcessorStage], seed: int) -> bool:
    """Return whether the stages give what the processor gives, for one picture of noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (61 + 40 * seed, 90, 3), dtype=np.uint8)
    picture: Any = Image.fromarray(noise)
    try:
        whole = processor(picture, return_tensors="pt")["pixel_values"][0]
        for stage in stages:
            picture = stage(picture)
    except Exception:
        return False
    return bool(torch.equal(whole, picture))
