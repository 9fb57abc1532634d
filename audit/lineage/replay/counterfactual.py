"""Would the model be right more often if its input were prepared otherwise? A few hundred samples, made and predicted again.

Each counterfactual changes one thing: the order of the channels, the normalisation, the aspect, the orientation, or the
order of the classes. Which of them explains the errors is for a check to judge; this module only counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from audit.lineage.replay.class_orders import class_orders
from audit.lineage.replay.model import ReplayModel
from audit.lineage.replay.pipeline import ReplayedVisit, ReplayPipeline, ReplayTask, rebuild_pipeline, replay_all
from audit.lineage.replay.preparations import PreparedBatch, preparations, read_batch
from audit.lineage.replay.recorded_visits import Key, RecordedVisits
from audit.records import Run
from audit.store.read.reader import Reader

_BATCH = 32
#: After this many samples, a counterfactual that is not better so far is given up.
_FIRST = 64


@dataclass(frozen=True, slots=True)
class GradedSample:
    """One sample to predict again: its visit, its label and what was recorded as predicted."""

    key: Key
    label: int
    predicted: int | None


@dataclass(slots=True)
class Counterfactual:
    """One change of the input, and how many samples it turned right and wrong."""

    description: str
    fixed: int = 0
    broken: int = 0
    samples: int = 0


@dataclass(slots=True)
class Probe:
    """What the model said of the same samples, as recorded, again, and under each counterfactual."""

    samples: int = 0
    correct: int = 0
    #: How many predictions are those that were recorded.
    agreed: int = 0
    #: The recorded predictions against those of the model in evaluation mode.
    evaluation: Counterfactual = field(default_factory=lambda: Counterfactual("with the model in evaluation mode"))
    changes: dict[str, Counterfactual] = field(default_factory=dict)


def probe(
    reader: Reader,
    run: Run,
    graded: Sequence[GradedSample],
    *,
    checkpoint: str | None = None,
    trust: bool = False,
    split: str | None = None,
) -> Probe:
    """Make samples again, predict them under each counterfactual, and count what changes.

    Code that the recipe names runs only if this machine recorded it, or with `trust`; else CodeNotTrusted.
    """
    model = ReplayModel(run, reader.location, checkpoint, trust=trust)
    visits = RecordedVisits(reader, run.run_id)
    pipeline = rebuild_pipeline(run, reader.location, None, visits.find_named_stages(), split, trust=trust)
    pipeline.level, pipeline.keep_final = "full", True
    return _Prober(model, run).execute(_batches(pipeline, visits, graded))


def _batches(
    pipeline: ReplayPipeline, visits: RecordedVisits, graded: Sequence[GradedSample]
) -> Iterator[list[tuple[GradedSample, ReplayedVisit]]]:
    """Yield samples that were made again, a few at a time."""
    by_key = {one.key: one for one in graded}
    for start in range(0, len(graded), _BATCH):
        keys = [one.key for one in graded[start : start + _BATCH]]
        (facts,) = visits.chunks(keys)
        states = {} if pipeline.seeded else visits.states(keys)
        tasks = []
        for key, fact in facts.items():
            place = pipeline.place_of(key[1], fact["source"], fact["root"], states.get(key, {}))
            if place is not None:
                tasks.append(ReplayTask(*key, states.get(key, {}), place))
        made = [outcome for outcome in replay_all(pipeline, tasks, workers=0) if outcome.final is not None]
        yield [(by_key[one.task.epoch, one.task.index, one.task.visit], one) for one in made]


class _Prober:
    """Counts over the batches."""

    def __init__(self, model: ReplayModel, run: Run) -> None:
        self._model = model
        self._orders = class_orders(run.classes or [])
        self._result = Probe()

    def execute(self, batches: Iterator[list[tuple[GradedSample, ReplayedVisit]]]) -> Probe:
        """Return the counts over all batches."""
        result = self._result
        for made in batches:
            prepared = read_batch([outcome for _, outcome in made])
            if prepared is None:
                continue
            graded = [one for one, _ in made]
            now = self._predict(prepared.inputs)
            right = [p == one.label for p, one in zip(now, graded, strict=True)]
            result.samples += len(graded)
            result.correct += sum(right)
            result.agreed += sum(p == one.predicted for p, one in zip(now, graded, strict=True))
            _count(result.evaluation, [one.predicted == one.label for one in graded], right)
            self._try_orders(now, graded, right)
            self._try_preparations(prepared, graded, right)
        return result

    def _try_orders(self, now: list[int], graded: list[GradedSample], right: list[bool]) -> None:
        for description, order in self._orders.items():
            moved = [order[p] if p < len(order) else p for p in now]
            self._compare(description, moved, graded, right)

    def _try_preparations(self, prepared: PreparedBatch, graded: list[GradedSample], right: list[bool]) -> None:
        for description, make in preparations(prepared).items():
            if not self._is_given_up(description):
                self._compare(description, self._predict(make()), graded, right)

    def _is_given_up(self, description: str) -> bool:
        known = self._result.changes.get(description)
        return known is not None and known.samples >= _FIRST and known.fixed <= known.broken

    def _compare(self, description: str, predicted: list[int], graded: list[GradedSample], right: list[bool]) -> None:
        counted = self._result.changes.setdefault(description, Counterfactual(description))
        _count(counted, right, [p == one.label for p, one in zip(predicted, graded, strict=True)])

    def _predict(self, inputs: torch.Tensor) -> list[int]:
        return self._model.predict(list(inputs))


def _count(into: Counterfactual, before: Sequence[bool], after: Sequence[bool]) -> None:
    into.samples += len(before)
    into.fixed += sum(now and not was for was, now in zip(before, after, strict=True))
    into.broken += sum(was and not now for was, now in zip(before, after, strict=True))
