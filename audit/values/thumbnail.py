"""Small pictures for previews, and the picture that an array may be taken for.

A preview is made to be cheap: pictures are averaged over boxes (bytes and float32) or thinned out (the rest) before
anything is computed, and numbers are scaled between the extremes of what is left. It refuses to be exact; `encode` is
for that. With and without the compiled loops the pictures differ by rounding at most; but only with them has a tensor that
shows a picture, as ToTensor gives it, the preview of that picture.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from audit.values import native as loops
from audit.values.base import Preview
from audit.values.pixels import raw_rgb

SIDE = 96
_QUALITY = 75
_START_OF_SCAN = 0xDA  # the last segment of a JPEG before its data
_FACTOR = 256  # a box of more does not fit the sums
_BANDS = (1, 3, 4)
#: Pictures of no more bytes are kept as they are: 32 by 32 pixels in colour.
TINY = 4096


def of_image(image: Image.Image) -> Preview:
    """Return a picture whose longer side is at most `SIDE`: a JPEG, or a PNG where it is tiny."""
    factor = -(-max(image.size) // SIDE)
    if image.mode == "RGB" and loops.native is not None:
        made = of_pixels(raw_rgb(image), *image.size)
        if made is not None:
            return made
    if factor > 1:
        if image.mode in ("1", "P", "PA") or image.mode.startswith("I;16"):
            image = image.resize((-(-image.width // factor), -(-image.height // factor)), Image.Resampling.NEAREST)
        else:
            image = image.reduce(factor)
    return _jpeg(to_viewable(image))


def of_pixels(pixels: Any, width: int, height: int) -> Preview | None:
    """Return the same as `of_image`, of the pixels of an RGB picture with four bytes each; None where they are shown as they are."""
    native: Any = loops.native
    if 3 * width * height <= TINY:
        return Preview("image/png", native.tiny(pixels, height, width))
    factor = -(-max(width, height) // SIDE)
    if factor == 1 or factor > _FACTOR:
        return None
    small = native.shrink(pixels, False, 1, height, width, 4, 3, factor)
    return of_bytes(small, -(-height // factor), -(-width // factor), 3)


def of_bytes(pixels: bytes, height: int, width: int, count: int) -> Preview:
    """Return a JPEG of pixels of so many bands, interleaved."""
    mode = "L" if count == 1 else "RGB"
    if count != 4 and loops.native is not None:
        made = loops.native.jpeg(pixels, height, width, _jpeg_head(mode))
        if made is not None:
            return Preview("image/jpeg", made)
    return Preview("image/jpeg", _save(_from_bytes(pixels, height, width, count)))


def of_array(values: Any) -> Preview | None:
    """Return a JPEG, or a PNG where it is tiny, of an array that looks like a picture, else None."""
    laid_out = _as_bands(values)
    if laid_out is None:
        return None
    if (tiny := _encode_tiny(values, laid_out)) is not None:
        return tiny
    picture = _average_boxes(values, laid_out) or as_picture(values, SIDE)
    return None if picture is None else _jpeg(picture)


def to_viewable(image: Image.Image) -> Image.Image:
    """Return `image` as L or RGB, whatever its mode; wide integers and floats are scaled between their extremes."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_levels(np.asarray(image)))
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode == "RGBa":
        image = image.convert("RGBA")
    if image.mode == "LAB":  # Pillow converts it only with a colour profile; lightness alone is recognisable
        return image.getchannel(0)
    shown = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    shown.info = {}  # a palette's transparency means nothing in RGB
    return shown


