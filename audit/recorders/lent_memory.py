"""Shared memory that a worker packs rows into, and that it has again when the main process has written them.

Memory that is used for the first time costs more than to fill it: the kernel hands it over page by page, filled with zeros, and
each process that reads it asks for each page again. Rows with payloads take megabytes in each batch, so a worker keeps the blocks
that it has sent them in, and the main process keeps them mapped. A byte at the beginning of a block says whether it is lent.
"""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import get_worker_info

#: The first bytes of a block, one of which says that it is lent; the rows are behind them.
_HEAD = 64
_IS_LENT = 0
#: A worker keeps so many blocks: what its loader fetches ahead, what waits for the writer, and what it writes.
_MOST_BLOCKS = 8
#: All workers keep at most this part of the machine's shared memory, which the user's batches travel through, too.
_PART_OF_SHARED_MEMORY = 4
_SHARED_MEMORY = "/dev/shm"


class LentRows:
    """Bytes in a block of shared memory. The process that receives them gives the block back when nothing refers to them any more."""

    def __init__(self, block: torch.Tensor, size: int, key: tuple[int, int] | None) -> None:
        self._block = block
        # The flag is written whenever the last reference goes, perhaps while operations on tensors are followed.
        self._memory = block.numpy()
        self._length = size
        #: The worker, and the number of a block that it keeps; None for one that it does not use again.
        self._key = key

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        # By value: nobody receives the block.
        sent = bytes(self.view)
        self._memory[0] = not _IS_LENT
        return bytes, (sent,)

    @property
    def view(self) -> Any:
        """The memory of the bytes, to be filled."""
        return self._memory[_HEAD : _HEAD + self._length]

    @property
    def __array_interface__(self) -> Any:
        # An array that is made of it refers to this object, and what Arrow makes of the array does too.
        return self.view.__array_interface__


def _reduce_shared(rows: LentRows) -> tuple[Any, tuple[Any, ...]]:
    return _receive, (rows._block, rows._length, rows._key)


#: What the queue of a loader pickles with.
ForkingPickler.register(LentRows, _reduce_shared)


class _ReceivedRows(LentRows):
    def __del__(self) -> None:
        self._memory[0] = not _IS_LENT  # without a call: while Python ends, modules are empty already


#: Blocks that have arrived here, by their key, so that they stay mapped.
_mapped_blocks: dict[tuple[int, int], torch.Tensor] = {}


def _receive(block: torch.Tensor, size: int, key: tuple[int, int] | None) -> LentRows:
    if key is not None:
        _mapped_blocks[key] = block
    return _ReceivedRows(block, size, key)


def forget_received() -> None:
    """Let go of all blocks, whose workers may have ended. Rows that are still used keep theirs."""
    _mapped_blocks.clear()


class LentMemory:
    """The blocks of one worker."""

    def __init__(self) -> None:
        #: By number; of each block, the memory that it begins with.
        self._blocks: dict[int, tuple[torch.Tensor, Any]] = {}
        self._made = 0

    def lend(self, size: int) -> LentRows | None:
        """Return memory for so many bytes of rows; None where there is none to share."""
        wanted = _HEAD + size
        free = [number for number, (_, head) in self._blocks.items() if head[0] != _IS_LENT]
        fitting = [number for number in free if len(self._blocks[number][0]) >= wanted]
        if fitting:
            return self._mark(min(fitting, key=lambda number: len(self._blocks[number][0])), size)
        for number in free:  # all too small: batches have grown
            del self._blocks[number]
        room = wanted + wanted // 8  # the next batch may be a little larger
        kept = sum(len(block) for block, _ in self._blocks.values())
        is_kept = len(self._blocks) < _MOST_BLOCKS and kept + room <= _most_bytes()
        block = _make_block(room if is_kept else wanted)
        if block is None:
            return None
        if not is_kept:
            return LentRows(block, size, None)
        self._made += 1
        self._blocks[self._made] = block, block.numpy()[:_HEAD]
        return self._mark(self._made, size)

    def _mark(self, number: int, size: int) -> LentRows:
        block, head = self._blocks[number]
        head[0] = _IS_LENT
        return LentRows(block, size, (os.getpid(), number))


def _make_block(size: int) -> torch.Tensor | None:
    block = torch.empty(0, dtype=torch.uint8)
    try:
        block.set_(torch.UntypedStorage._new_shared(size, device="cpu"))  # type: ignore[no-untyped-call]
    except RuntimeError:  # shared memory is full
        return None
    return block.resize_(size)


def _most_bytes() -> int:
    """Return how much shared memory this worker may keep."""
    worker = get_worker_info()
    try:
        whole = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return 0
    return whole.f_blocks * whole.f_frsize // _PART_OF_SHARED_MEMORY // max(1, worker.num_workers if worker else 1)
