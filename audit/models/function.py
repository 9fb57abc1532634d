"""Models that the user's own code builds: `module:function` or `FILE.py:function`.

The user names this code, so it runs without further trust. What it raises is reported with its file and line.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from audit.errors import ModelError
from audit.models.complete_model import complete_model, identify
from audit.models.loaded_model import LoadedModel, LoadOptions
from audit.usercode import explain_user_errors, import_named, is_code_name, load_module

kind = "a function"
executes_code = False  # only the code that the user named


def recognise(spec: str) -> bool:
    """Return whether this is `module:function`, `FILE.py:function` or `FILE.py`, and not an existing model file."""
    return is_code_name(spec)


def load(spec: str, options: LoadOptions) -> LoadedModel:
    """Return the model that the function returns; its digest is that of its weights."""
    module = build_module(resolve(spec))
    loaded = LoadedModel(module=module, spec=spec, digest=weights_digest(module), format="function")
    names = getattr(module, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        loaded.classes = list(names)
    return complete_model(loaded, *identify(module, options.arch), device=options.device)


def weights_digest(module: nn.Module) -> str:
    """Return SHA-256 over the state dict in order: each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            continue
        _require_values(name, value)
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _require_values(name: str, weight: torch.Tensor) -> None:
    if nn.parameter.is_lazy(weight):
        raise ModelError(
            f"The weight {name} of the model has no values yet: it belongs to a lazy module, such as nn.LazyLinear.",
            hint="Call the model once with a batch of the right shape in the function that returns it.",
        )
    if weight.is_meta:
        raise ModelError(
            f"The weight {name} of the model has no values: it is on torch's meta device.",
            hint="Load the weights in the function that returns the model.",
        )


def resolve(spec: str, *, option: str = "--model") -> Callable[..., Any]:
    """Return the function, class or module object that `spec` names. Nothing but the name of code is imported."""
    if not is_code_name(spec):
        raise ModelError(
            f"{option} {spec} does not name a function.", hint="Write FILE.py:function or module:function."
        )
    place, _, attribute = (spec, "", "model") if spec.endswith(".py") else spec.rpartition(":")
    module = _import_file(Path(place), option) if place.endswith(".py") else import_named(place, ModelError)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            own = [
                n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
            ]
            near = difflib.get_close_matches(attribute, own, n=1)
            hint = f"Did you mean {place}:{near[0]}? " if near else ""
            hint += (
                f"It defines {', '.join(own[:8]) or 'no function'}. Pass FILE.py:function, which returns an nn.Module."
            )
            raise ModelError(f"{option} {spec}: {place} has no {attribute!r}.", hint=hint).as_usage()
        found = getattr(found, part)
    if not callable(found):
        hint = "Pass a function without arguments that returns an nn.Module."
        raise ModelError(f"{option} {spec}: {attribute!r} is a {type(found).__name__}, not a function.", hint=hint)
    return found  # type: ignore[no-any-return]


def _import_file(path: Path, option: str) -> ModuleType:
    if not path.is_file():
        error = ModelError(f"{option}: there is no file {path}.", hint="Write FILE.py:function.")
        raise error.as_usage()
    return load_module(str(path), ModelError)


def build_module(builder: Callable[..., Any], state: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
    """Call the user's builder; if weights are given, pass the size of their last tensor as `num_classes`."""
    if isinstance(builder, nn.Module):
        return builder
    name = getattr(builder, "__qualname__", type(builder).__name__)
    arguments = _class_argument(builder, state)
    with explain_user_errors(f"Calling {name}({', '.join(f'{k}={v}' for k, v in arguments.items())})", ModelError):
        module = builder(**arguments)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{name} returned a {type(module).__name__}, not an nn.Module.", hint="Return the model alone."
        )
    return module


def _class_argument(builder: Callable[..., Any], state: Mapping[str, torch.Tensor] | None) -> dict[str, int]:
    last = next((tensor for tensor in reversed(state.values()) if tensor.dim()), None) if state else None  # type: ignore[call-overload]
    try:
        parameters = inspect.signature(builder).parameters
    except (TypeError, ValueError):
        return {}
    return {"num_classes": last.shape[0]} if last is not None and "num_classes" in parameters else {}
