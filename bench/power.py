"""How often a statistical check finds a fault of a given size, at 100, 1,000 and 10,000 samples.

    python -m bench.power

Each row is a simulation with the checks' own functions and default limits; `nothing` is the same without a fault, the
rate of false alarms. Figures go into docs/CHECKS.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from audit.checks.shared import distance
from audit.checks.shared.statistics import holm, two_rates, wilson
from audit.lineage.diff.mcnemar import p_value

SIZES = (100, 1_000, 10_000)
ROUNDS = 300
CLASSES = 10
Trial = Callable[[np.random.Generator, int, bool], bool]


def augmentation(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """A stage with p 0.5 that acts in 30 % of the visits."""
    low, high = wilson(int(rng.binomial(n, 0.3 if fault else 0.5)), n, z=3.89)
    return low > 0.55 or high < 0.40


def class_regressions(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One of 10 classes loses 20 % of its samples, where 2 % of all flip each way by chance."""
    chances, drops = [], []
    for number in range(CLASSES):
        size = n // CLASSES
        lost = int(rng.binomial(size, 0.22 if fault and number == 0 else 0.02))
        gained = int(rng.binomial(size, 0.02))
        chances.append(p_value(lost, gained))
        drops.append((lost - gained) / size)
    return any(sure and drop >= 0.02 for sure, drop in zip(holm(chances, 0.01), drops, strict=True))


def split_drift(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The brightness of a quarter of the samples, the test split, is shifted by 0.7 standard deviations."""
    points = np.linspace(0, 1, 101)
    train, test = rng.normal(size=n - n // 4), rng.normal(0.7 if fault else 0.0, size=n // 4)
    if min(len(train), len(test)) < 50:
        return False  # the check is skipped
    found = distance.kolmogorov_smirnov(np.quantile(train, points).tolist(), np.quantile(test, points).tolist())
    chance = distance.kolmogorov_smirnov_chance(found, len(train), len(test))
    return found >= 0.2 and holm([chance, 1.0, 1.0], 0.001)[0]


def weak_segments(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One of 20 quarters is right in 65 %, the others in 90 %."""
    if n < 120:
        return False  # the check is skipped
    chances, gaps = [], []
    for number in range(20):
        hits = int(rng.binomial(n // 4, 0.65 if fault and number == 0 else 0.9))
        others = int(rng.binomial(n - n // 4, 0.9))
        chances.append(two_rates(hits, n // 4, others, n - n // 4))
        gaps.append(others / (n - n // 4) - hits / (n // 4))
    return any(sure and gap >= 0.15 for sure, gap in zip(holm(chances, 0.01), gaps, strict=True))


def per_class_accuracy(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One of 10 classes is right in 40 %, the others in 90 %."""
    hits = [int(rng.binomial(n // CLASSES, 0.4 if fault and number == 0 else 0.9)) for number in range(CLASSES)]
    overall = sum(hits) / (n // CLASSES * CLASSES)
    return any(wilson(hit, n // CLASSES)[1] < overall - 0.3 for hit in hits)


TRIALS: dict[str, Trial] = {
    trial.__name__: trial for trial in (augmentation, class_regressions, split_drift, weak_segments, per_class_accuracy)
}


def main() -> None:
    """Print one row of a Markdown table for each check."""
    rng = np.random.default_rng(0)
    print("| check | fault | " + " | ".join(f"{size:,}" for size in SIZES) + " | nothing, at most |")
    print("| --- | --- |" + " --- |" * (len(SIZES) + 1))
    for name, trial in TRIALS.items():
        found = [np.mean([trial(rng, size, True) for _ in range(ROUNDS)]) for size in SIZES]
        false = max(np.mean([trial(rng, size, False) for _ in range(ROUNDS)]) for size in SIZES)
        cells = " | ".join(f"{share:.0%}" for share in found)
        print(f"| `{name}` | {trial.__doc__} | {cells} | {false:.1%} |")


if __name__ == "__main__":
    main()
