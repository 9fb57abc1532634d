"""Look closely only when something goes wrong: layers and pictures are kept for the steps whose loss is too high.

    python pipelines/spikes.py
    audit sql "FROM spikes"
    audit sql "SELECT layer, max, nonfinite FROM activations WHERE index = 100"

`when` decides which layer values stay, and `capture_where` which exact inputs, both after the loss is known: nothing
else takes space. `FROM spikes` names the samples of the steps whose loss stands out of those before it. One row of the
data below was written in other units, a thousand times too large.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit

SPOILT_BATCH = 100


def dataset(root: str) -> TensorDataset:
    """Points in three clouds, one of them far out; `root` says nothing here."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(3, (256,), generator=generator)
    centres = 3 * torch.randn(3, 8, generator=generator)
    points = centres[labels] + torch.randn(256, 8, generator=generator)
    # The wrong unit, and on the far side of its own class.
    points[SPOILT_BATCH] = -1000 * centres[labels[SPOILT_BATCH]]
    return TensorDataset(points, labels)


def model() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def main() -> None:
    """Train, then ask the spike back to its samples."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--store", default="lineage")
    parser.add_argument("--threshold", type=float, default=3.0)
    given = parser.parse_args()

    torch.manual_seed(0)
    loader: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(dataset("-"), batch_size=8)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    when = f"loss > {given.threshold}"
    with audit.record(given.store, name="spikes", capture="full", capture_where=when) as run:
        loader = run.loader(loader, split="train")
        network = run.model(network, layers=["0", "1", "2"], when=when)
        for _ in run.epochs(3):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()

    with audit.open(given.store) as store:
        rows = store.sql("FROM spikes ORDER BY loss DESC", run=run.run_id).dicts()
        kept = store.sql("SELECT count(*), count(DISTINCT (epoch, index)) FROM activations", run=run.run_id).fetchone()
    for step in dict.fromkeys(row["step"] for row in rows):
        worst = next(row for row in rows if row["step"] == step)
        usual, loss = worst["typical_loss"], worst["step_loss"]
        print(
            f"step {step}: loss {loss:.2f} where {usual:.2f} is usual; most of it by {worst['source']} ({worst['loss']:.1f})"
        )
    print(f"layer values were kept for {kept[1]} visits ({kept[0]} rows) of {3 * len(loader.dataset)}" if kept else "")


if __name__ == "__main__":
    main()
