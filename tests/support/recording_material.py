"""Small datasets and loops that the tests of recordings share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import audit

WIDTH = 6


class Numbers(Dataset):  # type: ignore[type-arg]
    """Sample n is a vector around n; some fail, some kill their process."""

    def __init__(self, count: int = 12, transform: Any = None, fails: frozenset[int] = frozenset()) -> None:
        self.count = count
        self.transform = transform
        self.fails = fails

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.fails:
            raise LookupError(f"no sample {index}")
        x = torch.full((WIDTH,), float(index)) + torch.arange(WIDTH) / 10
        return (x if self.transform is None else self.transform(x)), int(index) % 3


def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def negate(x: torch.Tensor) -> torch.Tensor:
    return -x


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, outputs)


class Asked:
    """One store, asked with SQL."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, query: str) -> list[Any]:
        with audit.open(self.path) as store:
            return list(store.sql(query).fetchall())

    @property
    def warnings(self) -> list[str]:
        with audit.open(self.path) as store:
            return list(store.runs()[-1].warnings)

    @property
    def status(self) -> str:
        with audit.open(self.path) as store:
            return str(store.runs()[-1].status)


Recorded = Callable[..., Asked]
