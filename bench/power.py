"""How often a statistical check finds a fault of a given size, at 100, 1,000 and 10,000 samples.

    python -m bench.power [CHECK…]

Each row is a simulation with the checks' own functions and default limits; `nothing` is the same without a fault, the
rate of false alarms, at 30 samples too. Figures go into docs/CHECKS.md. bench.alarms runs the checks themselves on clean runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from audit.checks.data.columns import count_right
from audit.checks.data.missing_classes import _chance_to_miss
from audit.checks.data.outliers import measure_distance
from audit.checks.model.calibration import best_temperature
from audit.checks.model.label_issues import _count_listed
from audit.checks.shared import distance
from audit.checks.shared.added_marks import find_mark
from audit.checks.shared.drawing_position import measure_moves
from audit.checks.shared.jpeg_blocks import block_contrast, find_blocky
from audit.checks.shared.label_guess import betrayed_class, bins_of, predict, raised_class
from audit.checks.shared.label_noise import fit_noise
from audit.checks.shared.pixel_guess import telling_bit, telling_pixel
from audit.checks.shared.significance import binomial_tail, holm, normal_tails, signed_rank, two_rates, wilson
from audit.checks.shared.turned_groups import find_turn
from audit.lineage.diff.mcnemar import p_value
from bench.power_targets import box_fit, mask_fit, missed_by_size, odd_scale

SIZES = (100, 1_000, 10_000)
#: False alarms are counted at these.
CLEAN_SIZES = (30, *SIZES)
ROUNDS = 300
#: A trial that takes longer is repeated less often.
_FEWER = {
    "label_issues": 40,
    "shortcuts_pixel": 100,
    "calibration_scale": 100,
    "shortcuts_mark": 40,
    "shortcuts_bit": 100,
    "columns": 100,
    "shortcuts_blocks": 100,
    "shortcuts_position": 100,
    "split_drift_turned": 100,
    "box_fit": 40,
    "mask_fit": 40,
}
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
    z = NormalDist().inv_cdf(1 - 0.025 / CLASSES)
    return any(wilson(hit, n // CLASSES, z)[1] < overall - 0.3 for hit in hits)


def accuracy(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """5 % of the samples turn wrong against the baseline, where 2 % of all flip each way by chance."""
    lost, gained = int(rng.binomial(n, 0.07 if fault else 0.02)), int(rng.binomial(n, 0.02))
    return (lost - gained) / n > 0.02 and p_value(lost, gained) <= 0.05


def losses(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The losses grow by 0.3 standard deviations of their changes."""
    changes = rng.normal(0.3 if fault else 0.0, 1.0, n)
    ranks = np.abs(changes).argsort().argsort() + 1
    chance, effect = signed_rank(n, float(ranks[changes > 0].sum()))
    return chance < 0.001 and effect >= 0.2


