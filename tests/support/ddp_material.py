"""Two processes that train one model, plain and recorded."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from recording_material import Numbers, linear
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import audit


def train(rank: int, port: int, store: str, results: Any) -> None:
    """One rank: the same training twice, then what it left behind."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        plain = _epoch(rank, None)
        with audit.record(store, name=f"rank-{rank}", tags={"rank": str(rank)}, strict=True) as run:
            recorded = _epoch(rank, run)
        results[rank] = (plain, recorded)
        # 13 samples for two ranks: the sampler pads with one.
        with audit.record(store, name=f"padded-{rank}", strict=True) as run:
            for epoch in run.epochs(2):
                _epoch(rank, run, count=13, seed=epoch)
        # The same with one left out.
        with audit.record(store, name=f"dropped-{rank}", strict=True) as run:
            for epoch in run.epochs(2):
                _epoch(rank, run, count=13, seed=epoch, drop_last=True)
    finally:
        dist.destroy_process_group()


def _epoch(rank: int, run: Any, count: int = 12, seed: int = 1, drop_last: bool = False) -> list[list[float]]:
    dataset, model = Numbers(count), linear()
    sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=rank, seed=seed, drop_last=drop_last)
    loader: Any = DataLoader(dataset, batch_size=2, sampler=sampler)
    if run is not None:
        loader, model = run.loader(loader), run.model(model)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    gradients: list[list[float]] = []
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
        gradients += [p.grad.flatten().tolist() for p in wrapped.parameters() if p.grad is not None]
        optimizer.step()
    return gradients + [p.flatten().tolist() for p in wrapped.parameters()]
