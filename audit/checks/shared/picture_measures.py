"""Measure decoded pictures, many of one size at a time: thumbnails, colours, sharpness and noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.jpeg_blocks import LEAST_SIDE, block_contrast
from audit.checks.shared.lookalikes import thumbnail
from audit.checks.shared.picture_alignment import SIDE
from audit.checks.shared.picture_grids import spread
from audit.checks.shared.pictures import SIDE as MEASURED_SIDE
from audit.checks.shared.pictures import SMALL_SIDE, Picture

#: The side of the small coloured pictures.
SMALL = 16
#: Pictures with sides in this range are scaled together; of larger ones Pillow scales each faster, and very narrow ones differ.
_SIDES_SCALED_TOGETHER = range(8, 97)
#: Of a large picture, blocks are looked for in a part with this side.
_MIDDLE = 128
#: How many decoded pictures are kept at a time.
_BATCH = 512
#: A picture whose levels vary less than this has no edges, so sharpness is not measured.
_FAINT = 10.0
#: Noise is measured where a picture is flattest: this share of its pixels. Of normal noise they lie within so many deviations.
_FLAT, _DEVIATIONS = 0.2, 0.2533


@dataclass(frozen=True, slots=True)
class Measures:
    """One picture without its pixels, and what was measured of it."""

    picture: Picture
    #: 32×32 grey levels, and 16×16 colours.
    thumbnail: Array
    colours: Array
    #: The shorter side, in pixels.
    side: int
    #: The variance of the Laplacian, 0 where there is almost no contrast; whether the mode has colour; whether all pixels are grey.
    sharpness: float
    colour: bool
    grey: bool
    #: The standard deviation of noise, in levels.
    noise: float
    #: All pixels of a small picture, as they are; of a large one how clearly blocks of JPEG show in its middle.
    pixels: Array | None
    blocks: float | None = None


def measure_pictures(found: Iterable[Picture]) -> Iterator[Measures]:
    """Yield the measures of each picture; the order is not that of the pictures."""
    groups: dict[tuple[str, tuple[int, int]], list[Picture]] = {}
    kept = 0
    for picture in found:
        mode, size = _form(picture.image)
        if not _is_small(size) or mode not in ("L", "RGB"):
            # A large picture is not kept for others of its size.
            image = _open_picture(picture.image)
            made = (thumbnail(image)[None], _colours(image)[None])
            yield from _measure([picture], _reduce(image), size, mode, made, _blocks(image))
            continue
        groups.setdefault((mode, size), []).append(picture)
        kept += 1
        if kept == _BATCH:
            yield from _measure_groups(groups)
            groups, kept = {}, 0
    yield from _measure_groups(groups)


def _measure_groups(groups: dict[tuple[str, tuple[int, int]], list[Picture]]) -> Iterator[Measures]:
    for (mode, size), group in groups.items():
        yield from _measure(group, np.stack([np.asarray(picture.image) for picture in group]), size, mode)


def _measure(
    group: list[Picture],
    pixels: Array,
    size: tuple[int, int],
    mode: str,
    made: tuple[Array, Array] | None = None,
    blocks: float | None = None,
) -> Iterator[Measures]:
    """Yield the measures of pictures of one size from their pixels, grey or RGB; `made` are their thumbnails and small colours."""
    grey = grey_levels(pixels)
    levels = grey.astype(np.float32)
    faint = spread(levels) < _FAINT
    thumbs, colours = made or (_thumbnails(grey), _small_colours(pixels))
    sharpness, noise = np.where(faint, 0.0, _sharpness(levels)), _noise(levels)
    coloured = pixels.ndim == 4 and mode == "RGB"
    equal = _is_grey(pixels) if coloured else np.zeros(len(group), bool)
    for n, picture in enumerate(group):
        yield Measures(
            picture.without_image(),
            thumbs[n],
            colours[n],
            min(size),
            float(sharpness[n]),
            bool(coloured and not faint[n]),
            bool(equal[n] and not faint[n]),
            float(noise[n]),
            pixels[n] if max(size) <= SMALL_SIDE else None,
            blocks,
        )


def _blocks(image: Any) -> float | None:
    """Return how clearly blocks show in the middle of a large picture; None if it is too small."""
    if min(image.size) < LEAST_SIDE:
        return None
    # Blocks begin at the corner of the picture.
    left, top = (max(0, (length - _MIDDLE) // 2) // 8 * 8 for length in image.size)
    part = image.crop((left, top, min(left + _MIDDLE, image.width), min(top + _MIDDLE, image.height))).convert("L")
    return float(block_contrast(np.asarray(part)[None])[0])


def _is_small(size: tuple[int, int]) -> bool:
    """Return whether pictures of this size are scaled together."""
    return size[0] in _SIDES_SCALED_TOGETHER and size[1] in _SIDES_SCALED_TOGETHER


def _form(image: Any) -> tuple[str, tuple[int, int]]:
    """Return the mode of a picture or of an array of its pixels, and its width and height."""
    if isinstance(image, np.ndarray):
        return "L" if image.ndim == 2 else "RGB", (image.shape[1], image.shape[0])
    return image.mode, image.size


def _open_picture(image: Any) -> Any:
    from PIL import Image

    return Image.fromarray(image) if isinstance(image, np.ndarray) else image


def _reduce(image: Any) -> Array:
    """Return the pixels of a picture, grey or RGB, scaled down to a side that suffices to measure sharpness: 1×height×width."""
    if max(image.size) > MEASURED_SIDE and image.mode in ("L", "RGB", "RGBA"):
        image = image.reduce(-(-max(image.size) // MEASURED_SIDE))
    return np.asarray(image if image.mode in ("L", "RGB") else image.convert("L"))[None]


def _colours(image: Any) -> Array:
    from PIL import Image

    return np.asarray(image.convert("RGB").resize((SMALL, SMALL), Image.Resampling.BOX))


def grey_levels(pixels: Array) -> Array:
    """Return grey levels as Pillow's conversion to L gives them."""
    if pixels.ndim == 3:
        return pixels
    # All sums are whole numbers below 2**24, which this type holds exactly.
    weights = np.array([19595, 38470, 7471], np.float32)
    sums = pixels.reshape(-1, 3).astype(np.float32) @ weights + np.float32(0x8000)
    grey: Array = (sums * np.float32(2.0**-16)).astype(np.uint8)
    return grey.reshape(pixels.shape[:-1])


