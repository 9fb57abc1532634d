"""Small datasets and loops that the tests of recordings share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from audit.store.read.freshness import NewestReader
from audit.store.read.reader import Reader

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


class Vectors(Dataset):  # type: ignore[type-arg]
    """Ten samples of six random numbers, the same each time."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.randn(6, generator=torch.Generator().manual_seed(index)), index % 3


def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def negate(x: torch.Tensor) -> torch.Tensor:
    return -x


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, outputs)


class Questions:
    """One store, asked with SQL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._current: NewestReader[Reader] | None = None

    @property
    def _reader(self) -> Reader:
        """The store as it is now; opened again only if something was committed."""
        if self._current is None:
            self._current = NewestReader(Reader, str(self.path), interval=0)
        self._current.expire()
        return self._current.reader()

    def __call__(self, query: str) -> list[Any]:
        return list(self._reader.sql(query).fetchall())

    @property
    def warnings(self) -> list[str]:
        return list(self._reader.runs()[-1].warnings)

    @property
    def status(self) -> str:
        return str(self._reader.runs()[-1].status)


RecordLoop = Callable[..., Questions]
