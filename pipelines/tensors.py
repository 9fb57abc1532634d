"""No files at all: a TensorDataset, a linear network, and a question about single rows.

    python pipelines/tensors.py
    audit sql "FROM aum ORDER BY aum LIMIT 5"

A sample without a file is known as dataset://INDEX. A twentieth of the labels below are wrong on purpose; the area under
the margin (`aum`) finds them, because the network keeps pulling them to where they belong.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit

FEATURES, CLASSES = 8, 3


def rows(count: int, seed: int = 0) -> tuple[TensorDataset, set[int]]:
    """Three clouds of points, and which of their labels are wrong."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    centres = 2.5 * torch.randn(CLASSES, FEATURES, generator=generator)
    x = centres[labels] + torch.randn(count, FEATURES, generator=generator)
    wrong = torch.randperm(count, generator=generator)[: count // 20]
    given = labels.clone()
    given[wrong] = (given[wrong] + 1) % CLASSES
    return TensorDataset(x, given), set(wrong.tolist())


def dataset(root: str) -> TensorDataset:
    """What `audit run --pipeline pipelines/tensors.py` goes through; `root` says nothing here."""
    return rows(300)[0]


def model() -> nn.Module:
    """One linear layer."""
    return nn.Linear(FEATURES, CLASSES)


def main() -> None:
    """Train, then compare the rows of the smallest margin with those whose labels were made wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--store", default="lineage")
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()

    torch.manual_seed(0)
    data, wrong = rows(300)
    loader: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(data, batch_size=20, shuffle=True)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with audit.record(given.store, name="tensors") as run:
        loader, network = run.loader(loader, split="train"), run.model(network)
        for _ in run.epochs(given.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()

    with audit.open(given.store) as store:
        lowest = store.sql(
            "SELECT index, source, aum FROM aum ORDER BY aum LIMIT ?", run=run.run_id, parameters=[len(wrong)]
        ).fetchall()
    found = sum(index in wrong for index, _, _ in lowest)
    print(f"{found} of the {len(wrong)} wrong labels are among the {len(lowest)} rows of the smallest margin:")
    for index, source, aum in lowest[:5]:
        print(f"  {source}  aum {aum:.2f}{'  (label made wrong)' if index in wrong else ''}")


if __name__ == "__main__":
    main()
