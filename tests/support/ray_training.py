"""The loop of one worker of Ray Train, recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import audit


def train(settings: dict[str, Any]) -> None:
    """Two epochs over a few vectors, shared out among the ranks."""
    rank = torch.distributed.get_rank()
    numbers = torch.arange(settings["samples"])
    dataset = TensorDataset(numbers[:, None].float(), numbers % 2)
    sampler: Any = DistributedSampler(dataset)
    model: nn.Module = nn.Linear(1, 2)
    with audit.record(settings["store"], name=f"trained-{rank}", strict=True) as run:
        loader: Any = run.loader(DataLoader(dataset, batch_size=2, sampler=sampler))
        model = run.model(model)
        wrapped = nn.parallel.DistributedDataParallel(model)
        for epoch in run.epochs(2):
            sampler.set_epoch(epoch)
            for x, y in loader:
                nn.functional.cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
