"""Rows of tables and texts: columns that tell too much or nothing, that differ between splits, and texts that leak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from torch.utils.data import DataLoader, Dataset, TensorDataset

from audit.api import record
from audit.checks.report import CheckOutcome
from audit.checks.runner import run_checks

Array = np.ndarray[Any, Any]


def judge(place: Path, check: str, *parts: tuple[str, Dataset[Any]], **options: Any) -> CheckOutcome:
    """Record some datasets in one run, and return the outcome of one check."""
    with record(place / "lineage") as run:
        for split, data in parts:
            for _ in run.loader(DataLoader(data, batch_size=50, **options), split=split):
                pass
    return run_checks(place / "lineage", only=[check], record=False).outcome(check)


def rows(values: Array, labels: Array) -> TensorDataset:
    return TensorDataset(torch.from_numpy(values.astype(np.float32)), torch.from_numpy(labels))


def table(samples: int = 400, seed: int = 0) -> tuple[Array, Array]:
    """Eight columns, two of which say something about the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, samples)
    values = rng.normal(size=(samples, 8))
    values[:, 0] += labels
    values[:, 5] = values[:, 5] * 10 + 170
    return values, labels


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_column_that_is_the_label_is_found(tmp_path: Path, noise: float) -> None:
    values, labels = table()
    values[:, 3] = 2 * labels + 1 + np.random.default_rng(1).normal(0, 1, len(labels)) * noise
    (finding,) = judge(tmp_path, "columns", ("train", rows(values, labels))).findings
    assert finding.message.startswith("Column 3 alone gives the label of 100.0% of 400 samples")


def test_a_column_with_one_value_is_found(tmp_path: Path) -> None:
    values, labels = table()
    values[:, 6] = 7
    outcome = judge(tmp_path, "columns", ("train", rows(values, labels)))
    assert outcome.severity == "warning"
    assert "Column 6 has the same value in all 400 samples (7)" in outcome.message


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_columns_of_real_tables_are_not_reported(tmp_path: Path, load: Any) -> None:
    assert judge(tmp_path, "columns", ("train", rows(*load(return_X_y=True)))).status == "pass"


def test_the_empty_border_of_flat_pictures_is_a_note(tmp_path: Path) -> None:
    values, labels = load_digits(return_X_y=True)
    outcome = judge(tmp_path, "columns", ("train", rows(values[:300], labels[:300])))
    assert outcome.severity == "info" or outcome.status == "pass"


@pytest.mark.parametrize("broken", [True, False])
def test_a_column_in_another_unit_is_found_in_its_split(tmp_path: Path, broken: bool) -> None:
    (values, labels), (others, their_labels) = table(), table(200, seed=1)
    others[:, 5] /= 100 if broken else 1
    outcome = judge(tmp_path, "split_drift", ("train", rows(values, labels)), ("test", rows(others, their_labels)))
    if not broken:
        assert outcome.status == "pass", outcome.message
        return
    (finding,) = outcome.findings  # not also the mean of all columns
    assert finding.message.startswith("Column 5 of the table differs between the splits train and test")


class Texts(Dataset[Any]):
    """Texts of random words."""

    def __init__(self, seed: int, samples: int = 80) -> None:
        rng = np.random.default_rng(seed)
        words = [
            "rain",
            "sun",
            "car",
            "road",
            "house",
            "tree",
            "school",
            "book",
            "song",
            "band",
            "film",
            "vote",
            "price",
            "team",
        ]
        self.texts = [" ".join(rng.choice(words, rng.integers(8, 14))).capitalize() + "." for _ in range(samples)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.texts[index], index % 2


def test_a_text_in_two_splits_is_found_in_another_case(tmp_path: Path) -> None:
    train, test = Texts(0), Texts(1)
    test.texts[7] = f"  {train.texts[41].upper()} "
    test.texts[9] = train.texts[3]
    outcome = judge(tmp_path, "leakage", ("train", train), ("test", test))
    same, changed = outcome.findings
    assert changed.message == (
        "Sample 7 of the split test (dataset://7) has the same words as sample 41 of the split train (dataset://41): "
        "only case, spaces or punctuation differ."
    )
    assert (changed.severity, changed.index) == ("warning", 7)
    assert (
        "Sample 9 of the split test (dataset://9) has the same content as sample 3 of the split train" in same.message
    )


def test_texts_of_another_length_are_drift(tmp_path: Path) -> None:
    test = Texts(1)
    test.texts = [text[:20] for text in test.texts]
    outcome = judge(tmp_path, "split_drift", ("train", Texts(0)), ("test", test))
    assert "The length of loaded samples differs between the splits" in outcome.message


@pytest.mark.parametrize(("split", "status"), [("test", "fail"), ("train", "pass")])
def test_a_dropped_batch_is_a_warning_in_an_evaluation_split(tmp_path: Path, split: str, status: str) -> None:
    outcome = judge(tmp_path, "coverage", (split, rows(*table(120))), drop_last=True)
    assert outcome.status == status
    if status == "fail":
        assert outcome.severity == "warning"
        assert "20 samples are left out of each epoch of the split test (120 samples)" in outcome.message
