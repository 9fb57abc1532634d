"""The exact numbers of a picture, for the viewer: laid out as height, width, channels, in types that a browser has.

Nothing here scales or shrinks: what a pixel shows under the pointer is what the stage returned.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from audit.errors import AuditError
from audit.values.thumbnail import to_viewable

Values = npt.NDArray[Any]

_LARGEST = 256 * 2**20
#: What JavaScript has a typed array for; other types are widened to one that holds every value.
_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_WIDER = {"bool": "uint8", "float16": "float32"}
#: How deep a picture is looked for in what a stage returned, such as (picture, target).
_DEPTH = 3


class NotAPicture(AuditError):
    """The output of a stage cannot be shown as a picture."""


def picture_values(value: object) -> Values:
    """Return the first picture in a stage's output as an array of height, width and channels."""
    found = _find_first(value, _DEPTH)
    if found is None:
        raise NotAPicture("The output of this stage is not a picture.", hint="Read it with: audit trace … --export DIR")
    if found.nbytes > _LARGEST:
        raise NotAPicture(f"This picture has {found.nbytes:,} bytes; the viewer shows at most {_LARGEST:,}.")
    return found


def as_levels(values: Values) -> Values:
    """Return floats from 0 to 1 as levels up to 255, so that a picture does not look brighter once it is scaled."""
    if values.dtype.kind != "f" or not np.isfinite(values).all() or values.min() < 0 or not 0.05 < values.max() <= 1:
        return values
    return np.round(values.astype(np.float32) * 255).astype(np.uint8)


def pack(values: Values) -> bytes:
    """Return the values as bytes: the length of a JSON header, the header, the numbers, little-endian."""
    name = values.dtype.name if values.dtype.name in _TYPES else _WIDER.get(values.dtype.name, "float64")
    plain = np.ascontiguousarray(values, np.dtype(name).newbyteorder("<"))
    head = {"dtype": values.dtype.name, "stored": name, "shape": list(plain.shape)}
    text = json.dumps(head).encode()
    text += b" " * (-(4 + len(text)) % 8)  # a typed array must begin at a multiple of its width
    return struct.pack("<I", len(text)) + text + plain.tobytes()


def _find_first(value: object, depth: int) -> Values | None:
    if isinstance(value, Image.Image):
        shown = to_viewable(value) if value.mode in ("P", "PA") else value
        return _to_height_width_channels(np.asarray(shown))
    if isinstance(value, np.ndarray):
        return _to_height_width_channels(value)
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor, in the process that derives
        return _to_height_width_channels(_numbers(value))
    if depth and isinstance(value, Mapping):
        return next((found for item in value.values() if (found := _find_first(item, depth - 1)) is not None), None)
    if depth and isinstance(value, (list, tuple)):
        return next((found for item in value if (found := _find_first(item, depth - 1)) is not None), None)
    return None


def _numbers(tensor: Any) -> Values:
    plain = tensor.detach().cpu()
    try:
        return np.asarray(plain.numpy())
    except TypeError:  # bfloat16 and the like: numpy has no name for them
        return np.asarray(plain.float().numpy())


def _to_height_width_channels(values: Values) -> Values | None:
    """Return the array as height, width, channels; None where it is not a picture."""
    while values.ndim > 3 and values.shape[0] == 1:
        values = values[0]
    if values.dtype.kind not in "biuf" or values.ndim not in (2, 3) or not values.size:
        return None
    if values.ndim == 2:
        values = values[..., None]
    elif not _channels_last(values.shape):
        values = values.transpose(1, 2, 0)
    return values if min(values.shape[:2]) > 1 else None


def _channels_last(shape: tuple[int, ...]) -> bool:
    first, last = shape[0], shape[2]
    if last in (1, 3, 4):
        return True
    return first not in (1, 3, 4) and last <= first
