"""What a worker sends while shared memory is full: by value, through the pipe.

A loader hands tensors over in shared memory, and moves them there in a thread of the worker. If that is full, the thread
prints an error, what it had to send is lost, and the main process waits for it without end. So they are moved there before.
"""

from __future__ import annotations

import pickle
from typing import Any, TypeVar, cast

from torch.utils.data import get_worker_info

from audit.recorders.batch_tensors import all_tensors

MadeObject = TypeVar("MadeObject")


class SentCopy:
    """An object that arrives as itself in another process, with a copy of its tensors instead of shared ones."""

    def __init__(self, sent: Any) -> None:
        self._bytes = pickle.dumps(sent)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return pickle.loads, (self._bytes,)


def to_send(made: MadeObject, parts: list[Any]) -> MadeObject:
    """Return what a worker gives to its loader for `made`: itself if the tensors of these parts fit into shared memory."""
    if get_worker_info() is None:
        return made
    try:
        for tensor in all_tensors(parts):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return cast(MadeObject, SentCopy(made))
    return made
