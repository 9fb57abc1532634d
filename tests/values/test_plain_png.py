"""The PNGs of small previews are read without Pillow, and all others are left to it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from audit.values import native as loops
from audit.values import thumbnail
from audit.values.pixels import raw_rgb
from audit.values.plain_png import read_plain_png


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28), (1, 1, 3), (5, 40)])
def test_previews_are_read_as_pillow_reads_them(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    bands = 3 if len(shape) == 3 else 1
    written = [thumbnail._png(pixels.tobytes(), shape[0], shape[1], bands).data]
    if bands == 3 and loops.native is not None:
        written.append(loops.native.tiny(raw_rgb(Image.fromarray(pixels)), shape[0], shape[1]))
    for data in written:
        assert (np.asarray(Image.open(io.BytesIO(data))) == pixels).all()
        assert (read_plain_png(data) == pixels).all()


def test_other_and_damaged_pngs_are_left_to_pillow() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    preview = thumbnail._png(picture.tobytes(), 32, 32, 3)
    for place in (0, 20, 25, 40, 45, 300, len(preview.data) - 14):
        damaged = bytearray(preview.data)
        damaged[place] ^= 1
        assert read_plain_png(bytes(damaged)) is None
    assert read_plain_png(preview.data[:-1]) is None
    assert read_plain_png(b"") is None
    for level in (0, 6):
        file = io.BytesIO()
        picture.save(file, "PNG", compress_level=level)
        read = read_plain_png(file.getvalue())
        assert read is None or (read == np.asarray(picture)).all()
