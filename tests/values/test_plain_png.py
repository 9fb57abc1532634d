"""The PNGs of small previews are read without Pillow, and all others are left to it."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from audit.values import native as loops
from audit.values import tensor, thumbnail
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


@pytest.mark.skipif(loops.native is None, reason="the C extension is not built here")
@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 999), st.integers(5, 60), st.integers(5, 60), st.sampled_from(("pixels", "planes", "grey")))
def test_both_checksums_of_a_preview_are_right(seed: int, height: int, width: int, form: str) -> None:
    assert loops.native is not None
    shape = {"pixels": (height, width, 3), "planes": (3, height, width), "grey": (height, width)}[form]
    levels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    shown = levels.transpose(1, 2, 0) if form == "planes" else levels
    before = loops.native.loops(seed % 3)
    try:
        if form == "pixels":
            data = loops.native.tiny(raw_rgb(Image.fromarray(levels)), height, width)
        else:
            data = loops.native.tiny_tensor(torch.from_numpy(levels), tensor.torch_names(), 3 * 60 * 60)
    finally:
        loops.native.loops(before)
    assert data is not None
    # Pillow ignores a wrong Adler-32, and zlib alone does not.
    assert (np.asarray(Image.open(io.BytesIO(data))) == shown).all()
    lines = zlib.decompress(data[41 : 41 + int.from_bytes(data[33:37])])
    assert len(lines) == height * (1 + shown.size // height)


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
