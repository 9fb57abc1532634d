"""Makes batches that wait for predictions of the envelopes that arrive: adds to rows what only the main process knows."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from audit.models.meaning import MOST_NUMBERS
from audit.recorders.calls.unseen_changes import WHOLE_BATCHES
from audit.recorders.capture_plan import CapturePlan
from audit.recorders.envelope import BatchLayout, RecordedBatch
from audit.recorders.loop.batch_labels import are_numbers, labels_part
from audit.recorders.loop.loader_recording import Iteration
from audit.recorders.loop.numbering import VisitCounter
from audit.recorders.model.unpredicted_batch import BatchRows, UnpredictedBatch
from audit.recorders.problems import Problems
from audit.recorders.ranks import rank
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.stage_register import StageRegister
from audit.records import Run, add_unrecorded
from audit.store import wire

#: A run keeps so many texts on what was not seen.
_MOST_UNRECORDED = 50


#: So many values that could not be recorded are named one by one.
_MOST_NAMED = 10


class BatchIntake:
    """Knows every loader and dataset that sends rows, each by a key."""

    def __init__(self, run: Run, problems: Problems, plan: CapturePlan, stages: StageRegister) -> None:
        self._run = run
        self._problems = problems
        self._plan = plan
        self._splits: dict[int, str | None] = {}
        self._lengths: dict[int, int] = {}
        self._stages = stages
        self.visits = VisitCounter()
        #: Whether the user knows that items have no label, or need none.
        self.has_warned_of_labels = False
        self.expected_epochs = 1
        #: What could not be recorded, as far as the run says it one by one.
        self._named: set[str] = set()

    def add(self, key: int, pipeline: Pipeline, split: str | None, length: int) -> None:
        """Add a loader or a dataset that will send rows under this key."""
        self._stages.add(key, pipeline)
        self._splits[key] = split
        self._lengths[key] = length

    def unwrap(
        self, key: int, envelope: RecordedBatch, epoch: int, number: int | None, iteration: Iteration | None
    ) -> UnpredictedBatch | None:
        """Return an envelope's rows with what only this process knows; None for an empty one."""
        self._note_problems(envelope)
        if not envelope.count:
            return None
        arrived = None
        if not envelope.indices:
            assert iteration is not None
            arrived = envelope.indices = list(range(iteration.arrived, iteration.arrived + envelope.count))
            iteration.arrived += envelope.count
        if all(label is None for label in envelope.labels):
            envelope.labels = _put_in_order(_batch_labels(envelope.data, envelope.count), envelope.layout)
        visits = self.visits.next_all(epoch, envelope.indices)
        stamp = wire.BatchStamp(
            self._run.run_id,
            epoch,
            number,
            visits,
            indices=arrived,
            split=self._splits.get(key),
            rank=rank(),
            stages=self._stages.ordinals(key, envelope.stages),
        )
        places: list[int | None] = [*range(envelope.count)]
        return UnpredictedBatch(
            **envelope.facts(),
            data=envelope.data,
            stamped=envelope.stamp_rows(stamp),
            epoch=epoch,
            visits=visits,
            classes=self._run.classes,
            size=envelope.row_bytes,
            batches=[number] * envelope.count,
            positions=places if number is not None else [None] * envelope.count,
            origin_key=key,
            loose=number is None,
            origin=weakref.ref(iteration) if iteration is not None else None,
            targets=order_targets(_batch_targets(envelope.data, len(envelope.ok)), envelope.layout),
        )

    def take_stages(self, *, rest: bool = False) -> list[BatchRows]:
        """Return the stages that are not written yet; with `rest`, also those that no sample went through."""
        if rest:
            self._stages.register_rest()
        stages = self._stages.take_rows()
        return [BatchRows(tables={"stages": stages})] if stages is not None else []

    def _note_problems(self, envelope: RecordedBatch) -> None:
        for problem in envelope.problems:
            if self._problems.strict:
                raise RuntimeError(problem)
            if problem in self._named or len(self._named) < _MOST_NAMED:
                self._named.add(problem)
                self._problems.mark(f"A value could not be recorded: {problem}")
            else:
                # A run keeps a limited number of marks: those of other kinds must find room.
                self._problems.mark(f"More than {_MOST_NAMED} values could not be recorded.")
        has_labels = any(label is not None for label in (*envelope.labels, *envelope.item_targets))
        if (
            envelope.unlabelled
            and not self.has_warned_of_labels
            and not has_labels
            and _batch_targets(envelope.data, envelope.count) is None
        ):
            self.has_warned_of_labels = True
            self._problems.mark(
                f"No label was found in the items ({envelope.unlabelled}): predictions are not graded. "
                "Say where it is with label=: a key, a position, or a function of the item."
            )
        if envelope.unrecorded:
            add_unrecorded(self._run, envelope.unrecorded, _MOST_UNRECORDED)
        if envelope.unseen:
            add_unrecorded(self._run, [f"{envelope.unseen}: {WHOLE_BATCHES}"], _MOST_UNRECORDED)
            self._problems.mark(
                f"The stages of samples were not recorded: {envelope.unseen} makes whole batches, and audit did not see the "
                "single samples being made. Their `load` is the finished item. Let __getitems__ call self[index], or name "
                "the steps with audit.stage."
            )
        self._plan.spend(envelope.payload_bytes, envelope.count, self.expected_epochs * sum(self._lengths.values()))


def _put_in_order(labels: list[int | None], layout: BatchLayout | None) -> list[int | None]:
    """Return labels by place, where a collate function may have put the samples in another order."""
    if layout is None:
        return labels
    places = layout.input_places or ()
    found = dict(zip(places, labels, strict=True)) if len(places) == len(labels) else {}
    return [found.get(place) for place in range(len(labels))]


def order_targets(targets: Any, layout: BatchLayout | None) -> Any:
    """Return targets, a tensor or a list, by place; None where a collate function leaves open which is which."""
    if targets is None or layout is None:
        return targets
    places = layout.input_places or ()
    if sorted(places) != list(range(len(targets))):
        return None
    order = torch.tensor(places).argsort()
    return targets[order] if isinstance(targets, torch.Tensor) else [targets[int(row)] for row in order]


def _batch_targets(data: Any, count: int) -> torch.Tensor | None:
    """Return targets that are not class numbers: real numbers, or a row of them for each sample."""
    found = labels_part(data)
    if not isinstance(found, torch.Tensor) or found.dim() not in (1, 2, 3, 4) or found.shape[0] != count:
        return None
    is_float = found.is_floating_point()
    if is_float and found.dim() > 2:  # points, small maps
        return found.detach().to("cpu", copy=True) if found[0].numel() <= MOST_NUMBERS else None
    if found.dim() == 4:  # masks (N, 1, H, W)
        return found[:, 0].detach().to("cpu", copy=True) if found.shape[1] == 1 else None
    # As they are now: the loop may change them.
    is_target = found.dim() == 2 or is_float == (found.dim() == 1)
    return found.detach().to("cpu", copy=True) if is_target else None


def _batch_labels(data: Any, count: int) -> list[int | None]:
    """Return the labels of the collated batch, where the items themselves had none."""
    found = labels_part(data)
    # Of several whole numbers, as in (x, index, y), nothing says which is the label.
    further = data if isinstance(data, (tuple, list)) else ()
    others = [part for part in further if part is not found]
    if not are_numbers(found, count) or any(are_numbers(part, count) for part in others):
        return [None] * count
    return [int(label) for label in found]
