"""Pictures to measure with: 500×375 JPEGs of about 60 KB, smooth shapes under a little grain, and PNGs of 32×32; all different."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def make_pictures(folder: Path, count: int, classes: int = 10) -> Path:
    """`count` pictures in class folders below `folder`; made once."""
    marker = folder / f".{count}"
    if marker.exists():
        return folder
    for number in range(count):
        generator = np.random.default_rng(number)
        coarse = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
        picture = picture + generator.normal(0, 6, (375, 500, 1)).astype(np.int16)
        target = folder / f"class_{number % classes}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(target / f"{number:06d}.jpg", quality=88)
    marker.touch()
    return folder


def make_small_pictures(folder: Path, count: int, classes: int = 10) -> Path:
    """`count` PNGs of 32×32 pixels in class folders below `folder`; made once."""
    marker = folder / f".{count}"
    if marker.exists():
        return folder
    for number in range(count):
        coarse = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        target = folder / f"class_{number % classes}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize((32, 32), Image.Resampling.BICUBIC).save(target / f"{number:06d}.png")
    marker.touch()
    return folder
