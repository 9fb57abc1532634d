"""Reports at the end of a recording what it did not see of its models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from audit.recorders.model.recorded_model import RecordedModel
from audit.recorders.model.waiting_batches import WaitingBatches
from audit.recorders.problems import Problems

#: The message for model calls without a matching batch, and whether it is worth a warning.
_NOTES = {
    "early": ("model calls came before any recorded batch and were not stored.", False),
    "unmatched": ("model calls could not be matched to a recorded batch and were not stored.", True),
}


class UnmatchedCalls:
    """Counts the calls of models that no batch could be found for."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        """Count a call of this kind, a key of the notes above."""
        self._calls[kind] += 1

    def report(
        self, models: Sequence[RecordedModel], batches: WaitingBatches, problems: Problems, *, has_samples: bool
    ) -> None:
        """Mark the run with everything that was not recorded of these models, and with the batches that none was given."""
        for watched in models:
            if not watched.calls:
                name = type(watched.model).__name__
                problems.mark(
                    f"The recorded model {name} was never called: there are no predictions of it. Call it as model(x); model.forward(x) is not recorded."
                )
            elif watched.layers is not None:
                for layer in watched.layers.silent_layers():
                    problems.mark(f"The hook on layer {layer} never fired: nothing of it is recorded.")
            if watched.layers is not None and watched.layers.problem:
                problems.mark(f"Layer values could not be recorded, the first: {watched.layers.problem}")
        for kind, (text, loud) in _NOTES.items():
            if count := self._calls[kind]:
                sentence = (
                    f"{count} {text}" if count > 1 else f"1 {text.replace('calls', 'call', 1).replace('were', 'was')}"
                )
                problems.mark(sentence, loud=loud)
        if self._calls["early"] and not has_samples:
            problems.mark(
                "The recorded model was called, and no sample was recorded: the loop iterates another loader. Give run.loader the one "
                "that it iterates, and iterate what run.loader returns: loader = run.loader(accelerator.prepare(loader))."
            )
        without, with_call = batches.count_uncalled()
        if without:
            problems.mark(
                f"{without} of {without + with_call} batches {'have' if without > 1 else 'has'} no recorded model call: their samples have no "
                "prediction. Call the recorded model itself, as model(x): model.forward(x) and calls of its parts are not recorded.",
                loud=False,
            )
