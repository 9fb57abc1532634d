"""The normalisation that a checkpoint states, or that the library publishes for its architecture.

It is a statement about the model's input, stored with the run, so that a check can compare it with the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.models.classes import as_mapping

#: Names under which training scripts and libraries store mean and standard deviation.
_PAIRS = (
    *(("mean", "std"), ("image_mean", "image_std"), ("pixel_mean", "pixel_std"), ("norm_mean", "norm_std")),
    ("img_mean", "img_std"),
)
#: Entries of a checkpoint that may hold them.
_PLACES = (
    *("normalize", "normalise", "normalization", "preprocessing", "preprocess", "transform", "transforms"),
    *("data_config", "pretrained_cfg", "default_cfg", "config", "args", "hparams", "hyper_parameters"),
)

ExpectedInput = dict[str, Any]


def find_stated_input(checkpoint: Mapping[str, Any], says: str = "the checkpoint") -> ExpectedInput | None:
    """Return the mean and std that a checkpoint states, at its top level or in a usual entry; None if it states none."""
    for place in (checkpoint, *(as_mapping(checkpoint.get(name)) for name in _PLACES)):
        for mean_name, std_name in _PAIRS if place else ():
            assert place is not None
            mean, std = _numbers(place.get(mean_name)), _numbers(place.get(std_name))
            if mean and std and len(mean) == len(std) and all(value > 0 for value in std):
                return _scale(mean, std) | {"says": says}
    return None


def find_published_input(preset: object | None, arch: str | None) -> ExpectedInput | None:
    """Return the mean and std of an architecture's preset; None if it does not normalise."""
    for stage in (preset, *(getattr(preset, "transforms", None) or ())):
        if stage is None:
            continue
        mean, std = _numbers(getattr(stage, "mean", None)), _numbers(getattr(stage, "std", None))
        if mean and std:
            return {"mean": mean, "std": std, "says": f"the published preset of {arch}", "keeps_aspect": True}
    return None


def _scale(mean: list[float], std: list[float]) -> ExpectedInput:
    """Return them for pictures in 0–1, though they may be stated for 0–255."""
    scale = 255 if max(mean) > 2 else 1
    return {"mean": [value / scale for value in mean], "std": [value / scale for value in std]}


def _numbers(value: object) -> list[float] | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [float(value)]
    try:
        found = [float(item) for item in value]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None
    return found if 1 <= len(found) <= 4 else None
