"""Records the items that one process makes: in a worker, or in the main process when there is none.

Raises what the user's dataset raises and nothing else: what cannot be recorded is a problem that travels with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from audit.recorders.calls.unseen_changes import UnseenChanges
from audit.recorders.envelope import Envelope
from audit.recorders.model.mixing import Weights
from audit.recorders.packed_rows import parcel
from audit.recorders.randomness.watch import Watch
from audit.recorders.seeded_dataset import CaptureLevel, Instrument
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.batch_visits import BatchFetch, States, make_batch
from audit.recorders.visit.items import label_number, parts_of, split_item
from audit.recorders.visit.origin import Origin, class_names, origin_of
from audit.recorders.visit.sample_row import add_sample
from audit.recorders.visit.stage_numbers import StageIds, number_batch, renumber
from audit.recorders.visit.visit import INSIDE, Visit
from audit.records import Stage
from audit.store import wire as batch

#: Where an item's label is: a key, a position, or a function of the item.
LabelFinder = Callable[[Any], Any] | str | int | None

_MOST_SENT = 256
_TABLES = ("samples", "stage_outputs", "payloads", "rng")
#: What each process builds for itself.
_OWN = (
    *("_watch", "_tables", "indices", "digests", "labels", "problems", "_routes", "_ids", "_unlabelled", "_unseen"),
    *("failing", "_changes"),
)


class ItemRecorder:
    """Gathers the rows of items until they are put into an envelope."""

    def __init__(self, dataset: Any, pipeline: Pipeline, level: CaptureLevel, label: LabelFinder = None) -> None:
        self.dataset = dataset
        self.instrument = Instrument(pipeline)
        self.level = level
        self.label = label
        self.classes = class_names(dataset)
        self.clear()
        self._watch: Watch | None = None
        self._ids = StageIds()
        self._changes = UnseenChanges(dataset)
        #: Arrays of generators that were sent already, the latest of them: they come again soon or never.
        self._sent: dict[str, None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN} | {"_sent": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch = None
        self._ids = StageIds()
        self._changes = UnseenChanges(self.dataset)
        self.clear()

    def clear(self) -> None:
        """Forget what was not put into an envelope: items of a batch that never came to be."""
        self._tables = {name: batch.columns(name) for name in _TABLES}
        self.indices: list[int] = []
        self.digests: list[str | None] = []
        self.labels: list[int | None] = []
        self.problems: list[str] = []
        #: The stages that each visit ran, in order.
        self._routes: list[list[int]] = []
        self._unlabelled: str | None = None
        self._unseen: str | None = None
        #: An item could not be made, and its batch has not been collated yet.
        self.failing = False

    # -- one item --------------------------------------------------------------------------------

    def record(self, index: int, make: Callable[[], Any], origin: Origin | None = None) -> Any:
        """What `make` makes, recorded. Raises what it raises, after noting it."""
        try:
            watch = self._watching()
            watch.begin()
            watching = self.instrument.watching(self.level.get())
            visit = watching.__enter__()
        except Exception as error:
            self._problem(index, error)
            return make()
        item: Any = None
        try:
            item = self._changes.run(make)
            self._look_at(index, visit, item)
        except Exception as error:
            visit.fail("dataset" if visit.rows else "load", error)
            raise
        finally:
            try:
                watching.__exit__(None, None, None)
                self._add_rows(index, visit, item, origin, watch.drew())
            except Exception as error:
                self._problem(index, error)
        return item

    def _watching(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self.dataset)
        return self._watch

    def record_batch(self, fetch: BatchFetch, samples: Sequence[tuple[int, Origin | None]]) -> Any:
        """What the dataset makes of a whole batch, recorded. Raises what it raises, after noting it.

        `samples` are the numbers and origins of the batch's samples.
        """
        try:
            watch = self._watching()
        except Exception as error:
            self._problem(samples[0][0] if samples else -1, error)
            return fetch.make(self.dataset)
        made = make_batch(self.dataset, fetch, self.instrument, self.level.get(), watch)
        for place, (index, origin) in enumerate(samples):
            visit = made.visits[place]
            if visit is None and made.error is not None:
                # Whether this sample was begun is not known.
                continue
            try:
                self._add_place(index, origin, visit, fetch.item(made.made, place), made.states[place])
            except Exception as error:
                self._problem(index, error)
        if made.error is not None:
            raise made.error
        return made.made

    def _add_place(self, index: int, origin: Origin | None, visit: Visit | None, item: Any, states: States) -> None:
        """Add the rows of one sample of a batch that was made as a whole."""
        if visit is None:
            visit = Visit(self.instrument.pipeline, self.level.get())
            self._unseen = type(self.dataset).__name__
        if visit.error is None:
            self._look_at(index, visit, item)
        visit.end()
        self._add_rows(index, visit, item, origin, states)

    def _look_at(self, index: int, visit: Visit, item: Any) -> None:
        """Between the last stage and the model lies the item itself: noted where it is something else."""
        try:
            value, label = split_item(item)
            visit.settle_calls(value, label)
            if 0 not in visit.rows:
                if visit.problem is None:
                    visit.loaded(value)
                    self._changes.add_no_stage()
            elif not any(visit.holds(part) for part in parts_of(item)) and not visit.holds_equal(value):
                if not visit.explains(value):
                    self._changes.add_gap(visit.last_stage or "load", "item")
                visit.noted("item", value, 0)
            for before, after in visit.unseen_changes(item):
                self._changes.add_gap(before, after)
        except Exception as error:
            self._problem(index, error)

    def _problem(self, index: int, error: Exception) -> None:
        # Recording must never break the user's loop; the run is marked instead.
        self.problems.append(f"sample {index}: {type(error).__name__}: {error}")

    # -- rows ------------------------------------------------------------------------------------

    def _add_rows(self, index: int, visit: Visit, item: Any, origin: Origin | None, states: States) -> None:
        position = len(self.indices)
        origin = origin or origin_of(self.dataset, index)
        label = self._label_of(item)
        label = origin.label if label is None else label
        if label is None and visit.error is None and self._unlabelled is None:
            self._unlabelled = _form(item)
        numbers = {ordinal: self._ids.number(stage) for ordinal, stage in self.instrument.describe(visit).items()}
        self._routes.append([numbers.get(ordinal, ordinal) for ordinal in visit.route])
        visit.write(index, position, self._tables["stage_outputs"], self._tables["payloads"], numbers)
        add_sample(self._tables["samples"], index, position, visit, origin, label, self.classes)
        self.indices.append(index)
        self.digests.append(visit.last_digest)
        self.labels.append(label)
        self._add_states(index, position, states)
        if self.instrument.changed:
            self.problems.append(
                "the transforms of the dataset were changed after it was wrapped: of such samples the stages are not known. "
                "Change them before run.loader or run.dataset, or record what follows as a run of its own."
            )
        if visit.problem:
            self.problems.append(f"sample {index}: {visit.problem}")

    def _add_states(self, index: int, position: int, states: States) -> None:
        for name, state in states:
            digest = state.block_digest
            known = digest is not None and digest in self._sent
            if digest is not None and not known:
                self._sent[digest] = None
                if len(self._sent) > _MOST_SENT:
                    del self._sent[next(iter(self._sent))]
            self._tables["rng"].add(
                index=index,
                position=position,
                generator=name,
                state=state.small,
                block_digest=digest,
                block=None if known else (state.block or None),
            )

    def forget_last(self) -> None:
        """Take back the last visit: it was the end of the dataset, no sample."""
        if not self.indices:
            return
        position = len(self.indices) - 1
        for table in self._tables.values():
            while table.rows and table.data["position"][-1] == position:
                for column in table.data.values():
                    column.pop()
                table.rows -= 1
        for column in (self.indices, self.digests, self.labels, self._routes):
            column.pop()

    def _label_of(self, item: Any) -> int | None:
        if item is None:
            return None
        # The same words for every item: a run is marked once with each message.
        try:
            if self.label is None:
                return label_number(split_item(item)[1])
            found = self.label(item) if callable(self.label) else item[self.label]
            number = label_number(found)
        except Exception as error:
            looks = _form(item) or f"a {type(item).__name__}"
            self.problems.append(f"label={self.label!r} finds no label in {looks}: {type(error).__name__}: {error}")
            return None
        if number is None and found is not None:
            self.problems.append(f"label={self.label!r} finds a {type(found).__name__}, which is not a class number.")
        return number

    def _number_stages(self) -> list[tuple[int, Stage]]:
        """Give the rows their ordinals where stages came that were not known before; the stages, by ordinal."""
        if all(stage < INSIDE for route in self._routes for stage in route):
            return []
        steps = self.instrument.pipeline.steps
        order, numbered = number_batch(len(steps), self._routes)
        for name in ("stage_outputs", "payloads"):
            renumber(self._tables[name], numbered)
        return [
            (ordinal, self._ids.stage(stage) if stage >= INSIDE else steps[stage].stage)
            for ordinal, stage in enumerate(order)
        ]

    def envelope(
        self, data: Any, *, indexed: bool, error: Any = None, mixed: Weights | None = None, by_loader: bool = True
    ) -> Envelope:
        """Everything recorded since the last one, beside the batch it belongs to."""
        problems = self.problems
        payload_bytes, records = 0, torch.zeros(1, dtype=torch.uint8)
        stages: list[tuple[int, Stage]] = []
        try:
            stages = self._number_stages()
            payload_bytes = sum(len(item) for item in self._tables["payloads"].data["data"])
            if self.indices:
                records = parcel(self._tables, by_loader=by_loader)
        except Exception as trouble:
            problems.append(f"the rows of samples {self.indices[:8]} were lost: {type(trouble).__name__}: {trouble}")
            self.indices, self.digests, self.labels = [], [], []
        sent = Envelope(
            data,
            self.indices if indexed else None,
            len(self.indices),
            records,
            self.digests,
            self.labels,
            payload_bytes,
            problems,
            error,
            mixed,
            stages,
            unlabelled=self._unlabelled if self.label is None else None,
            unseen=self._unseen,
            unrecorded=self._changes.take(),
        )
        self.clear()
        return sent


def _form(item: Any) -> str | None:
    """How an item looks that may hold a label at a place unknown; None for one that can hold none."""
    if isinstance(item, Mapping) and len(item) > 1:
        return f"a mapping with the keys {', '.join(repr(str(key))[:40] for key in list(item)[:12])}"
    if isinstance(item, (tuple, list)) and len(item) > 1:
        return f"a {type(item).__name__} of {', '.join(type(part).__name__ for part in item[:8])}"
    return None
