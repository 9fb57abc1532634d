"""What Hugging Face's datasets do to rows without a stage is said, with the function's name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import audit

datasets = pytest.importorskip("datasets")


def add_length(row: Any) -> Any:
    return {"x": [float(len(row["text"]))]}


def to_tensors(batch: Any) -> Any:
    return {"x": [torch.tensor([float(len(text))]) for text in batch["text"]]}


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": ["a b", "c d e"], "label": [0, 1]}).save_to_disk(tmp_path / "rows")
    return datasets.load_from_disk(tmp_path / "rows")


def record(store: Path, dataset: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with audit.record(store) as run:
            list(run.loader(DataLoader(dataset, batch_size=2)))
    if run.run.unrecorded:
        assert any("not recorded" in str(one.message) or "did not see" in str(one.message) for one in warned)
    return run.run.unrecorded or []


def test_map_before_the_recording(rows: Any, tmp_path: Path) -> None:
    assert record(tmp_path / "plain", rows.shuffle(seed=0)) == []
    (text,) = record(tmp_path / "mapped", rows.map(add_length))
    assert "Dataset.map before the recording" in text
    with audit.open(tmp_path / "mapped") as store:
        assert [one.status for one in store.check(only=["stage_coverage"]).outcomes] == ["fail"]


@pytest.mark.parametrize("method", ["set_transform", "with_transform"])
def test_a_transform_of_whole_batches_is_named(method: str, rows: Any, tmp_path: Path) -> None:
    dataset = getattr(rows, method)(to_tensors) or rows
    (text,) = record(tmp_path / "store", dataset)
    assert "Dataset with the transform to_tensors" in text
    assert "test_hugging_face.py:" in text