def calibration(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Where one of 10 classes is predicted with 90 % confidence, 60 % are right."""
    size, chances, gaps = n // CLASSES, [], []
    if size < 20:
        return False  # too few of each class
    for number in range(CLASSES):
        right = int(rng.binomial(size, 0.6 if fault and number == 0 else 0.9)) / size
        chances.append(normal_tails((0.9 - right) / max(math.sqrt(0.9 * 0.1 / size), 0.5 / size)))
        gaps.append(0.9 - right)
    return any(sure and gap > 0.2 for sure, gap in zip(holm(chances, 0.001), gaps, strict=True))


def calibration_error(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The confidence is 25 % too high in every bin."""
    if n < 100:
        return False  # the check is skipped
    confidence = rng.uniform(0.5, 1, n)
    right = rng.random(n) < confidence - (0.25 if fault else 0)
    bins = np.minimum((confidence * 15).astype(int), 14)
    counts, sums, hits = (np.bincount(bins, weights, 15) for weights in (None, confidence, right.astype(float)))
    share = np.where(counts > 0, sums / np.maximum(counts, 1), 0)
    variance = share * (1 - share) * counts
    noise = np.sqrt(2 / math.pi * variance).sum()
    return bool((np.abs(hits - sums).sum() - noise - 2 * math.sqrt(variance.sum())) / n > 0.1)


def class_order(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Two of 10 classes are swapped, and the model is right in 80 % otherwise; without the fault the model guesses."""
    size = n // CLASSES
    hits = [int(rng.binomial(size, 0.8 if fault else 0.1)) for _ in range(2)]
    if size < 5 or min(hits) < 0.6 * size:
        return False
    return binomial_tail(sum(hits), 2 * size, 1 / CLASSES) * CLASSES * (CLASSES - 1) / 2 < 0.001


def class_order_shift(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Of 10 classes each is predicted as the next, in 70 % of the samples; without the fault the model guesses."""
    hits = [int(rng.binomial(n, 0.7 if fault and not step else 0.1)) for step in range(2)]
    return any(hit >= 0.6 * n and 2 * binomial_tail(hit, n, 1 / CLASSES) < 0.001 for hit in hits)


def alignment(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Labels of 3 classes are shifted by one row, and the model is right in 70 % otherwise; without the fault the model guesses."""
    labels = rng.integers(0, 3, n)
    predicted = np.where(rng.random(n) < (0.7 if fault else 0.0), np.roll(labels, 1), rng.integers(0, 3, n))
    chances, gains = [], []
    for neighbour in (np.roll(labels, 1), np.roll(labels, -1)):
        places = labels != neighbour
        shifted, now = (int((predicted == one)[places].sum()) for one in (neighbour, labels))
        chances.append(p_value(shifted, now))
        gains.append((shifted - now) / max(1, places.sum()))
    return any(sure and gain > 0.25 for sure, gain in zip(holm(chances, 0.001), gains, strict=True))


def lost_boxes(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """A random crop loses a quarter of the objects, without the fault 8 %; one object in each picture."""
    return binomial_tail(int(rng.binomial(n, 0.25 if fault else 0.08)), n, 0.1) < 0.001


def shortcuts(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The brightness of each of 3 classes differs by four standard deviations."""
    labels = rng.integers(0, 3, n).tolist()
    values = [float(rng.normal(4 * label if fault else 0.0)) for label in labels]
    right, guessed = predict(bins_of(values), np.array(labels), np.arange(n) % 2 == 0)
    spread = 3 * math.sqrt(right * (1 - right) / n)
    return (right - spread - guessed) / (1 - guessed) >= 0.5


def shortcuts_noise(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Noise of 5 levels is added to one of 10 classes, where pictures have 2 in the mean and classes differ by half of that."""
    labels = np.arange(n) % CLASSES
    values = rng.exponential(1.5 + 0.1 * labels)
    if fault:
        values = np.where(labels == 3, np.hypot(values, 5), values)
    return raised_class(values.tolist(), labels, 0.5) is not None


def shortcuts_saturation(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The pictures of one of 10 classes lose two thirds of their colour, where saturation is exponential and differs by half between classes."""
    labels = np.arange(n) % CLASSES
    values = 5 + rng.exponential(20 + labels)
    return raised_class((-np.where(fault & (labels == 3), values / 3, values)).tolist(), labels, 0.5) is not None


def shortcuts_position(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The drawings of one of 10 classes, of which each lies a pixel off its place (standard deviation), lie 3 pixels of 32 lower; at most 2,000 are simulated."""
    size = min(n, 2_000)
    labels = np.arange(size) % CLASSES
    lower, place = np.where(fault & (labels == 3), 3, 0), np.rint(rng.normal(0, 1, (size, 2))).astype(int)
    pictures = np.zeros((size, 32, 32), np.uint8)
    # Each class has its height and width; each drawing has two thirds of what its box could have, at random.
    for picture, label, (down, across) in zip(
        pictures, labels, place + np.stack([lower, 0 * lower], axis=1), strict=True
    ):
        high, wide = 10 + label % 5, 8 + label // 5 * 4
        top, left = 16 - high // 2 + down, 16 - wide // 2 + across
        picture[top : top + high, left : left + wide] = np.where(rng.random((high, wide)) < 0.67, 255, 0)
    return any(raised_class(moves.tolist(), labels, 0.9) is not None for moves in measure_moves(pictures).values())


def outliers(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Three pictures lie 12 standard deviations away in three of the 13 measures; found: two of them are warnings."""
    if n < 300:
        return False  # the check is skipped
    facts = rng.normal(size=(n, 13))
    if fault:
        facts[:3, :3] += 12
    found = np.flatnonzero(measure_distance(facts)[1])
    return int((found < 3).sum()) >= 2 if fault else len(found) > 0


def probe(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Another normalisation turns 15 % of at most 256 samples right and 3 % wrong; the others change 3 % each way."""
    size = min(n, 256)
    pairs = [
        (int(rng.binomial(size, 0.15 if fault and not k else 0.03)), int(rng.binomial(size, 0.03))) for k in range(20)
    ]
    sure = holm([p_value(*pair) for pair in pairs], 0.001)
    return any(ok and (fixed - broken) / size >= 0.05 for ok, (fixed, broken) in zip(sure, pairs, strict=True))


def label_issues(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """3 % of the labels of 10 classes are replaced, where the model is right in 90 %; found: half of them are reported."""
    logits = rng.normal(0, 10, (n, CLASSES))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (chances.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    wrong = rng.choice(n, n * 3 // 100, replace=False) if fault else np.empty(0, int)
    labels[wrong] = (labels[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
    sharp = np.exp(1.3 * logits) / np.exp(1.3 * logits).sum(axis=1, keepdims=True)
    noise = fit_noise(sharp, labels)
    contradicted = np.flatnonzero(sharp.argmax(axis=1) != labels)
    chances = noise.wrong_chance(sharp[contradicted], labels[contradicted])
    order = np.argsort(-chances)
    listed = contradicted[order[: _count_listed(chances[order], 0.8)[0]]]
    if not fault:
        return noise.sure and len(listed) > 0
    return noise.sure and np.isin(listed, wrong).sum() >= len(wrong) / 2


def drift(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The brightness is shifted by half a standard deviation against the baseline, one of 20 comparisons."""
    points = np.linspace(0, 1, 101)
    before, now = rng.normal(size=n), rng.normal(0.5 if fault else 0.0, size=n)
    found = distance.kolmogorov_smirnov(np.quantile(before, points).tolist(), np.quantile(now, points).tolist())
    return found >= 0.15 and holm([distance.kolmogorov_smirnov_chance(found, n, n), *[1.0] * 19], 0.0001)[0]


def missing_classes(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One of 10 classes, with 5 % of the samples, is missing in a test split of a quarter; without the fault the split is random."""
    labels = rng.choice(CLASSES, n, p=[0.05, *[0.95 / 9] * 9])
    is_test = rng.random(n) < 0.25
    if fault:
        is_test &= labels != 0
    splits = np.where(is_test, "test", "train")
    counts = {
        (str(split), label): int(((splits == split) & (labels == label)).sum())
        for split in ("test", "train") for label in range(CLASSES)
    }  # fmt: skip
    missing = [
        key for key, count in counts.items() if not count and any(counts[other, key[1]] for other in ("test", "train"))
    ]
    return any(_chance_to_miss(counts, *key) * CLASSES * 2 <= 0.01 for key in missing)


def calibration_scale(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Logits of a model that is right in 96 % are 20 times too large."""
    logits = rng.normal(0, 1, (n, CLASSES))
    logits[:, 0] += 6
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (chances.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    if (logits.argmax(axis=1) != labels).sum() < 10:
        return False  # too few are wrong
    scale, gained = best_temperature((20 if fault else 1) * logits[:5_000], labels[:5_000])
    return scale >= 8 and gained >= 10


def shortcuts_pixel(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One of 200 pixels, which have any level, has one level in all pictures of one of 10 classes; at most 1,000 pictures are used."""
    size = min(n, 1_000)
    pixels, labels = rng.integers(0, 128, (size, 200)), np.arange(size) % CLASSES
    if fault:
        pixels[labels == 3, 77] = 50
    return telling_pixel(pixels, labels, rng.random(size) < 0.5, 128, 0.5, (0.75, 0.85)) is not None


def shortcuts_mark(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """A watermark of 25 % opacity on half of the pictures of one of 4 classes; at most 2,000 pictures are simulated."""
    size = min(n, 2_000)
    pictures, labels = (
        rng.normal(120, 40, (size, 8, 8)).repeat(2, 1).repeat(2, 2) + rng.normal(0, 10, (size, 16, 16)),
        np.arange(size) % 4,
    )
    if fault:
        mark = np.indices((16, 16)).sum(axis=0) % 3 == 0
        some = (labels == 1) & (rng.random(size) < 0.5)
        pictures[some] = np.where(mark, 0.75 * pictures[some] + 0.25 * 249, pictures[some])
    return find_mark(pictures.clip(1, 249).astype(np.uint8), labels, 0.4) is not None


def shortcuts_bit(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One bit of one of 200 pixels is set where the label, one of 4, is odd; at most 1,000 pictures are used."""
    size = min(n, 1_000)
    pixels, labels = rng.integers(0, 250, (size, 200)).astype(np.int16), np.arange(size) % 4
    if fault:
        pixels[:, 77] = pixels[:, 77] & 254 | labels % 2
    return telling_bit(pixels, labels) is not None


def telling_words(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """A word that is in 95 % of the texts of one of 4 classes and in 1 % of the others; at most 5,000 texts are read."""
    size = min(n, 5_000)
    labels = np.arange(size) % 4
    has = rng.random(size) < (np.where(labels == 1, 0.95, 0.01) if fault else 0.5)
    return betrayed_class(np.where(has, 0, -1), labels, rng.random(size) < 0.5, 0.75, 0.9) is not None


def columns(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One of 20 columns is the label, one of 3, with noise of a tenth; without the fault it has noise of 1; at most 5,000 rows are read."""
    size = min(n, 5_000)
    labels = rng.integers(0, 3, size)
    values = rng.normal(0, 1, (size, 20))
    values[:, 7] = labels + rng.normal(0, 0.1 if fault else 1.0, size)
    guessed = np.bincount(labels).max() / size
    low = [wilson(count_right(values[:, column], labels), size, 3)[0] for column in range(20)]
    return (max(low) - guessed) / (1 - guessed) >= 0.9


def shortcuts_blocks(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """Pictures of 32×32 of one of 4 classes have steps of 4 levels between blocks of 8×8, where noise is 10; at most 2,000 are simulated."""
    size = min(n, 2_000)
    labels = np.arange(size) % 4
    pictures = rng.normal(120, 40, (size, 4, 4)).repeat(8, 1).repeat(8, 2)
    pictures = (pictures + np.roll(pictures, 4, 1) + np.roll(pictures, 4, 2)) / 3 + rng.normal(0, 10, (size, 32, 32))
    # The same pictures, not on the grid of 8.
    pictures = np.roll(pictures, 2, (1, 2))
    if fault:
        pictures[labels == 1] += rng.normal(0, 4, (int((labels == 1).sum()), 4, 4)).repeat(8, 1).repeat(8, 2)
    return find_blocky(block_contrast(pictures), labels, 0.4) is not None


def split_drift_turned(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The test split, a quarter, is upside down, where pictures are brighter above by half a standard deviation; at most 2,000 are simulated."""
    size = min(n, 2_000)
    pictures = rng.normal(120, 30, (size, 32, 32)) + rng.normal(0, 30, (size, 4, 4)).repeat(8, 1).repeat(8, 2)
    pictures += np.linspace(15, -15, 32)[None, :, None]
    train, test = np.split(pictures.clip(0, 255).astype(np.uint8), [size * 3 // 4])
    return find_turn(train, np.ascontiguousarray(test[:, ::-1]) if fault else test) is not None


TRIALS: dict[str, Trial] = {
    trial.__name__: trial
    for trial in (
        *(augmentation, class_regressions, split_drift, weak_segments, per_class_accuracy, accuracy, losses),
        *(
            calibration,
            calibration_scale,
            calibration_error,
            class_order,
            class_order_shift,
            alignment,
            lost_boxes,
            shortcuts,
            shortcuts_noise,
            shortcuts_pixel,
            shortcuts_mark,
            shortcuts_bit,
            shortcuts_blocks,
            shortcuts_saturation,
            shortcuts_position,
            split_drift_turned,
            columns,
            telling_words,
            outliers,
            probe,
            label_issues,
        ),
        *(drift, missing_classes, box_fit, mask_fit, missed_by_size, odd_scale),
    )
}


def check_of(trial: str) -> str:
    """Return the check that a trial simulates: several of one check have more words after its name."""
    return next(
        (name for name in ("shortcuts", "calibration", "split_drift", "class_order") if trial.startswith(f"{name}_")),
        trial,
    )


def main() -> None:
    """Print one row of a Markdown table for each check."""
    wanted = sys.argv[1:]
    rng = np.random.default_rng(0)
    print("| check | fault | " + " | ".join(f"{size:,}" for size in SIZES) + " | nothing, at most |")
    print("| --- | --- |" + " --- |" * (len(SIZES) + 1))
    for name, trial in TRIALS.items():
        if wanted and name not in wanted:
            continue
        rounds = _FEWER.get(name, ROUNDS)
        found = [np.mean([trial(rng, size, True) for _ in range(rounds)]) for size in SIZES]
        false = max(np.mean([trial(rng, size, False) for _ in range(rounds)]) for size in CLEAN_SIZES)
        cells = " | ".join(f"{share:.0%}" for share in found)
        print(f"| `{check_of(name)}` | {trial.__doc__} | {cells} | {false:.1%} |")


if __name__ == "__main__":
    main()
