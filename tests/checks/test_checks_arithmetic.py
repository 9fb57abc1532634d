"""The arithmetic behind checks, against brute force and against the packages that others use for it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from checks_pictures import picture
from checks_world import World
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.checks.model.label_issues import _count_listed
from audit.checks.shared import distance
from audit.checks.shared.hashes import dhash, near_pairs
from audit.checks.shared.label_noise import LabelNoise, fit_noise
from audit.store.read.reader import Reader

ROOT = Path(__file__).resolve().parents[2]


def _brute(values: list[int], most: int) -> set[tuple[int, int]]:
    firsts: dict[int, int] = {}
    for place, value in enumerate(values):
        firsts.setdefault(value, place)
    pairs = {(firsts[value], place) for place, value in enumerate(values) if firsts[value] != place}
    unique = sorted(firsts.values())
    for i, a in enumerate(unique):
        pairs |= {(a, b) for b in unique[i + 1 :] if (values[a] ^ values[b]).bit_count() <= most}
    return pairs


@given(st.data(), st.integers(0, 6))
@settings(max_examples=examples(60))
def test_near_pairs_are_all_pairs_and_no_others(data: st.DataObject, most: int) -> None:
    centres = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6))
    flips = st.tuples(st.sampled_from(centres), st.lists(st.integers(0, 63), max_size=8))
    values = [
        int(np.bitwise_xor.reduce([np.uint64(centre), *(np.uint64(1 << bit) for bit in bits)]))
        for centre, bits in data.draw(st.lists(flips, max_size=60))
    ]
    found = near_pairs(np.array(values, dtype=np.uint64), most) if values else np.empty((0, 2))
    assert {tuple(pair) for pair in found.tolist()} == _brute(values, most)


@pytest.mark.parametrize("crowded", [False, True])
def test_near_pairs_of_many_hashes(crowded: bool) -> None:
    """More than a band holds: hashes that share half of their bits are split again, and none is lost."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**63, 9_000, dtype=np.uint64)
    if crowded:
        values = (values & np.uint64(0xFFFFFFFF)) | np.uint64(0xABCDEF0100000000)
    values[8_000:] = values[:1_000] ^ (np.uint64(1) << rng.integers(0, 64, 1_000).astype(np.uint64))
    pairs = {tuple(pair) for pair in near_pairs(values, 3).tolist()}
    assert {(n, 8_000 + n) for n in range(1_000)} <= pairs
    sample = rng.choice(9_000, 300, replace=False)
    for i in sample:
        near = np.flatnonzero(np.bitwise_count(values ^ values[i]) <= 3)
        assert {tuple(sorted((int(i), int(j)))) for j in near if j != i} <= pairs


def test_the_hash_is_the_one_that_imagehash_makes() -> None:
    imagehash = pytest.importorskip("imagehash")
    for seed in range(20):
        image = picture(seed)
        assert dhash(image) == int(str(imagehash.dhash(image)), 16)


@given(st.integers(0, 2**31), st.integers(30, 400), st.integers(30, 400), st.floats(-1, 1))
@settings(max_examples=examples(40))
def test_kolmogorov_smirnov_agrees_with_scipy(seed: int, n: int, m: int, shift: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, n), rng.normal(shift, 1, m)
    points = np.linspace(0, 1, 101)
    found = distance.kolmogorov_smirnov(np.quantile(a, points).tolist(), np.quantile(b, points).tolist())
    exact = stats.ks_2samp(a, b)
    # 101 quantiles know each distribution to a hundredth, and a small sample to its own steps.
    assert abs(found - exact.statistic) < 0.02 + 2 / min(n, m)
    chance = distance.kolmogorov_smirnov_chance(float(exact.statistic), n, m)
    assert chance == pytest.approx(exact.pvalue, rel=0.35, abs=0.03)


@given(st.lists(st.tuples(st.integers(5, 500), st.integers(5, 500)), min_size=2, max_size=12))
def test_the_chance_of_counts_agrees_with_scipy(counts: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    before, now = ({str(n): pair[side] for n, pair in enumerate(counts)} for side in (0, 1))
    exact = stats.chi2_contingency(np.array(counts), correction=False).pvalue
    assert distance.chi_square_chance(before, now) == pytest.approx(exact, rel=0.2, abs=0.01)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000), min_size=1))
def test_nothing_has_drifted_from_itself(counts: dict[str, int]) -> None:
    assert distance.population_stability(counts, counts) == pytest.approx(0)
    assert distance.chi_square_chance(counts, counts) > 0.5


