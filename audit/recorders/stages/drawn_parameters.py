"""What a random stage drew: captured where the stage itself asks for its parameters.

torchvision v2 calls `make_params`, v1 calls `get_params`; for the length of one call the stage's own
instance answers through a listener that passes the values on untouched. Nothing is drawn here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from audit.recorders.stages.describe import as_stable_json

_HOOKS = ("make_params", "get_params")


class Listener:
    """Observes what one stage draws during one call."""

    __slots__ = ("_names", "_stage", "drawn")

    def __init__(self, stage: Any, names: tuple[str, ...]) -> None:
        self._stage = stage
        self._names = names
        self.drawn: Any = None

    def attach(self) -> None:
        """Begin to observe."""
        for name in self._names:
            self._stage.__dict__[name] = self._observe(getattr(self._stage, name))

    def detach(self) -> None:
        """Leave the stage as it was."""
        for name in self._names:
            self._stage.__dict__.pop(name, None)

    def _observe(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observe(*args: Any, **kwargs: Any) -> Any:
            drawn = original(*args, **kwargs)
            # The first answer is the stage's own; a stage may ask again through another.
            if self.drawn is None:
                self.drawn = drawn
            return drawn

        return observe


def hooks_of(stage: Any) -> tuple[str, ...]:
    """Return which methods of a stage give away what it draws; none for most."""
    if not hasattr(stage, "__dict__"):
        return ()
    return tuple(name for name in _HOOKS if callable(getattr(stage, name, None)) and name not in stage.__dict__)


def says_random(stage: Any) -> bool | None:
    """Return whether a stage draws at all, where its library says so; None for any other."""
    match _library(stage):
        case "albumentations" if hasattr(stage, "should_apply"):
            # Every transform has these two; most that draw nothing leave them as they are.
            own = [getattr(type(stage), name, None) for name in ("get_params", "get_params_dependent_on_data")]
            plain = all(getattr(method, "__qualname__", "").startswith("BasicTransform.") for method in own)
            return not plain or getattr(stage, "p", 1.0) < 1
        case "monai":
            return hasattr(stage, "_do_transform") or callable(getattr(stage, "randomize", None))
        case "torchvision" if _draws(stage):
            return True
        case "kornia":
            return callable(getattr(stage, "generate_parameters", None)) or hasattr(stage, "_params")
    return None


def is_known_transform(stage: Any) -> bool:
    """Return whether a stage is an object of torchvision or of ours that calls no code of the user's: such a class shows what it draws."""
    return _library(stage) in ("torchvision", "audit") and type(stage).__name__ != "Lambda"


def _draws(stage: Any) -> bool:
    """Return whether a v2 transform has parameters of its own to draw, or is the one that draws without."""
    asked = getattr(getattr(type(stage), "make_params", None), "__qualname__", "Transform.make_params")
    return bool(asked != "Transform.make_params") or type(stage).__name__ == "GaussianNoise"


def asks_when_fired(stage: Any) -> bool:
    """Return whether a v2 transform always draws through `make_params`: torchvision's own call does, RandAugment's does not."""
    call = getattr(getattr(type(stage), "forward", None), "__qualname__", "")
    return callable(getattr(stage, "make_params", None)) and call in (
        "Transform.forward",
        "_RandomApplyTransform.forward",
    )


def last_parameters(stage: Any) -> dict[str, Any] | None:
    """Return what a stage keeps of its last call, where its library is known to; None where it is not."""
    match _library(stage):
        case "albumentations" if isinstance(params := getattr(stage, "params", None), dict):
            return {key: value for key, value in params.items() if key != "shape"} | {"fired": bool(params)}
        case "monai" if isinstance(fired := getattr(stage, "_do_transform", None), bool):
            return {"fired": fired}
        case "kornia" if isinstance(params := getattr(stage, "_params", None), dict):
            return _kornia(params)
        case "kornia" if isinstance(items := getattr(stage, "_params", None), list):
            return {item.name: _kornia(item.data) for item in items if isinstance(item.data, dict)}
    return None


def _library(stage: Any) -> str:
    return type(stage).__module__.partition(".")[0]


def _kornia(params: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in params.items() if key not in ("batch_prob", "forward_input_shape")}
    chances = params.get("batch_prob")
    return kept if chances is None else kept | {"fired": bool((chances > 0.5).any())}


def names_of(stage: Any) -> list[str] | None:
    """Return names for the values that a v1 `get_params` returns, read off its return statement where that is plain."""
    function = getattr(type(stage), "get_params", None)
    if function is None or callable(getattr(stage, "make_params", None)):
        return None
    return _KNOWN.get(type(stage).__name__) or _read_return_names(function)


_KNOWN = {
    "RandomCrop": ["top", "left", "height", "width"],
    "RandomResizedCrop": ["top", "left", "height", "width"],
    "RandomRotation": ["angle"],
    "RandomAffine": ["angle", "translate", "scale", "shear"],
    "RandomPerspective": ["startpoints", "endpoints"],
    "RandomErasing": ["top", "left", "height", "width", "value"],
    "ColorJitter": ["order", "brightness", "contrast", "saturation", "hue"],
    "GaussianBlur": ["sigma"],
    "ElasticTransform": ["displacement"],
    "AutoAugment": ["policy", "probabilities", "signs"],
}


def _read_return_names(function: Callable[..., Any]) -> list[str] | None:
    try:
        source = inspect.getsource(function).strip().splitlines()[-1].strip()
    except (OSError, TypeError):
        return None
    if not source.startswith("return "):
        return None
    words = [word.strip() for word in source[len("return ") :].split(",")]
    return words if all(word.isidentifier() for word in words) else None


def as_json(stage: Any, parameters: Any) -> str | None:
    """Return the drawn parameters as JSON text; None when the stage drew nothing."""
    if parameters is None or parameters == {}:
        return None
    if not isinstance(parameters, dict):
        values = list(parameters) if isinstance(parameters, (tuple, list)) else [parameters]
        names = names_of(stage)
        if names is None or len(names) != len(values):
            names = [str(position) for position in range(len(values))]
        parameters = dict(zip(names, values, strict=True))
    return json.dumps({str(key): as_stable_json(value) for key, value in parameters.items()}, ensure_ascii=False)
