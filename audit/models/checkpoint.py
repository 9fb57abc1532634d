"""The content of a checkpoint dict: its weights, and its metadata.

Plain weights are preferred to averaged ones (EMA), because they are what the other entries, such as the optimizer's,
belong to; averaged ones are used only if there are no others. A note reports the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from audit.models.classes import as_mapping

_PLAIN_KEYS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "net",
    "network",
    "weights",
    "params",
    "module",
)
_AVERAGED_KEYS = (
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "ema_model",
    "model_ema_state_dict",
    "ema",
    "params_ema",
)
_ARCH = ("arch", "architecture", "model_name", "model", "model_arch", "backbone")


def is_state_dict(value: object) -> bool:
    """Return whether this is a mapping of names to at least one tensor; torch also allows extra state of other types."""
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        return False
    rest = [name for name, entry in value.items() if not isinstance(entry, torch.Tensor)]
    return len(rest) < len(value) and all(name.endswith("_extra_state") for name in rest)


def find_weights(checkpoint: Mapping[str, Any]) -> tuple[object, str, list[str]] | None:
    """Return the state dict or whole module in a checkpoint, its entry, and notes; None if there is none."""
    averaged = [(name, inner) for name in _AVERAGED_KEYS if (inner := _weights_in(checkpoint.get(name))) is not None]
    for name in _PLAIN_KEYS:
        inner = _weights_in(checkpoint.get(name))
        if inner is not None:
            notes = [
                f"The averaged (EMA) weights in {entry!r} were not used; the weights in {name!r} were."
                for entry, _ in averaged
            ]
            return inner, name, notes
    if averaged:
        name, inner = averaged[0]
        return inner, name, [f"The averaged (EMA) weights in {name!r} were used: the file has no others."]
    others = [
        (str(name), value) for name, value in checkpoint.items() if is_state_dict(value) and "optim" not in str(name)
    ]
    if len(others) == 1:
        name, inner = others[0]
        return inner, name, [f"The weights were taken from the entry {name!r}."]
    return None


def _weights_in(value: object) -> object | None:
    if isinstance(value, nn.Module) or is_state_dict(value):
        return value
    if isinstance(value, Mapping):  # such as {"ema": {"module": {...}}}
        return next((value[name] for name in ("state_dict", "module", "model") if is_state_dict(value.get(name))), None)
    return None


def find_hinted_arch(checkpoint: Mapping[str, Any]) -> str | None:
    """Return the architecture that a checkpoint names, at its top level or in its training arguments."""
    places = [
        checkpoint,
        *(as_mapping(checkpoint.get(key)) for key in ("args", "hyper_parameters", "hparams", "config")),
    ]
    for place in places:
        for key in _ARCH if place else ():
            value = place.get(key) if place else None
            if isinstance(value, str) and value and "/" not in value.removeprefix("timm/") and ":" not in value:
                return value
    return None


def plain_facts(checkpoint: Mapping[str, Any]) -> dict[str, object]:
    """Return the entries that are text, numbers or short lists of them: an epoch, a score, the name of a pipeline."""
    return {str(name): value for name, value in checkpoint.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 10_000 and all(isinstance(item, str | int | float | bool) for item in value)
    return isinstance(value, str | int | float | bool)
