"""Whether the first axis of a tensor is the samples of the call, as far as the calls show it.

A tensor with as many entries as the call had rows may have them by chance: a table of ten centres beside a batch of ten.
Two calls of different length that both agree prove it, and one that does not agree refutes it.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

#: What is known of a port's first axis; None where all calls agreed and had one length.
SAMPLES, OTHER = "samples", "other"


class SampleAxis:
    """What the calls have shown of each port."""

    def __init__(self) -> None:
        self._lengths: dict[Hashable, set[int]] = {}
        self._refuted: set[Hashable] = set()

    def note(self, port: Hashable, value: torch.Tensor, size: int) -> None:
        """Take in what a call with `size` rows returned at a port."""
        if value.dim() and value.shape[0] == size:
            self._lengths.setdefault(port, set()).add(size)
        else:
            self.refute(port)

    def refute(self, port: Hashable) -> None:
        """Note that the first axis is not the samples: where the lengths agree, that is chance."""
        self._refuted.add(port)

    def was_assumed(self, port: Hashable) -> bool:
        """Return whether calls agreed by chance before one of another length did not."""
        return bool(self._lengths.get(port))

    def first_axis(self, port: Hashable) -> str | None:
        """Return what is known of the first axis: SAMPLES, OTHER or None."""
        if port in self._refuted:
            return OTHER
        return SAMPLES if len(self._lengths.get(port, ())) > 1 else None