def as_picture(values: Any, side: int | None = None) -> Image.Image | None:
    """Return the picture that a 2-D, CHW or HWC array of 1, 3 or 4 channels shows, thinned out to `side`; else None."""
    values = _as_bands(values)
    if values is None:
        return None
    if side is not None:
        step = -(-max(values.shape[:2]) // side)
        values = values[::step, ::step]
    levels = _levels(values)
    return Image.fromarray(levels) if side is None and levels.shape[2] > 1 else _from_levels(levels)


def _as_bands(values: Any) -> Any | None:
    """Return the array as height, width, bands where it looks like a picture."""
    shape = values.shape
    if values.dtype.kind not in "biuf" or len(shape) not in (2, 3) or not values.size:
        return None
    if len(shape) == 2:
        values = values[..., None]
    elif shape[2] not in _BANDS:
        if shape[0] not in _BANDS:
            return None
        values = values.transpose(1, 2, 0)
    return None if min(values.shape[:2]) < 2 else values


def _average_boxes(values: Any, bands: Any) -> Image.Image | None:
    """Return the picture made smaller by averaging boxes; None where it is small already or of another type."""
    height, width, count = bands.shape
    factor = -(-max(height, width) // SIDE)
    floats = values.dtype == np.float32
    if factor == 1 or factor > _FACTOR or not (floats or values.dtype == np.uint8) or not values.dtype.isnative:
        return None
    if loops.native is None or not values.flags.c_contiguous:
        return _average_by_pillow(bands, count, factor)
    small = loops.native.shrink(values, floats, *_layout(values, bands), factor)
    return None if small is None else _from_bytes(small, -(-height // factor), -(-width // factor), count)


def _layout(values: Any, bands: Any) -> tuple[int, ...]:
    """Return planes, height, width, and the bands of a pixel, as they lie in memory."""
    height, width, count = bands.shape
    planar = count > 1 and bands.strides[2] != values.itemsize
    return (count, height, width, 1, 1) if planar else (1, height, width, count, count)


def _encode_tiny(values: Any, bands: Any) -> Preview | None:
    """Return a PNG of a float32 or uint8 picture of a few pixels; None for every other one."""
    height, width, count = bands.shape
    floats = values.dtype == np.float32
    if height * width * count > TINY or count == 4 or not (floats or values.dtype == np.uint8):
        return None
    if loops.native is None or not values.flags.c_contiguous or not values.dtype.isnative:
        return None
    pixels = loops.native.shrink(values, floats, *_layout(values, bands), 1)
    return None if pixels is None else _png(pixels, height, width, count)


def _average_by_pillow(bands: Any, count: int, factor: int) -> Image.Image | None:
    planes = [np.asarray(Image.fromarray(np.ascontiguousarray(bands[..., k])).reduce(factor)) for k in range(count)]
    means = np.stack(planes, axis=2)
    if means.dtype != np.uint8 and not np.isfinite(means.max() - means.min()):
        return None
    return _from_levels(_levels(means))


def _from_bytes(pixels: bytes, height: int, width: int, count: int) -> Image.Image:
    if count == 4:
        return _from_levels(np.frombuffer(pixels, np.uint8).reshape(height, width, 4))
    mode = "L" if count == 1 else "RGB"
    return Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)


def _from_levels(levels: Any) -> Image.Image:
    return Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels[..., :3])


def _levels(values: Any) -> Any:
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * 255
    # Planes that were transposed into HWC are copied to a new layout here, once, while they are small.
    wide = values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64, order="C")
    with np.errstate(all="ignore"):
        low, high = wide.min(), wide.max()
        if not np.isfinite(high - low):
            wide = np.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0) / 4
            low, high = wide.min(), wide.max()
        factor = 255 / (high - low) if high > low else np.float32(0)
        if not np.isfinite(factor):  # a span below what a float can divide by
            factor = np.float32(0)
        wide -= low
        wide *= factor
        return np.minimum(wide, 255, out=wide).astype(np.uint8)


def _png(pixels: bytes, height: int, width: int, bands: int) -> Preview:
    """Return an uncompressed PNG: for a few pixels that takes a fraction of a JPEG encoder's time, and `TINY` bytes of room at most."""
    lines = np.zeros((height, 1 + width * bands), np.uint8)  # a filter before each line: none
    lines[:, 1:] = np.frombuffer(pixels, np.uint8).reshape(height, width * bands)
    return Preview(
        "image/png",
        b"".join((_png_head(height, width, bands), _chunk(b"IDAT", zlib.compress(lines.data, 0)), _PNG_END)),
    )


@functools.lru_cache(64)
def _png_head(height: int, width: int, bands: int) -> bytes:
    settings = struct.pack(">IIBBBBB", width, height, 8, 0 if bands == 1 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", settings)


def _chunk(name: bytes, data: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(data)), name, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))))


_PNG_END = _chunk(b"IEND", b"")


def _jpeg(image: Image.Image) -> Preview:
    """Return a JPEG of a picture that is L or RGB."""
    return of_bytes(image.tobytes(), image.height, image.width, len(image.getbands()))


@functools.cache
def _jpeg_head(mode: str) -> bytes:
    """Return what a JPEG of Pillow's has before its data: the quality's tables, and the sides of a picture of one pixel."""
    data = _save(Image.new(mode, (1, 1)))
    at = 2
    while data[at + 1] != _START_OF_SCAN:
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return data[: at + 2 + int.from_bytes(data[at + 2 : at + 4])]


def _save(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