@pytest.mark.slow
def test_flipped_labels_of_the_digits_are_found(tmp_path: Path) -> None:
    """3 % of the labels flipped: most of them are reported, and most of what is reported was flipped, whatever the seed."""
    from audit.api import run

    store = tmp_path / "lineage"
    data = ROOT / "fixtures/digits/test"
    recorded = run(
        data, model=ROOT / "fixtures/digits.pt", pipeline=ROOT / "pipelines/digits.py", store=store, workers=0,
        capture="digest",
    )  # fmt: skip
    with Reader(str(store)) as reader:
        tables = ("samples", "predictions", "stages")
        rows = {name: reader.sql(f"FROM {name} ORDER BY ALL").dicts() for name in tables}
    from checks_contracts import outcome_of

    for seed in (0, 58, 99, 309):
        made = World(recorded, deepcopy(rows))
        made.run.run_id = ""
        made.run.samples = made.run.graded = made.run.wrong = 0
        flipped = _flip(made, seed)
        found = [f.index for f in outcome_of(made.write(tmp_path / f"{seed}"), "label_issues").findings]
        assert len(flipped & set(found)) >= 0.8 * max(len(flipped), len(found)), (seed, len(flipped), len(found))


def _guesses(rng: np.random.Generator, count: int, classes: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Return logits, and labels that follow them."""
    logits = rng.normal(0, spread, (count, classes))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return logits, (chances.cumsum(axis=1) > rng.random((count, 1))).argmax(axis=1)


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("sharpness", [0.6, 1.0, 1.5, 3.0])
def test_a_model_that_errs_casts_no_doubt_on_right_labels(classes: int, sharpness: float) -> None:
    """Labels follow the model's logits, and its probabilities are too little or too confident: an overfitted model."""
    for seed in range(3):
        logits, labels = _guesses(np.random.default_rng(seed), 2_000, classes, 4)
        assert not fit_noise(_softmax(sharpness * logits), labels).sure


@pytest.mark.parametrize("sharpness", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_the_expected_precision_of_doubts_is_what_comes_true(sharpness: float, share: float) -> None:
    rng = np.random.default_rng(5)
    logits, labels = _guesses(rng, 4_000, 10, 5)
    wrong = rng.choice(4_000, round(4_000 * share), replace=False)
    labels[wrong] = (labels[wrong] + rng.integers(1, 10, len(wrong))) % 10
    given = _softmax(sharpness * logits)
    noise = fit_noise(given, labels)
    chances = noise.wrong_chance(given, labels)
    listed = np.argsort(-chances)
    count, expected = _count_listed(chances[listed], 0.8)
    assert noise.sure
    assert share / 2 < noise.wrong_share <= 1.1 * share
    assert np.isin(listed[:count], wrong).mean() >= expected - 0.08
    # Nobody finds all of them: as many as with the true probabilities, and the true share of wrong labels.
    known = LabelNoise((1.0,), np.array([1 - share, share]), True, logits.shape[1]).wrong_chance(
        _softmax(logits), labels
    )
    ideal, _ = _count_listed(np.sort(known)[::-1], 0.8)
    assert count >= 0.6 * ideal


def test_a_model_that_guesses_confidently_knows_no_labels() -> None:
    """Most labels seem to be wrong then, and the few that it predicts seemed to be all that it can know."""
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 10, 2_000)
    given = _softmax(5 * rng.normal(0, 1, (2_000, 10)))
    noise = fit_noise(given, labels)
    assert noise.known_share(float((given.argmax(axis=1) == labels).mean())) < 0.5


def _flip(made: World, seed: int) -> set[int]:
    rng = np.random.default_rng(seed)
    count = len(made.tables["samples"])
    flipped = [int(n) for n in rng.choice(count, round(0.03 * count), replace=False)]
    for index in flipped:
        label = (made.sample(index)["label"] + int(rng.integers(1, 10))) % 10
        made.sample(index)["label"] = label
        made.prediction(index).update(label=label, correct=made.prediction(index)["predicted"] == label)
    return set(flipped)


def test_intervals_and_corrections_agree_with_scipy() -> None:
    from scipy import stats  # type: ignore[import-untyped]

    from audit.checks.shared.significance import holm, two_rates, wilson

    for successes, trials in ((0, 10), (3, 10), (10, 10), (480, 1_000)):
        theirs = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
        assert wilson(successes, trials, 1.959964) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    table = np.array([[30, 70], [50, 50]])
    theirs = stats.chi2_contingency(table, correction=False).pvalue
    assert two_rates(30, 100, 50, 100) == pytest.approx(theirs, rel=1e-6)
    # The smallest is compared with level / 3, the next with level / 2; after the first that is not smaller, none counts.
    assert holm([0.02, 0.001, 0.04], 0.05) == [True, True, True]
    assert holm([0.03, 0.001, 0.04], 0.05) == [False, True, False]
    assert holm([], 0.05) == []
