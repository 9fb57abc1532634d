"""Pictures as 8-bit RGB, by Pillow's own conversion."""

from __future__ import annotations

from typing import Any

from PIL import Image


def as_rgb(picture: Image.Image) -> Image.Image:
    """Return what `picture.convert("RGB")` returns, without a copy of pixels that are RGB: nothing else may use the picture."""
    picture.load()
    if picture.mode == "RGB" and not picture.readonly and _is_copied_by_pillow(type(picture)):
        return picture._new(picture.im)
    return picture.convert("RGB")


def _is_copied_by_pillow(kind: type[Image.Image]) -> bool:
    """Return whether Pillow's own code would copy a picture: not that of a plugin, nor what the user has put there."""
    return kind.__module__.startswith("PIL.") and _is_pillows(kind.convert) and _is_pillows(kind.copy)


def _is_pillows(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == Image.__file__
