"""The stored previews of a run's samples, each shrunk to 8 × 8 pixels: what looks alike is near, as with a perceptual hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.picture_formats import open_picture
from audit.records import Run
from audit.store.read.reader import Reader

SIDE = 8
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class SmallPictures:
    """Small pictures of one epoch. `keys` are epoch, index and visit of each; `pixels` its 192 levels."""

    keys: Array
    pixels: Array
    #: How many previews the epoch has; more than there are keys where not all were looked at.
    total: int


def small_pictures(reader: Reader, run: Run, epoch: int, most: int | None = None) -> SmallPictures:
    """Return small pictures of the samples' sources; of more than `most`, evenly chosen ones."""
    of = "run_id = ? AND epoch = ? AND stage = 0 AND form = 'preview' AND encoding LIKE 'image/%'"
    parameters = [run.run_id, epoch]
    total = int(reader.sql(f"SELECT count(*) FROM payloads WHERE {of}", parameters=parameters).fetchall()[0][0])
    step = 1 if most is None else max(1, -(-total // most))
    chosen = "" if step == 1 else f" AND index % {step} = 0"
    query = f"SELECT index, visit, data FROM payloads WHERE {of}{chosen} ORDER BY index, visit"
    keys: list[tuple[int, int, int]] = []
    pixels: list[Array] = []
    for _, piece in reader.sql(query, parameters=parameters).batches(2_000):
        for index, visit, data in piece:
            small = shrink(data)
            if small is not None:
                keys.append((epoch, index, visit))
                pixels.append(small)
    found = np.stack(pixels) if pixels else np.empty((0, 3 * SIDE * SIDE), np.uint8)
    return SmallPictures(np.asarray(keys, np.int64).reshape(-1, 3), found, total)


def shrink(data: bytes) -> Array | None:
    """Return a picture as 8 × 8 pixels of red, green and blue; None if its bytes cannot be decoded."""
    from PIL import Image

    try:
        with open_picture(data) as opened:
            small = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return np.asarray(small, np.uint8).ravel()


def distances(pictures: SmallPictures, to: Array) -> Array:
    """Return how unlike one each picture is: 0 is equal, infinite not alike at all.

    The mean difference of levels alone would put a foggy lake beside gravel of the same grey: it counts the less, the more the
    two pictures are bright and dark in the same places.
    """
    apart: Array = np.abs(pictures.pixels.astype(np.int16) - to.astype(np.int16)).mean(axis=1)
    unlike = 1.0 - _standardise(pictures.pixels) @ _standardise(to[None])[0]
    found: Array = np.where((apart < _SAME_LEVELS) | (unlike < _SAME_PLACES), apart * np.maximum(unlike, 0.0), np.inf)
    return found


#: Pictures look alike if their levels differ by less, from 0 to 255, or if their correlation is greater than 1 minus this.
_SAME_LEVELS, _SAME_PLACES = 12.0, 0.5


def _standardise(pixels: Array) -> Array:
    """Return each picture with mean 0 and length 1; one of a single level is 0."""
    centred = pixels - pixels.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1.0))
