"""Batches are numbered from 0 in each epoch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import audit


def test_each_epoch_begins_with_batch_0(tmp_path: Path) -> None:
    data = TensorDataset(torch.rand(5, 3), torch.tensor([0, 1, 0, 1, 0]))
    model = torch.nn.Linear(3, 2)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        train = run.loader(DataLoader(data, batch_size=2, shuffle=True), split="train")
        test = run.loader(DataLoader(data, batch_size=3), split="test")
        for _ in run.epochs(3):
            for x, _ in train:
                model(x)
            for x, _ in test:
                model(x)
    with audit.open(tmp_path / "lineage") as store:
        for table in ("samples", "predictions"):
            query = f"SELECT epoch, list(DISTINCT batch ORDER BY batch) FROM {table} GROUP BY 1 ORDER BY 1"
            assert store.sql(query).fetchall() == [(epoch, [0, 1, 2, 3, 4]) for epoch in range(3)]
        splits = "SELECT DISTINCT epoch, batch, split FROM samples"
        assert len(store.sql(splits).fetchall()) == 15, "a number stands for one batch of its epoch"
        assert store.sql("SELECT count(DISTINCT step) FROM steps").fetchall() == [(15,)]
