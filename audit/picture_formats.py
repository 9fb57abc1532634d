"""The picture formats that audit reads: those that Pillow decodes by itself.

A stored or a user's picture must not start another program, as Pillow does for EPS and WMF.
"""

from __future__ import annotations

import functools
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

_REFUSED = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})
_COMMON = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")


@functools.cache
def picture_formats() -> tuple[str, ...]:
    """Return the picture formats to try, by Pillow's names."""
    from PIL import Image

    Image.init()
    known = set(Image.OPEN) - _REFUSED
    # Pillow asks each format in turn whether the picture is its own, so the common ones go first.
    return (*(name for name in _COMMON if name in known), *sorted(known - set(_COMMON)))


def open_picture(file: bytes | IO[bytes]) -> Image.Image:
    """Return a picture that is decoded when it is used, in a format that can be read without another program."""
    picture: Image.Image = _pillow().open(BytesIO(file) if isinstance(file, bytes) else file, formats=picture_formats())
    return picture


@functools.cache
def _pillow() -> Any:
    """Return Pillow's module; an import statement for each picture takes several times as long."""
    from PIL import Image

    return Image
