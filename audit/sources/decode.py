"""Turn the bytes of a file into what a pipeline starts from: a picture, an array or a text.

Pictures keep their own mode and orientation, as torch's loaders leave them, and are loaded in full, so that a
damaged file fails here and not in a later stage. An animation gives its first frame. It refuses formats whose reading
runs another program (EPS, WMF) or that Pillow only recognises without being able to read them, and arrays that need
pickle.
"""

from __future__ import annotations

import functools
from io import BytesIO
from typing import TYPE_CHECKING

from audit.picture_formats import open_picture, picture_formats

if TYPE_CHECKING:
    import numpy
    from PIL import Image

ARRAY = ".npy"
TEXT = ".txt"
_ARRAY_MAGIC = b"\x93NUMPY"


@functools.cache
def sample_suffixes() -> frozenset[bytes]:
    """Return the lower-case endings of files that are samples: pictures and arrays."""
    from PIL import Image

    formats = set(picture_formats())
    known = {suffix for suffix, name in Image.registered_extensions().items() if name in formats}
    return frozenset(suffix.encode() for suffix in known | {ARRAY})


def decode_picture(data: bytes) -> Image.Image:
    """Return the picture in its own mode, fully loaded; a damaged one raises Pillow's error."""
    try:
        picture = open_picture(data)
    except OSError as error:
        from PIL import UnidentifiedImageError

        if not isinstance(error, UnidentifiedImageError):
            raise
        # Pillow's message contains the address of a buffer, which differs each time.
        what = f"its {len(data)} bytes start with {data[:8]!r}" if data else "it is empty"
        raise UnidentifiedImageError(f"not a picture in a known format: {what}") from None
    picture.load()
    return picture


def decode_array(data: bytes) -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]:
    """Return the array of a .npy file; raise ValueError if it holds Python objects."""
    import numpy as np

    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = np.load(BytesIO(data), allow_pickle=False)
    return array


def decode_sample(data: bytes) -> object:
    """Return a picture or an array, depending on the first bytes."""
    if data.startswith(_ARRAY_MAGIC):
        return decode_array(data)
    return decode_picture(data)
