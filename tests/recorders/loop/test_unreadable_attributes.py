"""Datasets and models of which an attribute raises when it is asked, as one that must be prepared first: they are recorded all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import audit

#: Attributes that audit asks a dataset for.
NAMES = (
    "classes",
    "data",
    "dataset",
    "datasets",
    "indices",
    "label",
    "loader",
    "name",
    "root",
    "samples",
    "source",
    "split",
)
FURTHER = ("target_transform", "targets", "train", "transform", "transforms")


class Rows(Dataset):  # type: ignore[type-arg]
    """Four samples."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index % 2


def rows_without(name: str, error: type[Exception]) -> Rows:
    def refuse(_: Rows) -> Any:
        raise error(f"{name} is not prepared")

    kind: type[Rows] = type("Rows", (Rows,), {name: property(refuse)})
    return kind()


@pytest.mark.parametrize("error", [RuntimeError, FileNotFoundError])
@pytest.mark.parametrize("name", [*NAMES, *FURTHER])
def test_every_sample_is_recorded(name: str, error: type[Exception], tmp_path: Path) -> None:
    plain = [batch.tolist() for batch, _ in DataLoader(rows_without(name, error), batch_size=2)]
    for form in ("loader", "dataset"):
        with audit.record(tmp_path / form, strict=True) as run:
            dataset = rows_without(name, error)
            if form == "loader":
                loader = run.loader(DataLoader(dataset, batch_size=2))
            else:
                loader = DataLoader(run.dataset(dataset), batch_size=2)
            assert [batch.tolist() for batch, _ in loader] == plain
        rows = audit.open(tmp_path / form).sql("SELECT index, label, status FROM samples ORDER BY index").fetchall()
        assert rows == [(index, index % 2, "ok") for index in range(4)]


@pytest.mark.parametrize("name", ["config", "pretrained_cfg"])
def test_every_prediction_of_a_model_is_recorded(name: str, tmp_path: Path) -> None:
    def refuse(_: nn.Module) -> Any:
        raise RuntimeError(f"{name} is not prepared")

    kind = type("Scores", (nn.Linear,), {name: property(refuse)})
    with audit.record(tmp_path / "lineage", strict=True) as run, torch.no_grad():
        model = run.model(kind(3, 2))
        for batch, _ in run.loader(DataLoader(Rows(), batch_size=2)):
            model(batch)
    rows = audit.open(tmp_path / "lineage").sql("SELECT index, label FROM predictions ORDER BY index").fetchall()
    assert rows == [(index, index % 2) for index in range(4)]
