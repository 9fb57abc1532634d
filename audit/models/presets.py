"""The preprocessing that belongs to an architecture, as named stages that can be recorded one by one.

torchvision hides Resize, CenterCrop, ToTensor and Normalize inside one preset object. `flatten_preset` lays them out so
that applying them in order is bit-identical to calling the preset; anything it does not know stays one stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from PIL import Image
from torch import nn

from audit.errors import ModelError
from audit.models.building import Architecture
from audit.models.processor_stages import ProcessorPreset
from audit.values.rgb import as_rgb

Stage = tuple[str, Callable[..., Any]]


class ConvertRGB(nn.Module):
    """A picture as 8-bit RGB by Pillow's own conversion, which is what torchvision's folder loader does on reading.

    A stage of its own because the conversion can lose a lot: 16-bit pictures saturate, transparency is dropped.
    """

    def forward(self, picture: Any) -> Any:
        if not isinstance(picture, Image.Image):
            return picture  # tensors and arrays have no mode
        return as_rgb(picture)  # nothing else uses the picture that was read

    def __repr__(self) -> str:
        return "ConvertRGB()"


class ToTensor(nn.Module):
    """A picture as a float tensor in [0, 1], exactly as torchvision's presets do it.

    That is PILToTensor, then ConvertImageDtype: the transform called ToTensor differs from it for 16-bit pictures.
    """

    def forward(self, picture: Any) -> torch.Tensor:
        from torchvision.transforms import functional

        tensor = picture if isinstance(picture, torch.Tensor) else functional.pil_to_tensor(picture)
        converted: torch.Tensor = functional.convert_image_dtype(tensor, torch.float)
        return converted

    def __repr__(self) -> str:
        return "ToTensor()"


def preset_of(architecture: Architecture) -> object | None:
    """Return the evaluation preprocessing that the library publishes for an architecture, or None."""
    if architecture.library == "timm":
        return _timm_preset(architecture.name)
    from torchvision import models

    weights = models.get_model_weights(architecture.name)
    preset: object = weights.DEFAULT.transforms()
    wanted = architecture.arguments.get("image_size")
    return preset if wanted is None else _resize_preset(list(weights), preset, int(wanted))


def _resize_preset(weights: Iterable[Any], preset: Any, size: int) -> object:
    """Return the published preset for pictures of that size, else the default one with that size."""
    for entry in [preset, *(weight.transforms() for weight in weights)]:
        if entry.crop_size == [size]:
            return entry
    from torchvision.transforms._presets import ImageClassification

    return ImageClassification(
        crop_size=size,
        resize_size=round(size * preset.resize_size[0] / preset.crop_size[0]),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation,
        antialias=preset.antialias,
    )


def _timm_preset(name: str) -> object | None:
    import timm
    from timm.data.config import resolve_data_config
    from timm.data.transforms_factory import create_transform

    config = timm.get_pretrained_cfg(name)
    if config is None:
        return None
    data = resolve_data_config({}, pretrained_cfg=dataclasses.asdict(config))
    preset: object = create_transform(**data, is_training=False)
    return preset


def flatten_preset(preset: Any) -> list[Stage]:
    """Return a preset's stages in order, each with its usual name; applying them equals calling the preset."""
    from torchvision import transforms
    from torchvision.transforms import v2
    from torchvision.transforms._presets import ImageClassification, ObjectDetection, SemanticSegmentation

    if preset is None:
        return []
    # Subclasses may do more in `forward`, so only the class itself is split into stages.
    if type(preset) is ImageClassification:
        return [
            ("Resize", transforms.Resize(preset.resize_size, preset.interpolation, antialias=preset.antialias)),
            ("CenterCrop", transforms.CenterCrop(preset.crop_size)),
            ("ToTensor", ToTensor()),
            ("Normalize", transforms.Normalize(preset.mean, preset.std)),
        ]
    if type(preset) is ObjectDetection:
        return [("ToTensor", ToTensor())]
    if type(preset) is SemanticSegmentation:
        stages: list[Stage] = [("ToTensor", ToTensor()), ("Normalize", transforms.Normalize(preset.mean, preset.std))]
        if isinstance(preset.resize_size, list):
            resize = transforms.Resize(preset.resize_size, preset.interpolation, antialias=preset.antialias)
            stages.insert(0, ("Resize", resize))
        return stages
    if isinstance(preset, ProcessorPreset):
        return [(type(stage).__name__, stage) for stage in preset.stages]
    if type(preset) in (transforms.Compose, v2.Compose):
        return [stage for inner in preset.transforms for stage in flatten_preset(inner)]
    if type(preset) is nn.Sequential:
        return [stage for inner in preset for stage in flatten_preset(inner)]
    if not callable(preset):
        raise ModelError(f"A preset must be callable, but this is a {type(preset).__name__}.", hint="Give a transform.")
    name = getattr(preset, "__name__", type(preset).__name__)
    return [("ToTensor" if name == "MaybeToTensor" else name, preset)]


class ResizeMask(nn.Module):
    """A mask, resized with its picture: each pixel keeps a class number, none is a mean of two."""

    def __init__(self, size: list[int]) -> None:
        super().__init__()
        self.size = list(size)

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        from torchvision.transforms import InterpolationMode, functional

        plain = mask.as_subclass(torch.Tensor)[None]
        resized: torch.Tensor = functional.resize(plain, self.size, InterpolationMode.NEAREST)
        return resized[0]

    def extra_repr(self) -> str:
        return f"size={self.size}"


def mask_transform(stages: Iterable[Any]) -> ResizeMask | None:
    """Return what resizes a mask as these stages resize its picture; None if none of them does."""
    for stage in stages:
        if type(stage).__name__ == "Resize":
            size = stage.size
            return ResizeMask([int(size)] if isinstance(size, int) else [int(side) for side in size])
    return None


def expand_preset(value: Any) -> list[Stage] | None:
    """Return the stages inside a torchvision preset; None for anything else."""
    known = ("ImageClassification", "ObjectDetection", "SemanticSegmentation")
    return flatten_preset(value) if type(value).__name__ in known else None
