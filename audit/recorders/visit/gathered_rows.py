"""The rows of the samples that one process has made, until they are put into a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from torch.utils.data import get_worker_info

from audit.recorders.files.origin import ListedFile, absolute_folder
from audit.recorders.items.collated_values import LEFT_OUT_SAMPLE
from audit.recorders.items.targets import Target
from audit.recorders.randomness.visit_randomness import States
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.batch_row import batch_row
from audit.recorders.visit.make import MadeVisit
from audit.recorders.visit.sample_row import SAMPLE_COLUMNS, SOURCE_COLUMNS
from audit.recorders.visit.stage_numbers import StageIds, number_batch, renumber
from audit.recorders.visit.stage_row import OUTPUT_COLUMNS, PAYLOAD_COLUMNS, Row
from audit.recorders.visit.visit import Visit
from audit.recorders.visit.visit_stages import FIRST_INSIDE_NUMBER
from audit.records import Level, Stage
from audit.store import wire
from audit.values import native as loops

_MOST_SENT = 256
_TABLES = ("samples", "sample_sources", "stage_outputs", "payloads", "rng")


#: The tables of visits of files that a list names, with the columns of their rows, in the order of values/_rows.h.
_LISTED_COLUMNS = {
    "samples": SAMPLE_COLUMNS,
    "sample_sources": SOURCE_COLUMNS,
    "stage_outputs": OUTPUT_COLUMNS,
    "payloads": PAYLOAD_COLUMNS,
}
#: Rows of other widths than the compiled loops know are not made by them.
_WIDTHS = tuple(map(len, _LISTED_COLUMNS.values()))


def find_listed_plan(pipeline: Pipeline, classes: list[str] | None) -> tuple[Any, ...] | None:
    """Return what the compiled loops must know to add many visits at once; None where they cannot."""
    if loops.native is None or pipeline.has_targets:
        return None
    worker = get_worker_info()
    names = tuple(step.stage.name for step in pipeline.steps)
    return names, classes, worker.id if worker else None, hashlib.sha256, absolute_folder, _WIDTHS


class SentStates:
    """Arrays of generators that were sent already, the latest of them: they come again soon or never."""

    def __init__(self) -> None:
        self._digests: dict[str, None] = {}

    def is_new(self, digest: str) -> bool:
        """Return whether an array was not sent before, and remember that it is sent now."""
        if digest in self._digests:
            return False
        self._digests[digest] = None
        if len(self._digests) > _MOST_SENT:
            del self._digests[next(iter(self._digests))]
        return True


class GatheredRows:
    """Rows by table, and what is known of each sample beside them; lists are by place in the batch."""

    def __init__(self) -> None:
        self.tables = {name: wire.columns(name) for name in _TABLES}
        self.indices: list[int] = []
        #: Places of samples that did not fail.
        self.ok: list[int] = []
        self.digests: list[str | None] = []
        #: What the last stage on the way to the model left of each.
        self._last_rows: list[Row | None] = []
        self.labels: list[int | None] = []
        self.batch_labels: list[int | None] = []
        self.targets: list[Target | None] = []
        self.has_targets = False
        #: Of several graded outputs: the target of each, by its name.
        self.head_targets: list[dict[str, Any]] = []
        #: What could not be recorded, and a sentence for each sample that failed.
        self.problems: list[str] = []
        self.failures: list[str] = []
        #: The stages that each visit ran, in order.
        self._routes: list[Sequence[int]] = []
        #: Whether any of them ran a stage that was not known before.
        self._has_new_stages = False
        self.last_kind: str | None = None
        #: Items without a label, with their indices.
        self.unlabelled: list[tuple[int, Any]] = []
        #: Says that the dataset made samples where the recording could not see it.
        self.unseen: str | None = None

    def note_problem(self, text: str) -> None:
        """Add what could not be recorded."""
        self.problems.append(text)

    def add_visit(
        self,
        index: int,
        visit: Visit,
        label: int | None,
        target: Target | None,
        states: States,
        sent: SentStates,
        numbers: dict[int, int] | None = None,
    ) -> None:
        """Add a visit whose row of `samples` was just added. `numbers` are those of stages that were not known before."""
        position, tables = len(self.indices), self.tables
        visit.write(index, position, tables["stage_outputs"], tables["payloads"], numbers)
        self.indices.append(index)
        self.digests.append(visit.last_digest)
        self._last_rows.append(last := visit.last_row)
        self.labels.append(label)
        self.targets.append(target)
        self.has_targets |= target is not None
        if numbers:
            self._routes.append([numbers.get(ordinal, ordinal) for ordinal in visit.route])
            self._has_new_stages = True
        else:
            self._routes.append(visit.route)
        if visit.error is None:
            self.ok.append(position)
            self.last_kind = last.kind if last is not None else None
        self.add_states(index, position, states, sent)

    def add_states(self, index: int, position: int, states: States, sent: SentStates) -> None:
        """Add the generators that a visit drew from."""
        for name, state in states:
            digest = state.block_digest
            block = state.block if digest is not None and sent.is_new(digest) else None
            self.tables["rng"].add(
                index=index, position=position, generator=name, state=state.small, block_digest=digest, block=block
            )

    def add_listed(
        self, waiting: list[tuple[int, MadeVisit, ListedFile]], start: int, plan: tuple[Any, ...], sent: SentStates
    ) -> int:
        """Add many visits of files that a list names, from `start` on until one is unusual; return how many were added.

        Only the compiled loops can do so. `plan` is what `listed_plan` returned.
        """
        tables = [self.tables[name] for name in _LISTED_COLUMNS]
        lists = [table.values_of(names) for table, names in zip(tables, _LISTED_COLUMNS.values(), strict=True)]
        known = (self.indices, self.digests, self._last_rows, self.labels, self.targets, self._routes, self.ok)
        position = len(self.indices)
        count: int = loops.native.add_visits(waiting, start, plan, (*lists, *known))  # type: ignore[union-attr]
        for table in tables:
            table.count_rows()
        for place, (index, made, _) in enumerate(waiting[start : start + count]):
            if made.states:
                self.add_states(index, position + place, made.states, sent)
        if count:
            last = self._last_rows[-1]
            self.last_kind = last.kind if last is not None else None
        return count

    def add_collated(self, stage: Stage, ids: StageIds, rows: Sequence[Any], level: Level) -> None:
        """Add what a collate function made of each sample."""
        number = ids.number(stage)
        self._has_new_stages = True
        for position, value in enumerate(rows):
            if value is LEFT_OUT_SAMPLE or position not in self.ok:
                continue
            row = batch_row(value, level, self.digests[position], self._last_rows[position])
            tables = self.tables["stage_outputs"], self.tables["payloads"]
            row.write(self.indices[position], position, number, stage.name, *tables)
            self._routes[position] = (*self._routes[position], number)
            self.digests[position] = row.facts.digest

    def add_batch_labels(self, labels: list[int | None]) -> None:
        """Add the class numbers that the batch has for the samples gathered, by place."""
        self.tables["samples"].data["batch_label"] = self.batch_labels = labels

    def forget_last(self) -> None:
        """Take back the last visit: it was the end of the dataset, not a sample."""
        if not self.indices:
            return
        position = len(self.indices) - 1
        for table in self.tables.values():
            while table.rows and table.data["position"][-1] == position:
                for column in table.data.values():
                    column.pop()
                table.rows -= 1
        for column in (self.indices, self.digests, self._last_rows, self.labels, self.targets, self._routes):
            column.pop()
        if self.head_targets:
            self.head_targets.pop()
        if self.ok and self.ok[-1] == position:
            self.ok.pop()
        else:
            self.failures.pop()

    @property
    def payload_bytes(self) -> int:
        """How many bytes the payloads take."""
        return sum(map(len, self.tables["payloads"].data["data"]))

    def number_stages(self, pipeline: Pipeline, ids: StageIds) -> list[tuple[int, Stage]]:
        """Give the rows their ordinals where stages came that the pipeline does not list; the stages, by ordinal."""
        if not self._has_new_stages:
            return []
        steps = pipeline.steps
        order, numbered = number_batch(len(steps), self._routes)
        for name in ("stage_outputs", "payloads"):
            renumber(self.tables[name], numbered)
        return [
            (ordinal, ids.stage(stage) if stage >= FIRST_INSIDE_NUMBER else steps[stage].stage)
            for ordinal, stage in enumerate(order)
        ]
