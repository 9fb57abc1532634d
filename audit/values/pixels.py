"""The pixels of an RGB picture where Pillow keeps them, four bytes each, without copying them first.

Pillow stores RGB as R, G, B and a padding byte whose value depends on what made the picture (255 after decoding, 0
after resizing), so the padding is overwritten in a scratch copy before anything is computed. The way in is the Arrow
C data interface, whose struct layout is frozen by specification; where Pillow cannot offer it (a picture larger than
one of its memory blocks), the pixels are copied instead. Nothing here writes to the picture.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from audit.values import native as loops

_PADDING_BITS = np.uint32(0xFF000000)
_KEEP = 1 << 20  # pixels; a larger scratch buffer is made and dropped

_scratch = threading.local()
#: The class of what holds the pixels of a picture.
CORE = type(Image.new("L", (1, 1)).im)
#: Classes of pictures that have their pixels where Pillow's own class has them. That of JPEG files is added when one is seen:
#: a picture of it has `tile` until it is decoded.
PLAIN_CLASSES: set[type] = {Image.Image}

Sums = tuple[int, int, int, int, int]


class _ArrowArray(ctypes.Structure):
    pass


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def pad_rgb(image: Image.Image) -> npt.NDArray[np.uint32]:
    """Return one word per pixel, bytes R, G, B, 255: equal to `image.convert("RGBX").tobytes()`.

    The array is this thread's scratch space and is overwritten by the next call.
    """
    return sum_rgb(image)[0]


def sum_rgb(image: Image.Image) -> tuple[npt.NDArray[np.uint32], Sums | None]:
    """Return the same as `padded_rgb`, and (min, max, sum, sum of squares, zeros) of all bands where the compiled loops give them along."""
    count = image.width * image.height
    out = scratch(count)
    if not count:
        return out, None
    source = raw_rgb(image)
    if loops.native is not None:
        return out, loops.native.rgbx(source, out)
    if isinstance(source, bytes):
        np.bitwise_or(np.frombuffer(source, "<u4"), _PADDING_BITS, out=out)
    else:
        _copy(source, count, out)
    return out, None


def plain_pixels(image: Any) -> Any:
    """Return the pixels of an RGB picture as the capsule that owns them, where it is in memory; else None.

    As `load` and the properties of Pillow's class give them, without running their code for each picture.
    """
    own = image.__dict__
    size, pixels = own.get("_size"), own.get("_im")
    if (
        (type(image) is not Image.Image and not _is_loaded_jpeg(image))
        or type(pixels) is not CORE
        or own.get("_mode") != "RGB"
        or not size
    ):
        return None
    return None if 0 in size or own.get("palette") is not None else pixels.__arrow_c_array__()


def _is_loaded_jpeg(image: Any) -> bool:
    kind = type(image)
    if kind not in PLAIN_CLASSES:
        if (kind.__module__, kind.__qualname__) != ("PIL.JpegImagePlugin", "JpegImageFile"):
            return False
        PLAIN_CLASSES.add(kind)
    return bool(image.__dict__.get("tile") == [])


def raw_rgb(image: Image.Image) -> Any:
    """Return Pillow's own pixels as the capsule that owns them, or a copy where it cannot offer that."""
    try:
        pixels = plain_pixels(image)
        if pixels is not None:
            return pixels
        image.load()
        return image.im.__arrow_c_array__()
    except (ValueError, AttributeError, MemoryError):
        return image.tobytes("raw", "RGBX")


def _copy(capsule: Any, count: int, out: npt.NDArray[np.uint32]) -> None:
    address = _address(capsule, count)
    words = np.frombuffer(memoryview((ctypes.c_uint32 * count).from_address(address)), np.uint32)
    np.bitwise_or(words, _PADDING_BITS, out=out)
    # Only now may the caller release the capsule: it owns the memory behind `words`.
    del words


def _address(capsule: Any, count: int) -> int:
    outer = _ArrowArray.from_address(_pointer(capsule, b"arrow_array"))
    inner = outer.children[0].contents
    address = inner.buffers[1]
    if outer.length != count or outer.offset or inner.length != 4 * count or inner.offset or not address:
        raise ValueError("Pillow's Arrow export of an RGB picture has an unknown layout")
    return int(address)


def scratch(count: int) -> npt.NDArray[np.uint32]:
    """Return so many words of memory of this thread, which the next call returns again: fresh memory costs more than a copy."""
    if count > _KEEP:
        return np.empty(count, np.uint32)
    kept: npt.NDArray[np.uint32] | None = getattr(_scratch, "words", None)
    if kept is None or kept.size < count:
        kept = _scratch.words = np.empty(count, np.uint32)
    return kept[:count]
