"""The rows of a batch as one tensor of bytes, made where it will be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import get_worker_info

from audit.records import Columns
from audit.store import wire as batch


def parcel(tables: Mapping[str, Columns], *, by_loader: bool = True) -> torch.Tensor:
    """The packed rows. `by_loader` says that a loader hands them to the main process.

    Then a worker packs them straight into memory that both share: the loader would copy any other tensor there, and
    payloads are large, so that each copy of them would cost as much as hashing them.
    """
    made: list[torch.Tensor] = []

    def allocate(size: int) -> Any:
        tensor = torch.empty(0, dtype=torch.uint8)
        if by_loader and size and get_worker_info() is not None:
            tensor.set_(torch.UntypedStorage._new_shared(size, device="cpu"))  # type: ignore[no-untyped-call]
        made.append(tensor.resize_(size))
        return tensor.numpy()

    batch.pack(tables, allocate)
    return made[0]
