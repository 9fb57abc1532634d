"""What this machine can do at best: copying memory, hashing, compressing. Recording cannot be cheaper than these.

    python bench/floor.py

Each figure is the least of several rounds of processor time, so that other programs on the machine disturb it little.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from audit import values

ROUNDS = 7
MEGABYTE = 1 << 20


def main() -> None:
    """Measure and print."""
    large = np.random.default_rng(0).integers(0, 256, 64 * MEGABYTE, dtype=np.uint8)
    target = np.empty_like(large)
    target[:] = 0
    print(f"copy memory       {_speed(lambda: np.copyto(target, large), large.nbytes):8.0f} MB/s")
    print(f"first touch       {_speed(lambda: np.ones(64 * MEGABYTE, np.uint8), large.nbytes):8.0f} MB/s")
    block = large[: 600 * 1024].tobytes()
    print(f"XXH3-128          {_speed(lambda: xxhash.xxh3_128_digest(block), len(block)):8.0f} MB/s")
    print(f"SHA-256           {_speed(lambda: hashlib.sha256(block).digest(), len(block)):8.0f} MB/s")
    picture = _picture()
    pixels = picture.tobytes()
    for level in (1, 3):
        codec = pa.Codec("zstd", compression_level=level)
        made = len(codec.compress(pixels, asbytes=True))
        speed = _speed(lambda codec=codec: codec.compress(pixels), len(pixels))
        print(f"zstd level {level}      {speed:8.0f} MB/s, pixels to {made / len(pixels):.0%}")
    _values(picture)


def _values(picture: Image.Image) -> None:
    """What audit does with one picture of 224×224, beside a copy of it."""
    tensor = _tensor(picture)
    for name, value in (("picture", picture), ("float32 tensor", tensor)):
        size = values.observe(value).bytes
        print(
            f"observe {name:15s} {_least(lambda value=value: values.observe(value)) * 1e6:7.0f} µs for {size:,} bytes"
        )
        print(f"preview {name:15s} {_least(lambda value=value: values.preview(value)) * 1e6:7.0f} µs")
        print(f"encode  {name:15s} {_least(lambda value=value: values.encode(value)) * 1e6:7.0f} µs")


def _tensor(picture: Image.Image) -> Any:
    import torch

    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)


def _picture() -> Image.Image:
    generator = np.random.default_rng(1)
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((224, 224), Image.Resampling.BICUBIC), dtype=np.int16)
    return Image.fromarray(
        (smooth + generator.normal(0, 6, (224, 224, 1)).astype(np.int16)).clip(0, 255).astype(np.uint8)
    )


def _speed(work: Callable[[], Any], size: int) -> float:
    return size / MEGABYTE / _least(work)


def _least(work: Callable[[], Any]) -> float:
    work()
    times = max(1, int(0.02 / max(_seconds(work, 1), 1e-6)))
    return min(_seconds(work, times) for _ in range(ROUNDS)) / times


def _seconds(work: Callable[[], Any], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
