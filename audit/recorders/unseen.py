"""What a recording did not see, said at its end: nothing that was asked for is missing without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from audit.recorders.problems import Problems
from audit.recorders.watching import WatchedModel

#: What becomes of a model's calls that no batch could be found for, and whether that is worth a warning.
_NOTES = {
    "again": (
        "calls of a model were of no batch that waits for predictions; of each batch the first call counts.",
        False,
    ),
    "unknown": ("calls of a model came before any recorded batch.", False),
    "changed": (
        "calls of a model were of no recorded batch: what came from the loader was split, repeated or joined, and "
        "changed, on its way to the model. Their predictions are not recorded; give them with run.log(indices=…, logits=…).",
        True,
    ),
    "unclear": (
        "calls of a model could be of more than one batch: several were fetched ahead, and changed on their way "
        "to the model. Their predictions are not recorded; give them with run.log(indices=…, logits=…).",
        True,
    ),
}


class Unseen:
    """Counts the calls of models that no batch could be found for."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def call(self, kind: str) -> None:
        """One more of these, a key of the notes above."""
        self._calls[kind] += 1

    def tell(self, models: Sequence[WatchedModel], problems: Problems) -> None:
        """Mark the run with all of it."""
        for watched in models:
            if not watched.calls:
                name = type(watched.model).__name__
                problems.mark(f"The recorded model {name} was never called: there are no predictions of it.")
            elif watched.layers is not None:
                for layer in watched.layers.silent():
                    problems.mark(f"The hook on layer {layer} never fired: nothing of it is recorded.")
            if watched.layers is not None and watched.layers.problem:
                problems.mark(f"Layer values could not be recorded, the first: {watched.layers.problem}")
        for kind, (text, loud) in _NOTES.items():
            if count := self._calls[kind]:
                problems.mark(f"{count} {text}", loud=loud)
