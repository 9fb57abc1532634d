"""A map of the samples from the values of a layer that a loop of the user's own kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.errors import UsageError


def _distances(
    vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.asarray(np.linalg.norm(vectors[:, None] - vectors[None], axis=2))


def test_recorded_values_of_a_layer_are_the_map(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3))
    data = torch.randn(7, 2, 4, 4)
    with audit.record(tmp_path, name="loop") as run:
        loader = run.loader(DataLoader(TensorDataset(data, torch.arange(7) % 3), batch_size=3))
        model = run.model(net, layers=["0"], keep="full")
        for _ in run.epochs(2):
            for batch, _ in loader:
                model(batch)
    with audit.record(tmp_path, name="of batches") as run:
        model = run.model(net, layers=["0"], keep=lambda value: value.mean(0))
        for batch, _ in run.loader(DataLoader(TensorDataset(data, torch.arange(7) % 3), batch_size=7)):
            model(batch)
    store = audit.open(tmp_path)
    made = store.embed("loop", layer="0", epochs="all")
    assert (made.samples, made.dimensions) == (14, 5)
    found = store.sql("SELECT vector FROM embeddings WHERE epoch = 1 ORDER BY index").fetchall()
    wanted = net[0](data).mean((2, 3)).detach().numpy()
    assert _distances(np.array([row[0] for row in found])) == pytest.approx(_distances(wanted), abs=1e-5)
    with pytest.raises(UsageError, match="without the values"):
        store.embed("of batches", layer="0")
    with pytest.raises(UsageError, match="without the values of the layer '3'") as caught:
        store.embed("loop", layer="3")
    assert "keep='full'" in str(caught.value.hint)
