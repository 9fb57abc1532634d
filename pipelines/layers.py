"""Look inside while training: what layers put out, the share of zeros behind each ReLU, and the gradients coming back.

    python pipelines/layers.py
    audit sql "SELECT layer, step, zero_fraction FROM activations WHERE layer_type = 'ReLU' AND port = 'output.0'"

`layers` takes names, patterns and types. `backward=True` adds the gradients; `per_sample=False` keeps one row for the
batch instead of one for each sample; `every=2` looks at every other step. Three quarters of one layer are dead on
purpose: their bias is far below zero, so that the ReLU behind them gives 0 whatever comes in.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit


def model() -> nn.Module:
    """Four layers; 24 of the 32 units of `upper` are dead."""
    network = nn.Sequential(
        OrderedDict(
            lower=nn.Linear(8, 32),
            lower_relu=nn.ReLU(),
            upper=nn.Linear(32, 32),
            upper_relu=nn.ReLU(),
            side=nn.Linear(32, 16),
            side_relu=nn.LeakyReLU(0.01),
            head=nn.Linear(16, 3),
        )
    )
    with torch.no_grad():
        network.get_submodule("upper").bias[:24] = -100.0  # type: ignore[index]
    return network


def dataset(root: str) -> TensorDataset:
    """Points in three clouds; `root` says nothing here."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (192,), generator=generator)
    centres = 2 * torch.randn(3, 8, generator=generator)
    return TensorDataset(centres[labels] + torch.randn(192, 8, generator=generator), labels)


def main() -> None:
    """Train for two epochs, then print a line for each layer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--store", default="lineage")
    given = parser.parse_args()

    torch.manual_seed(0)
    loader: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(dataset("-"), batch_size=16, shuffle=True)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    with audit.record(given.store, name="layers") as run:
        loader = run.loader(loader, split="train")
        network = run.model(network, layers=["*_relu", nn.Linear], backward=True, per_sample=False, every=2)
        for _ in run.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()

    with audit.open(given.store) as store:
        answer = store.sql(
            """
            SELECT layer, avg(std) FILTER (direction = 'forward') AS spread,
                   avg(zero_fraction) FILTER (direction = 'forward') AS zeros,
                   avg(norm) FILTER (direction = 'backward') AS gradient
            FROM activations WHERE starts_with(port, 'output') GROUP BY layer ORDER BY layer
            """,
            run=run.run_id,
        ).fetchall()
    print(f"{'layer':12} {'spread':>8} {'zeros':>8} {'gradient':>9}")
    for layer, spread, zeros, gradient in answer:
        print(f"{layer:12} {spread:8.3f} {zeros:8.1%} {gradient:9.4f}")


if __name__ == "__main__":
    main()
