"""The picture formats that audit reads: those that Pillow decodes by itself.

A stored or a user's picture must not start another program, as Pillow does for EPS and WMF.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from io import BytesIO
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

_REFUSED_FORMATS = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})
_COMMON = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")


@functools.cache
def picture_formats() -> tuple[str, ...]:
    """Return the picture formats to try, by Pillow's names."""
    from PIL import Image

    Image.init()
    known = set(Image.OPEN) - _REFUSED_FORMATS
    # Pillow asks each format in turn whether the picture is its own, so the common ones go first.
    return (*(name for name in _COMMON if name in known), *sorted(known - set(_COMMON)))


def open_picture(file: bytes | IO[bytes]) -> Image.Image:
    """Return a picture that is decoded when it is used, in a format that can be read without another program."""
    return _opener()(BytesIO(file) if isinstance(file, bytes) else file)


@functools.cache
def _opener() -> Callable[[IO[bytes]], Image.Image]:
    """Return what opens a picture; an import statement for each picture takes several times as long."""
    from PIL import Image

    return lambda file: Image.open(file, formats=picture_formats())
