"""Small pictures that look like nothing else: the sources of the datasets that tests record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (48, 40), mode: str = "RGB") -> Image.Image:
    """Soft shapes and some noise, different for each seed."""
    rng = np.random.default_rng(seed)
    bands = 1 if mode == "L" else 3
    coarse = rng.integers(0, 256, (6, 8, bands), dtype=np.uint8)
    soft = Image.fromarray(coarse[..., 0] if bands == 1 else coarse).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(soft, dtype=np.int16) + rng.integers(-20, 21, np.asarray(soft).shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def folders(root: Path, per_class: int = 10, classes: tuple[str, ...] = ("ant", "bee", "fly"), **options: Any) -> Path:
    """Class folders of PNG pictures."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for place in range(per_class):
            picture(1_000 * number + place, **options).save(root / name / f"{place:02d}.png")
    return root
