"""Records the items that one process makes: in a worker, or in the main process when there is none.

Raises what the user's dataset raises and nothing else: what cannot be recorded is a problem that travels with the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import get_worker_info

from audit import values
from audit.metrics.boxes import Boxes
from audit.metrics.source_space import own_stage_names
from audit.recorders.calls.unseen_changes import UnseenChanges
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.envelope import BatchLayout, RecordedBatch, Weights, pack_rows
from audit.recorders.randomness.visit_randomness import States, VisitRequest
from audit.recorders.visit.batch_fetch import BatchFetch
from audit.recorders.visit.batch_row import batch_row
from audit.recorders.visit.collated_values import LEFT_OUT
from audit.recorders.visit.hugging_face import describe_batches, is_mapped
from audit.recorders.visit.items import label_number
from audit.recorders.visit.label_candidates import describe_candidates, describe_form
from audit.recorders.visit.make import MadeVisit, VisitMaker, lost_visit, stalled_visit
from audit.recorders.visit.origin import (
    ListedFile,
    Origin,
    archived_origin,
    class_names,
    find_source,
    listed_file,
    named_origin,
    origin_of,
)
from audit.recorders.visit.sample_row import add_listed_sample, add_sample
from audit.recorders.visit.source_files import is_media
from audit.recorders.visit.stage_numbers import StageIds, number_batch, renumber
from audit.recorders.visit.stage_row import Row
from audit.recorders.visit.targets import Target, TargetPicker, find_boxes, find_target, pick_item_target
from audit.recorders.visit.visit_stages import INSIDE
from audit.records import Stage
from audit.store import wire as batch

#: Where an item's label is: a key, a position, or a function of the item.
LabelFinder = Callable[[Any], Any] | str | int | None
#: Names the files of a sample: a function of the index (and of the item), or a mapping or sequence by index.
SourceFinder = Callable[..., Any] | Mapping[int, Any] | Sequence[Any] | None

_MOST_SENT = 256
#: So many visits of a sequence wait at most: each holds objects that Python's garbage collector looks at.
_MOST_WAITING = 16
_TABLES = ("samples", "sample_sources", "stage_outputs", "payloads", "rng")
#: What each process builds for itself.
_OWN = frozenset(
    [
        "_tables",
        "indices",
        "_ok",
        "_digests",
        "_last_rows",
        "_labels",
        "_targets",
        "_head_targets",
        "problems",
        "_failures",
        "_routes",
        "_has_new_stages",
        "_ids",
        "_changes",
        "_last_kind",
        "_unlabelled",
        "_unseen",
        "_is_sequence",
        "_waiting",
        "failing",
    ]
)


class ItemRecorder:
    """Gathers the rows of items until they are put into a batch."""

    def __init__(
        self,
        maker: VisitMaker,
        level: CaptureLevel,
        *,
        label: LabelFinder = None,
        source: SourceFinder = None,
        all_targets: bool = False,
        head_targets: Mapping[str, TargetPicker] | None = None,
    ) -> None:
        self.dataset = dataset = maker.dataset
        self.level = level
        self._maker = maker
        maker.derives = True
        # Before workers are forked, and outside of any visit, which would note the files that this opens.
        values.load_kinds()
        batch.prepare()
        self.instrument = maker.instrument
        self.label = label
        self.source = source
        #: Whether an iterable dataset was seen to read files of other samples than the one that it gives.
        self.reads_ahead = False
        #: Send masks and measured values too: a loop of the user's own has them in its batches.
        self.all_targets = all_targets
        #: Where the target of each of several graded outputs is in an item.
        self._head_pickers = head_targets or {}
        self.classes = class_names(dataset)
        self.clear()
        #: Made once, as nothing of it is kept.
        self._request = VisitRequest(-1)
        self._ids = StageIds()
        self._changes = _changes_of(dataset)
        #: A collate function whose rows could not be assigned to samples, and whether the run knows.
        self._unplaced_collate: Stage | None = None
        self._is_collate_sent = False
        #: Whether items are made one after the other, with no code of the user's between them.
        self._is_sequence = False
        #: Arrays of generators that were sent already, the latest of them: they come again soon or never.
        self._sent: dict[str, None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN} | {"_sent": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        values.load_kinds()
        self._ids = StageIds()
        self._changes = _changes_of(self.dataset)
        self._is_sequence = False
        self.clear()

    def clear(self) -> None:
        """Forget what was not put into a batch: items of one that never came to be."""
        self._tables = {name: batch.columns(name) for name in _TABLES}
        self.indices: list[int] = []
        self._ok: list[int] = []
        self._digests: list[str | None] = []
        #: What the last stage on the way to the model left of each.
        self._last_rows: list[Row | None] = []
        self._labels: list[int | None] = []
        self._targets: list[Target | None] = []
        self._head_targets: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._failures: list[str] = []
        #: The stages that each visit ran, in order.
        self._routes: list[list[int]] = []
        #: Whether any of them ran a stage that was not known before.
        self._has_new_stages = False
        self._last_kind: str | None = None
        #: Items without a label, with their indices.
        self._unlabelled: list[tuple[int, Any]] = []
        self._unseen: str | None = None
        #: Visits of a sequence whose rows are gathered at its end.
        self._waiting: list[tuple[int, MadeVisit, ListedFile]] = []
        #: An item could not be made, and its batch has not been collated yet.
        self.failing = False

    def repeat_unrecorded(self) -> None:
        """Send what was not seen once more, with the next batch."""
        self._changes.repeat()
        self._is_collate_sent = False

    # -- one item --------------------------------------------------------------------------------

    def add(self, request: VisitRequest, fetch: Callable[[], Any]) -> MadeVisit:
        """Make a visit and gather its rows. Raises nothing of the dataset's; the visit says what it raised."""
        run = fetch if self._changes.is_listed else lambda: self._changes.run(fetch)
        made = self._maker.make(request, run, self.level.get())
        self._add_rows(request.index, made, None)
        return made

    def add_lost(self, index: int) -> None:
        """Gather the row of a sample whose worker process died."""
        self._add_rows(index, MadeVisit(lost_visit(self.instrument.pipeline)), None)

    def add_stalled(self, index: int, stage: str, error: str) -> None:
        """Gather the row of a sample that took too long and was given up."""
        self._add_rows(index, MadeVisit(stalled_visit(self.instrument.pipeline, stage, error)), None)

    def record(self, index: int, make: Callable[[], Any], origin: Origin | None = None) -> Any:
        """Record what `make` makes, and return it. Raises what it raises, after noting it."""
        try:
            request = self._request
            request.index = index
            visit = self._maker.begin(request, self.level.get())
        except Exception as error:
            self._problem(index, error)
            return make()
        made = self._maker.finish(visit, make if self._changes.is_listed else lambda: self._changes.run(make))
        if not (self._is_sequence and origin is None and self._add_later(index, made)):
            self._add_waiting()
            self._add_rows(index, made, origin)
        if made.error is not None:
            raise made.error
        return made.item

    @contextlib.contextmanager
    def sequence(self) -> Iterator[None]:
        """Make items inside one after the other, with no code of the user's in this thread between them."""
        try:
            self._maker.begin_sequence()
        except Exception as error:
            self._problem(-1, error)
        self._is_sequence = True
        try:
            yield
        finally:
            self._is_sequence = False
            self._maker.end_sequence()
            self._add_waiting()

    def record_batch(self, fetch: BatchFetch, samples: Sequence[tuple[int, Origin | None]]) -> Any:
        """Record what the dataset makes of a whole batch, and return it. Raises what it raises, after noting it.

        `samples` are the numbers and origins of the batch's samples.
        """
        try:
            self._maker.randomness.prepare(VisitRequest(-1))
        except Exception as error:
            self._problem(-1, error)
            return fetch.make(self.dataset)
        batch = self._maker.finish_batch(fetch, self.level.get())
        for (index, origin), made in zip(samples, batch.visits, strict=True):
            if made.is_seen or batch.error is None:
                self._add_rows(index, made, origin)
        if batch.error is not None:
            # Whether the other samples were begun is not known.
            raise batch.error
        return batch.items

    def _problem(self, index: int, error: Exception) -> None:
        # Recording must never break the user's loop; the run is marked instead.
        self.problems.append(f"sample {index}: {type(error).__name__}: {error}")

    # -- rows ------------------------------------------------------------------------------------

    def _add_rows(self, index: int, made: MadeVisit, origin: Origin | None) -> None:
        try:
            self._add_visit(index, made, self._origin_of(index, made, origin))
        except Exception as error:
            self._problem(index, error)

    def _add_later(self, index: int, made: MadeVisit) -> bool:
        """Let the rows of a visit wait for the end of the sequence; return False for a visit that may not wait.

        One after the other they are gathered several times as fast as between the stages of samples, which take the
        processor's caches. Nothing that code of the user's can change until then is looked at later.
        """
        visit, item = made.visit, made.item
        if (
            type(item) is not tuple
            or len(item) != 2
            or type(item[0]) is not torch.Tensor
            or type(made.label) is not int
            or self.label is not None
            or self.source is not None
            or visit.source_digest is None
            or not made.is_plain
            or not self._changes.is_load_checked
            or self.instrument.changed
        ):
            return False
        file = listed_file(self.dataset, index)
        if file is None:
            return False
        visit.take_load()
        self._waiting.append((index, made, file))
        if len(self._waiting) == _MOST_WAITING:
            self._add_waiting()
        return True

    def _add_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for index, made, file in waiting:
                try:
                    self._add_listed(index, made, file)
                except Exception as error:
                    self._problem(index, error)

    def _add_listed(self, index: int, made: MadeVisit, file: ListedFile) -> None:
        """As `_add_visit`, for a visit that waited: `_add_later` has seen that it is plain."""
        visit, label, position, tables = made.visit, made.label, len(self.indices), self._tables
        where = tables["samples"], tables["sample_sources"]
        if not add_listed_sample(*where, index, position, visit, file, label, self.classes):
            self._add_visit(index, made, file.origin())
            return
        visit.write(index, position, tables["stage_outputs"], tables["payloads"])
        self._routes.append(list(visit.route))
        self.indices.append(index)
        self._digests.append(visit.last_digest)
        last = visit.last_row
        self._last_rows.append(last)
        self._labels.append(label)
        self._targets.append(None)
        if self._head_pickers:
            self._head_targets.append({})
        self._ok.append(position)
        self._last_kind = last.kind if last is not None else None
        if made.states:
            self._add_states(index, position, made.states)

    def _origin_of(self, index: int, made: MadeVisit, origin: Origin | None) -> Origin:
        if origin is not None and origin.is_streamed:
            made.visit.opened = self._own_files(made.visit.opened)
            origin = archived_origin(made.item) or origin
        found = origin or origin_of(self.dataset, index)
        if self.source is None:
            return found
        try:
            named = find_source(self.source, index, made.item)
            return found if named is None else named_origin(named, found.folder, found.split, found.label)
        except Exception as error:
            # The same words for every item: a run is marked once with each message.
            self.problems.append(f"source= names no file of a sample: {type(error).__name__}: {error}")
            return found

    def _own_files(self, opened: list[str]) -> list[str]:
        """Return the files of one item of an iterable dataset; none as soon as it may have read those of other items."""
        if len({path for path in opened if is_media(path)}) != 1:
            self.reads_ahead = True
        return [] if self.reads_ahead else opened

    def _add_visit(self, index: int, made: MadeVisit, origin: Origin) -> None:
        visit, position = made.visit, len(self.indices)
        target = self._target_of(index, made)
        label = None if isinstance(target, Boxes) else self._label_of(made)
        label = origin.label if label is None else label
        if label is None and target is None and visit.error is None:
            self._unlabelled.append((index, made.item))
        if not made.is_seen:
            self._unseen = self._unseen or describe_batches(self.dataset)
        if made.is_load_only:
            self._changes.add_no_stage()
        self._changes.check_load(visit.take_load(), is_load_only=made.is_load_only)
        for before, after in made.gaps:
            self._changes.add_gap(before, after)
        numbers: dict[int, int] = {}
        if visit.added_stages:
            added = self.instrument.describe(visit)
            numbers = {ordinal: self._ids.number(stage) for ordinal, stage in added.items()}
            self._has_new_stages = True
        self._routes.append([numbers.get(ordinal, ordinal) for ordinal in visit.route])
        visit.write(index, position, self._tables["stage_outputs"], self._tables["payloads"], numbers)
        samples, sources = self._tables["samples"], self._tables["sample_sources"]
        add_sample(samples, sources, index, position, visit, origin, label, self.classes)
        self.indices.append(index)
        self._digests.append(visit.last_digest)
        last = visit.last_row
        self._last_rows.append(last)
        self._labels.append(label)
        self._targets.append(target)
        if self._head_pickers:
            self._head_targets.append(self._head_targets_of(index, made))
        if visit.error is None:
            self._ok.append(position)
            self._last_kind = last.kind if last is not None else None
        else:
            self._failures.append(f"Sample {index} ({origin.source}) failed at {visit.failed_stage}: {visit.error}")
        self._add_states(index, position, made.states)
        if self.instrument.changed:
            self.problems.append(
                "the transforms of the dataset were changed after it was wrapped: audit did not record the stages of these samples. "
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

    def add_collated(self, stage: Stage, rows: Sequence[Any] | None) -> None:
        """Gather what a collate function made of each sample; None where that is not certain.

        To be called once all items of the batch are gathered.
        """
        try:
            if rows is None:
                self._unplaced_collate = self._unplaced_collate or stage
            else:
                self._add_batch_rows(stage, rows)
        except Exception as error:
            self.problems.append(f"what {stage.name} made could not be described: {type(error).__name__}: {error}")

    def _add_batch_rows(self, stage: Stage, rows: Sequence[Any]) -> None:
        number, level = self._ids.number(stage), self.level.get()
        self._has_new_stages = True
        for position, value in enumerate(rows):
            if value is LEFT_OUT or position not in self._ok:
                continue
            row = batch_row(value, level, self._digests[position], self._last_rows[position])
            tables = self._tables["stage_outputs"], self._tables["payloads"]
            row.write(self.indices[position], position, number, stage.name, *tables)
            self._routes[position].append(number)
            self._digests[position] = row.facts.digest

    def _take_unplaced(self) -> list[str]:
        """Return a text on a collate function whose rows could not be distinguished, once in each process."""
        stage = self._unplaced_collate
        if stage is None or self._is_collate_sent:
            return []
        self._is_collate_sent = True
        return [
            f"{type(self.dataset).__name__}: what the collate function {stage.name} ({stage.qualname}) makes of each sample; "
            "the content does not show which row of the batch is which sample. If row n is sample n, put @audit.stage above it"
        ]

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
        for column in (self.indices, self._digests, self._last_rows, self._labels, self._targets, self._routes):
            column.pop()
        if self._head_targets:
            self._head_targets.pop()
        if self._ok and self._ok[-1] == position:
            self._ok.pop()
        else:
            self._failures.pop()

    def _target_of(self, index: int, made: MadeVisit) -> Target | None:
        """Return what is to be predicted of an item, where it is more than a class number."""
        if made.item is None or made.visit.error is not None:
            return None
        try:
            label = made.label
            if self.label is not None:
                label = self.label(made.item) if callable(self.label) else made.item[self.label]
            return find_target(made.item, label) if self.all_targets else find_boxes(made.item, label)
        except ValueError as error:
            self.problems.append(f"sample {index}: {error}")
        except Exception:
            return None  # where the label cannot be found, `_label_of` says so
        return None

    def _head_targets_of(self, index: int, made: MadeVisit) -> dict[str, Any]:
        """Return what each of several graded outputs is to be."""
        if made.item is None or made.visit.error is not None:
            return {}
        try:
            return {name: pick_item_target(made.item, picker) for name, picker in self._head_pickers.items()}
        except Exception as error:
            self.problems.append(f"sample {index}: its targets could not be read: {type(error).__name__}: {error}")
            return {}

    def _label_of(self, made: MadeVisit) -> int | None:
        item = made.item
        if item is None:
            return None
        # The same words for every item: a run is marked once with each message.
        try:
            if self.label is None:
                return label_number(made.label)
            found = self.label(item) if callable(self.label) else item[self.label]
            number = label_number(found)
        except Exception as error:
            looks = describe_form(item) or f"a {type(item).__name__}"
            self.problems.append(f"label={self.label!r} finds no label in {looks}: {type(error).__name__}: {error}")
            return None
        if number is None and found is not None:
            self.problems.append(f"label={self.label!r} finds a {type(found).__name__}, which is not a class number.")
        return number

    def _number_stages(self) -> list[tuple[int, Stage]]:
        """Give the rows their ordinals where stages came that were not known before; the stages, by ordinal."""
        if not self._has_new_stages:
            return []
        steps = self.instrument.pipeline.steps
        order, numbered = number_batch(len(steps), self._routes)
        for name in ("stage_outputs", "payloads"):
            renumber(self._tables[name], numbered)
        return [
            (ordinal, self._ids.stage(stage) if stage >= INSIDE else steps[stage].stage)
            for ordinal, stage in enumerate(order)
        ]

    def take_batch(
        self,
        data: Any,
        *,
        indexed: bool,
        error: Any = None,
        layout: BatchLayout | None = None,
        mixed: Weights | None = None,
        by_loader: bool = True,
    ) -> RecordedBatch:
        """Return everything recorded since the last call, beside the batch it belongs to."""
        payload_bytes, records = 0, torch.zeros(1, dtype=torch.uint8)
        local_rows: Mapping[str, Any] | None = None
        stages: list[tuple[int, Stage]] = []
        try:
            stages = self._number_stages()
            payload_bytes = sum(len(item) for item in self._tables["payloads"].data["data"])
            if self.indices and by_loader and get_worker_info() is None:
                local_rows = batch.to_tables(self._tables)
            elif self.indices:
                records = pack_rows(self._tables, by_loader=by_loader)
        except Exception as trouble:
            lost, problems = self.indices[:8], self.problems
            self.clear()
            self.problems = [*problems, f"the rows of samples {lost} were lost: {type(trouble).__name__}: {trouble}"]
        taken = RecordedBatch(
            data=data,
            indices=self.indices if indexed else [],
            count=len(self.indices),
            records=records,
            local_rows=local_rows,
            ok=self._ok,
            digests=self._digests,
            labels=self._labels,
            item_targets=self._targets if any(target is not None for target in self._targets) else [],
            item_head_targets=self._head_targets,
            last_kind=self._last_kind,
            payload_bytes=payload_bytes,
            problems=self.problems,
            failures=self._failures,
            error=error,
            layout=layout,
            mixed=mixed,
            stages=stages,
            own_stages=own_stage_names([*self.instrument.pipeline.stages, *(stage for _, stage in stages)]),
            unlabelled=describe_candidates(self._unlabelled) if self.label is None else None,
            unseen=self._unseen,
            unrecorded=[*self._changes.take(), *self._take_unplaced()],
        )
        self.clear()
        return taken


def _changes_of(dataset: Any) -> UnseenChanges:
    changes = UnseenChanges(dataset)
    if is_mapped(dataset):
        changes.add_earlier("its rows were made by Dataset.map before the recording, and `load` is what it wrote")
    return changes
