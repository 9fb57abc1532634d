"""What a torchvision tv_tensor means beside its numbers: its class, box format, canvas size and clamping mode."""

from __future__ import annotations

import json
import sys
from typing import Any

from audit.values import hashing
from audit.values.base import damage_error

_KEPT_ATTRIBUTES = ("canvas_size", "clamping_mode", "format")
_MODULE = "torchvision.tv_tensors"


def mode_of(value: Any) -> str | None:
    """Return what a subclass adds to a plain tensor; None for a plain one."""
    torch: Any = sys.modules["torch"]
    if type(value) is torch.Tensor:
        return None
    name = type(value).__name__
    if not type(value).__module__.startswith(_MODULE) and not _is_tv_tensor(value):
        return name
    canvas = getattr(value, "canvas_size", None)
    if canvas is None:
        return f"tv_tensors.{name}" if type(value).__module__.startswith(_MODULE) else name
    details = [str(value.format.value)] if hasattr(value, "format") else []
    details.append("x".join(map(str, canvas)))
    clamping = getattr(value, "clamping_mode", "soft")
    return f"{name}({', '.join(details if clamping == 'soft' else [*details, str(clamping)])})"


def metadata_of(value: Any) -> dict[str, Any] | None:
    """Return what rebuilds a tv_tensor, as JSON; None for everything else."""
    if not type(value).__module__.startswith(_MODULE):
        return None
    return {"type": type(value).__name__} | _kept_attributes(value)


def _kept_attributes(value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name in _KEPT_ATTRIBUTES:
        if hasattr(value, name):
            found = getattr(value, name)
            kept[name] = list(found) if name == "canvas_size" else getattr(found, "value", found)
    return kept


def _is_tv_tensor(value: Any) -> bool:
    found: Any = sys.modules.get(_MODULE)
    return found is not None and isinstance(value, found.TVTensor)


def class_of(value: Any) -> dict[str, Any] | None:
    """Return what tells a tensor of another class from a plain one, as JSON; None for a plain one and for torchvision's own classes."""
    torch: Any = sys.modules["torch"]
    own = type(value)
    if own is torch.Tensor or own.__module__.startswith(_MODULE):
        return None
    kept: dict[str, Any] = {"type": f"{own.__module__}.{own.__qualname__}"}
    if _is_tv_tensor(value):
        kept |= _kept_attributes(value)
    return kept


def encode_metadata(metadata: dict[str, Any] | None, since: int = 2) -> bytes:
    """Return what of it is part of a digest, after the elements; nothing for a plain tensor."""
    if metadata is None or hashing.version() < since:
        return b""
    return b"|" + json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode()


def rebuild(tensor: Any, kept: dict[str, Any] | None) -> Any:
    """Return the tv_tensor of these elements; the tensor itself where it was a plain one."""
    if kept is None:
        return tensor
    from torchvision import tv_tensors

    made = getattr(tv_tensors, str(kept["type"]), None)
    if made is None:
        raise damage_error(f"this torchvision has no tv_tensor {kept['type']!r}")
    extra = {key: kept[key] for key in _KEPT_ATTRIBUTES if key in kept}
    if "canvas_size" in extra:
        extra["canvas_size"] = tuple(extra["canvas_size"])
    return made(tensor, **extra)


def as_form(row: Any, form: str | None) -> Any:
    """Return a row of a batch as its sample was before batches were made of it: an array, a Parameter, or a tv_tensor such as an Image."""
    if form == "array":
        return row.numpy()
    if form == "Parameter":
        torch: Any = sys.modules["torch"]
        return torch.nn.Parameter(row, requires_grad=False)
    if form is not None and form.startswith("tv_tensors."):
        return rebuild(row, {"type": form.removeprefix("tv_tensors.")})
    return row
