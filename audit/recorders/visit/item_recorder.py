"""Records the items that one process makes: in a worker, or in the main process when there is none.

Raises what the user's dataset raises and nothing else: what cannot be recorded is a problem that travels with the batch.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from audit import values
from audit.metrics.source_space import own_stage_names
from audit.recorders.calls.callables import read_attribute
from audit.recorders.calls.unseen_changes import UnseenChanges
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.envelope import BatchLayout, PackedRows, RecordedBatch, Weights, pack_rows
from audit.recorders.files.file_readers import FOLDERS
from audit.recorders.files.hugging_face import describe_batches, is_mapped
from audit.recorders.files.origin import ListedFile, Origin, class_names, find_listed_file
from audit.recorders.files.thread_files import FILES, UNKNOWN, watch_all_threads
from audit.recorders.items.item_key import key_states
from audit.recorders.items.label_candidates import describe_candidates
from audit.recorders.items.targets import TargetPicker
from audit.recorders.lent_memory import LentMemory
from audit.recorders.randomness.visit_randomness import States, VisitRequest
from audit.recorders.visit.batch_fetch import BatchFetch
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.gathered_rows import GatheredRows, SentStates, find_listed_plan
from audit.recorders.visit.item_label import ItemLabel, LabelFinder
from audit.recorders.visit.item_source import ItemSource, SourceFinder
from audit.recorders.visit.kept_files import KeptFiles
from audit.recorders.visit.make import MadeVisit, VisitMaker, make_lost_visit, make_stalled_visit
from audit.recorders.visit.sample_row import add_listed_sample, add_sample
from audit.recorders.visit.stage_numbers import StageIds
from audit.recorders.visit.stream_outputs import StreamOutputs
from audit.records import Stage
from audit.store import wire

#: So many visits of a sequence wait at most: each holds objects that Python's garbage collector looks at.
_MOST_WAITING = 32
#: And visits of so many bytes of files: they are not hashed yet.
_MOST_WAITING_BYTES = 4 * 2**20


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
        # Outside of any visit, which would note the files that this opens.
        wire.prepare()
        self.instrument = maker.instrument
        self.label = ItemLabel(label, head_targets or {}, all_targets=all_targets)
        self.source = ItemSource(dataset, source)
        #: Whether the user or the dataset says where files are, and whether the user says where labels or files are.
        self._names_files = source is not None or callable(read_attribute(dataset, "source"))
        self._names_parts = self.label.is_chosen or source is not None
        self.classes = class_names(dataset)
        self._own_names: list[str] | None = None
        self._begin_process()

    def _begin_process(self) -> None:
        """Make what each process has of its own."""
        values.load_kinds()
        self._ids = StageIds()
        own_code, names = self.instrument.own_code, self.instrument.observed_names
        self._changes = UnseenChanges(self.dataset, own_code, names, watch_all_threads)
        if is_mapped(self.dataset):
            text = "its rows were made by Dataset.map before the recording, and `load` is what it wrote"
            self._changes.add_earlier(text)
        self._kept = KeptFiles(self.dataset, are_files_named=self._names_files)
        self._sent = SentStates()
        self._memory = LentMemory()
        #: Made once, as nothing of it is kept.
        self._request = VisitRequest(-1)
        #: Whether items are made one after the other, with no code of the user's between them.
        self._is_sequence = False
        self.clear()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_ids", "_changes", "_kept", "_sent", "_memory", "_request", "rows", "_waiting")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_process()

    def prepare_workers(self, *, is_dataset_final: bool = True) -> None:
        """Do what each worker would do before its first item; to be called just before workers are forked.

        `is_dataset_final` says that no code of the user's runs in a worker before its first item.
        """
        # What fails here fails in the workers again, and is noted there.
        with contextlib.suppress(Exception):
            self._maker.prepare_workers(is_dataset_final=is_dataset_final)

    def begin_stream(self) -> None:
        """Say that a dataset without indexes is read from its beginning."""
        self.source.reads_ahead = False
        self._maker.stream = StreamOutputs()

    def clear(self) -> None:
        """Forget what was not put into a batch: items of one that never came to be."""
        self.rows = GatheredRows()
        #: Visits of a sequence whose rows are gathered at its end.
        self._waiting: list[tuple[int, MadeVisit, ListedFile]] = []
        self._waiting_bytes = 0
        #: An item could not be made, and its batch has not been collated yet.
        self.failing = False

    @property
    def count(self) -> int:
        """How many samples were gathered for the next batch."""
        return len(self.rows.indices)

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.rows.indices or self.rows.problems)

    def forget_last(self) -> None:
        """Take back the last sample: it was the end of the dataset."""
        self.rows.forget_last()

    def note_problem(self, text: str) -> None:
        """Note what could not be recorded, with the next batch."""
        self.rows.note_problem(text)

    def repeat_unrecorded(self) -> None:
        """Send what was not seen once more, with the next batch."""
        self._changes.repeat()

    def add(self, request: VisitRequest) -> MadeVisit:
        """Make the visit of `dataset[index]` and gather its rows. Raises nothing of the dataset's; the visit says what it raised."""
        before = self._kept.positions() if self._kept.handles else None
        if self._changes.is_listed:
            made = self._maker.make_item_again(request, self.level.get())
        else:
            fetch = functools.partial(operator.getitem, self.dataset, request.index)
            made = self._maker.make(request, lambda: self._changes.run(fetch), self.level.get())
        self._end_item(request.index, made, before)
        return made

    def _note_kept(self, made: MadeVisit, before: list[Any] | None) -> None:
        """Add the files that the dataset keeps open to those of a visit that read from them."""
        try:
            self._kept.end_visit(made.visit.opened, before or [])
        except Exception as error:
            self._problem(made.visit.index, error)

    def _look_again(self, made: MadeVisit) -> None:
        try:
            self._kept.look_again(made.visit.opened)
        except Exception as error:
            self._problem(made.visit.index, error)

    def add_lost(self, index: int) -> None:
        """Gather the row of a sample whose worker process died."""
        self._gather(index, MadeVisit(make_lost_visit(self.instrument.pipeline)))

    def add_stalled(self, index: int, stage: str, error: str) -> None:
        """Gather the row of a sample that took too long and was given up."""
        self._gather(index, MadeVisit(make_stalled_visit(self.instrument.pipeline, stage, error)))

    def record(self, index: int, make: Callable[[], Any], origin: Origin | None = None, key: States = ()) -> Any:
        """Record what `make` makes, and return it. Raises what it raises, after noting it.

        `key` is what a replay must know to ask for the item, if the index is not what the dataset was given.
        """
        try:
            request = self._request
            request.index = index
            visit = self._maker.begin(request, self.level.get())
        except Exception as error:
            self._problem(index, error)
            return make()
        before = self._kept.positions() if self._kept.handles else None
        made = self._maker.finish(visit, make if self._changes.is_listed else lambda: self._changes.run(make))
        if key:
            made.states = [*made.states, *key]
        self._end_item(index, made, before, origin)
        if made.error is not None:
            raise made.error
        return made.item

    def record_index(self, index: int) -> Any:
        """Record `dataset[index]`, and return it. Raises what it raises, after noting it."""
        if not self._changes.is_listed:
            return self.record(index, functools.partial(operator.getitem, self.dataset, index))
        before = self._kept.positions() if self._kept.handles else None
        try:
            request = self._request
            request.index = index
            made = self._maker.make_item(request, self.level.get())
        except Exception as error:
            self._problem(index, error)
            return self.dataset[index]
        self._end_item(index, made, before)
        if made.error is not None:
            raise made.error
        return made.item

    def record_row(self, indices: list[Any], items: list[Any]) -> None:
        """Record items of a sequence in one call of the compiled loops, and add them to `items`, which has those before them.

        It may stop anywhere before the end, also before the first: `record_index` does the same for one item. Raises what the dataset
        raises.
        """
        kept, waiting = self._kept, self._waiting
        if self._names_parts or kept.handles or self.instrument.changed:
            return
        if not (self._changes.is_listed and self._changes.is_load_checked):
            return
        before = len(items)
        most = min(kept.items_until_due, _MOST_WAITING - len(waiting))
        most_bytes = _MOST_WAITING_BYTES - self._waiting_bytes
        queue = (waiting, MadeVisit, find_listed_file, (FILES, UNKNOWN, FOLDERS))
        try:
            unusual, size = self._maker.make_row(indices, items, self.level.get(), queue, most, most_bytes)
        except Exception as error:
            self._problem(-1, error)
            return
        kept.count_items(len(items) - before)
        self._waiting_bytes += size
        self._add_waiting_if_many()
        if unusual is not None:
            self._end_item(indices[len(items)], unusual, None)
            if unusual.error is not None:
                raise unusual.error
            items.append(unusual.item)

    def _end_item(
        self, index: int, made: MadeVisit, before: list[int | None] | None, origin: Origin | None = None
    ) -> None:
        """Gather the rows of a visit; `before` says where the files were that the dataset keeps open."""
        if before is not None or FILES or UNKNOWN or FOLDERS or (made.visit.opened and not made.is_plain):
            self._note_kept(made, before)
        if self._kept.is_due():
            self._look_again(made)
        self._gather(index, made, origin)

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
            self._maker.prepare_batch()
        except Exception as error:
            self._problem(-1, error)
            return fetch.make(self.dataset)
        batch = self._maker.finish_batch(fetch, self.level.get())
        self._kept.end_batch()
        for (index, origin), asked, made in zip(samples, fetch.indices, batch.visits, strict=True):
            made.states = [*made.states, *key_states(asked)]
            if made.is_seen or batch.error is None:
                self._add_rows(index, made, origin)
        if batch.error is not None:
            # Whether the other samples were begun is not known.
            raise batch.error
        return batch.items

    def _problem(self, index: int, error: Exception) -> None:
        # Recording must never break the user's loop; the run is marked instead.
        self.rows.note_problem(f"sample {index}: {type(error).__name__}: {error}")

    def _gather(self, index: int, made: MadeVisit, origin: Origin | None = None) -> None:
        """Gather the rows of a visit, now or at the end of the sequence."""
        if not (self._is_sequence and origin is None and self._add_later(index, made)):
            self._add_waiting()
            self._add_rows(index, made, origin)

    def _add_later(self, index: int, made: MadeVisit) -> bool:
        """Let the rows of a visit wait for the end of the sequence; return False for a visit that may not wait.

        One after the other they are gathered several times as fast as between the stages of samples, which take the
        processor's caches. Nothing that code of the user's can change until then is looked at later.
        """
        if (
            not made.is_plain
            or self._names_parts
            or not self._changes.is_load_checked
            or self.instrument.changed
            or (file := find_listed_file(self.dataset, index)) is None
        ):
            return False
        made.visit.take_load()
        self._waiting.append((index, made, file))
        self._waiting_bytes += made.visit.source_bytes or 0
        self._add_waiting_if_many()
        return True

    def _add_waiting_if_many(self) -> None:
        if len(self._waiting) == _MOST_WAITING or self._waiting_bytes > _MOST_WAITING_BYTES:
            self._add_waiting()

    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        plan = find_listed_plan(self.instrument.pipeline, self.classes)
        done = 0
        while done < len(waiting):
            if plan is not None:
                done += self.rows.add_listed(waiting, done, plan, self._sent)
            for index, made, file in waiting[done : done + 1 if plan is not None else None]:
                done += 1
                try:
                    self._add_listed(index, made, file)
                except Exception as error:
                    self._problem(index, error)

    def _add_listed(self, index: int, made: MadeVisit, file: ListedFile) -> None:
        """Gather the rows of a visit that waited: `_add_later` has seen that it is plain."""
        rows, label = self.rows, made.label
        if add_listed_sample(rows.tables, index, len(rows.indices), made.visit, file, label, self.classes):
            rows.add_visit(index, made.visit, label, None, made.states, self._sent)
        else:
            self._add_visit(index, made, file.origin(self.dataset, index))

    def _add_rows(self, index: int, made: MadeVisit, origin: Origin | None) -> None:
        try:
            self._add_visit(index, made, self.source.find(index, made, origin, self.rows.problems))
        except Exception as error:
            self._problem(index, error)

    def _add_visit(self, index: int, made: MadeVisit, origin: Origin) -> None:
        visit, rows = made.visit, self.rows
        label, target = self.label.find(index, made, rows.problems)
        if label is None and origin.label is not None:
            label = self.label.confirm(origin.label, made, is_guess=origin.is_label_guess)
        if label is None and target is None and visit.error is None:
            rows.unlabelled.append((index, made.item))
        if not made.is_seen:
            rows.unseen = rows.unseen or describe_batches(self.dataset)
        if self.source.dropped is not None and not self._names_files:
            self._changes.add_files(
                "files that it reads for several items, or before them", f", such as {self.source.dropped}"
            )
        load = visit.take_load()
        if made.is_read_ahead:
            self._changes.add_read_ahead()
        else:
            self._changes.add_visit(load, made.item, made.gaps, is_load_only=made.is_load_only)
        numbers: dict[int, int] = {}
        if visit.added_stages:
            added = self.instrument.describe(visit)
            numbers = {ordinal: self._ids.number(stage) for ordinal, stage in added.items()}
        add_sample(rows.tables, index, len(rows.indices), visit, origin, label, self.classes)
        rows.add_visit(index, visit, label, target, made.states, self._sent, numbers)
        if self.label.heads:
            rows.head_targets.append(self.label.find_heads(index, made, rows.problems))
        if visit.error is not None:
            rows.failures.append(f"Sample {index} ({origin.source}) failed at {visit.failed_stage}: {visit.error}")
        if self.instrument.changed:
            rows.note_problem(
                "the transforms of the dataset were changed after it was wrapped: audit did not record the stages of these samples. "
                "Change them before run.loader or run.dataset, or record what follows as a run of its own."
            )
        if visit.problem:
            rows.note_problem(f"sample {index}: {visit.problem}")

    def add_collated(self, stage: Stage, values: Sequence[Any] | None) -> None:
        """Gather what a collate function made of each sample; None where that is not certain.

        To be called once all items of the batch are gathered.
        """
        try:
            if values is None:
                self._changes.add_unplaced(stage)
            else:
                self.rows.add_collated(stage, self._ids, values, self.level.get())
        except Exception as error:
            self.rows.note_problem(f"what {stage.name} made could not be described: {describe_error(error)}")

    def _own_stage_names(self, added: Sequence[tuple[int, Stage]]) -> list[str]:
        if added:
            return own_stage_names([*self.instrument.pipeline.stages, *(stage for _, stage in added)])
        if self._own_names is None:
            self._own_names = own_stage_names(self.instrument.pipeline.stages)
        return self._own_names

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
        records: PackedRows = b""
        gathered = None
        stages: list[tuple[int, Stage]] = []
        try:
            stages = self.rows.number_stages(self.instrument.pipeline, self._ids)
            records, gathered = pack_rows(self.rows.tables, self._memory, by_loader=by_loader)
        except Exception as trouble:
            lost, problems = self.rows.indices[:8], self.rows.problems
            self.clear()
            text = f"the rows of samples {lost} were lost: {type(trouble).__name__}: {trouble}"
            self.rows.problems = [*problems, text]
        for what, example in self._kept.take_unknown().items():
            self._changes.add_files(what, example)
        rows = self.rows
        taken = RecordedBatch(
            data=data,
            indices=rows.indices if indexed else [],
            count=len(rows.indices),
            records=records,
            gathered=gathered,
            ok=rows.ok,
            digests=rows.digests,
            labels=rows.labels,
            batch_labels=rows.batch_labels,
            item_targets=rows.targets if rows.has_targets else [],
            item_head_targets=rows.head_targets,
            last_kind=rows.last_kind,
            payload_bytes=rows.payload_bytes,
            problems=rows.problems,
            failures=rows.failures,
            error=error,
            layout=layout,
            mixed=mixed,
            stages=stages,
            own_stages=self._own_stage_names(stages),
            unlabelled=describe_candidates(rows.unlabelled) if self.label.finder is None else None,
            unseen=rows.unseen,
            unrecorded=self._changes.take(),
        )
        self.clear()
        return taken
