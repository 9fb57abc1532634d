"""What opening and closing a recording takes, apart from its samples. The target is 50 ms.

    python bench/opening.py [--rounds N] [--same-store]

Each round records 32 pictures of 32×32 pixels without a model, in a new store unless `--same-store` is given, and measures
`audit.record` and the end of its block: the clock, and the processor time of all threads and of git.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from overhead import measure
from own_loop import MEAN, STD
from pictures import make_small_pictures
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

SAMPLES = 32
TARGET = 50.0


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=25)
    options.add_argument("--same-store", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        images = make_small_pictures(Path(folder) / "pictures", SAMPLES)
        dataset = datasets.ImageFolder(str(images), _transform())
        rounds = []
        for number in range(2 + given.rounds):
            store = Path(folder) / ("lineage" if given.same_store else f"lineage-{number}")
            rounds.append(_record(dataset, store))
    _print(rounds[2:])


def _transform() -> transforms.Compose:
    return transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def _record(dataset: datasets.ImageFolder, store: Path) -> tuple[float, float, float]:
    """Return the milliseconds by the clock of opening and of closing, and the processor time of both."""
    import audit

    opened: list[audit.Recording] = []
    opening, opening_cpu = measure(lambda: opened.append(audit.record(store, capture="digest", strict=True)))
    for _ in opened[0].loader(DataLoader(dataset, batch_size=SAMPLES)):
        pass
    closing, closing_cpu = measure(opened[0].close)
    return 1000 * opening, 1000 * closing, 1000 * (opening_cpu + closing_cpu)


def _print(rounds: list[tuple[float, float, float]]) -> None:
    both = [opening + closing for opening, closing, _ in rounds]
    for name, found in (
        ("opening, clock", [one[0] for one in rounds]),
        ("closing, clock", [one[1] for one in rounds]),
        ("both, clock", both),
        ("both, CPU", [one[2] for one in rounds]),
    ):
        print(f"{name:15s} least {min(found):6.1f} ms  median {statistics.median(found):6.1f} ms")
    print(f"target {TARGET:.0f} ms by the clock: {'ok' if statistics.median(both) <= TARGET else 'over'}")


if __name__ == "__main__":
    main()