def _is_grey(pixels: Array) -> Array:
    """Return whether the channels of each picture differ by at most 3 levels."""
    # One channel after the other: a reduction over the short last axis takes ten times as long.
    red, green, blue = (pixels[..., n] for n in range(3))
    apart = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    equal: Array = apart.reshape(len(pixels), -1).max(axis=1) <= 3
    return equal


def _thumbnails(grey: Array) -> Array:
    from PIL import Image

    smooth = Image.Resampling.BILINEAR if min(grey.shape[1:]) >= SIDE else Image.Resampling.BICUBIC
    return _resize(grey, SIDE, int(smooth))


def _small_colours(pixels: Array) -> Array:
    """Return 16×16 colours of each, each the mean of its part."""
    from PIL import Image

    box = int(Image.Resampling.BOX)
    if pixels.ndim == 3:
        return np.repeat(_resize(pixels, SMALL, box)[..., None], 3, axis=3)
    return np.stack([_resize(pixels[..., n], SMALL, box) for n in range(3)], axis=3)


def _resize(levels: Array, side: int, method: int) -> Array:
    """Return n pictures scaled as Pillow does it: first across, then down, rounded after each."""
    if levels.shape[1:] == (side, side):
        return levels
    across = np.rint(levels.astype(np.float32) @ _weights(levels.shape[2], side, method).T).clip(0, 255)
    down: Array = np.rint(_weights(levels.shape[1], side, method) @ across).clip(0, 255).astype(np.uint8)
    return down


@lru_cache(maxsize=256)
def _weights(length: int, side: int, method: int) -> Array:
    """Return the matrix by which Pillow scales one axis: what becomes of each unit vector."""
    from PIL import Image

    unit = Image.fromarray(np.eye(length, dtype=np.float32))
    return np.asarray(unit.resize((length, side), Image.Resampling(method)))


def _sharpness(levels: Array) -> Array:
    """Return the variance of the Laplacian of each picture."""
    if min(levels.shape[1:]) < 3:
        return np.zeros(len(levels), np.float32)
    middle = 4 * levels[:, 1:-1, 1:-1]
    edges = middle - levels[:, :-2, 1:-1] - levels[:, 2:, 1:-1] - levels[:, 1:-1, :-2] - levels[:, 1:-1, 2:]
    return spread(edges) ** 2


def _noise(levels: Array) -> Array:
    """Return the standard deviation of noise in the flattest parts, by a mask that edges and gradients do not change."""
    if min(levels.shape[1:]) < 3:
        return np.zeros(len(levels), np.float32)
    across = levels[:, :, :-2] - 2 * levels[:, :, 1:-1] + levels[:, :, 2:]
    mask = np.abs(across[:, :-2] - 2 * across[:, 1:-1] + across[:, 2:]).reshape(len(levels), -1)
    place = int(_FLAT * mask.shape[1])
    # The mask's weights have a norm of 6.
    noise: Array = np.partition(mask, place, axis=1)[:, place] / (6 * _DEVIATIONS)
    return noise
