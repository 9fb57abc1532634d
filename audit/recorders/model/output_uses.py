"""What a loop uses a model's output for, where that shows whether its numbers are logits or probabilities."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from audit.recorders.batch_tensors import all_tensors

#: Functions that take logits, and one that takes probabilities.
_USES: dict[Any, bool] = {
    functional.binary_cross_entropy: False,
    **dict.fromkeys(
        (
            functional.cross_entropy,
            functional.binary_cross_entropy_with_logits,
            functional.multilabel_soft_margin_loss,
            functional.softmax,
            functional.log_softmax,
            functional.logsigmoid,
            torch.softmax,
            torch.log_softmax,
            torch.sigmoid,
            torch.Tensor.softmax,
            torch.Tensor.log_softmax,
            torch.Tensor.sigmoid,
        ),
        True,
    ),
}

#: Called with whether the output is used as logits.
NoteUse = Callable[..., None]


class OutputUses:
    """The outputs whose use is still of interest, and who wants to know of it."""

    def __init__(self) -> None:
        self.watched: list[tuple[weakref.ref[torch.Tensor], NoteUse]] = []

    def watch(self, output: Any, note: NoteUse) -> None:
        """Look out for uses of the tensors of the newest output, in place of those of earlier ones."""
        self.forget(note)
        self.watched += [(weakref.ref(tensor), note) for tensor in all_tensors(output)]

    def forget(self, note: NoteUse) -> None:
        """Look out no longer for those who wanted to know."""
        self.watched = [(reference, other) for reference, other in self.watched if other != note]

    def note(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Look at one operation of the loop."""
        as_logits = _USES.get(function)
        given = args[0] if args else kwargs.get("input")
        if as_logits is None or not isinstance(given, torch.Tensor):
            return
        for reference, note in self.watched:
            output = reference()
            if output is not None and (output is given or _is_view(given, output)):
                note(as_logits=as_logits)
                self.forget(note)


def _is_view(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether a tensor is another form of an output, as `squeeze` and `view` make it."""
    try:
        return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False
