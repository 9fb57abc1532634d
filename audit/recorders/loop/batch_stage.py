"""Transforms that a loop applies to whole batches: `run.stage(transform)` records what they make of each sample.

Which samples a batch holds is found as for a model's input, by evidence alone (recorders/model/match.py). The
user says, by calling `run.stage`, that row n of the transform's output is the sample in row n of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from audit.recorders.batch_tensors import all_tensors
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.items.collated_values import batch_input
from audit.recorders.loop.recording_state import RecordingState
from audit.recorders.model.match import BatchMatcher, UnmatchedCall
from audit.recorders.model.row_origins import RowOrigins
from audit.recorders.model.step import Place
from audit.recorders.model.unpredicted_batch import BatchRows, UnpredictedBatch
from audit.recorders.problems import Problems
from audit.recorders.stages.describe import name_of
from audit.recorders.unused_name import unused_name
from audit.recorders.visit.batch_row import batch_row, describe_batch_stage
from audit.recorders.visit.repeated_call import RepeatedCall
from audit.recorders.visit.stage_register import StageRegister
from audit.recorders.visit.stage_row import Row
from audit.records import Stage
from audit.store import wire


class BatchStages:
    """Records the calls of a loop's batch transforms."""

    def __init__(self, state: RecordingState, problems: Problems, stages: StageRegister, level: CaptureLevel) -> None:
        self._state = state
        self._problems = problems
        self._stages = stages
        self._level = level
        self._batches = state.batches
        self._tracker = state.tracker
        self._matcher = BatchMatcher(state.batches, state.tracker)
        self._names: set[str] = set()
        #: By the stage's name, how many calls could not be recorded, and why the first of them could not.
        self._unseen: dict[str, tuple[int, str]] = {}

    def add(self, transform: Callable[..., Any], name: str | None) -> BatchStage:
        """Return the stand-in for a transform, under a name that no other has."""
        known = unused_name(name or name_of(transform), self._names)
        self._names.add(known)
        self._state.has_batch_stages = True
        return BatchStage(transform, describe_batch_stage(transform, known, known), self)

    def call(self, stage: Stage, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a transform, and note what it returned for each sample."""
        if not self._state.is_open:
            return target(*args, **kwargs)
        rows: Sequence[Place | None] = []
        with self._state.guard():
            rows = self._find_samples(stage, [*args, *kwargs.values()])
        with self._tracker.pause_inside():
            output = target(*args, **kwargs)
        if rows:
            with self._state.guard():
                self._note(stage, rows, output)
        return output

    def _find_samples(self, stage: Stage, arguments: list[Any]) -> Sequence[Place | None]:
        given = batch_input(arguments[0]) if arguments else None
        tensor = given if isinstance(given, torch.Tensor) else next(all_tensors(arguments), None)
        try:
            with self._tracker.pause_inside():
                return self._matcher.find(tensor, arguments).rows
        except UnmatchedCall as error:
            self._skip(stage, str(error))
            return []

    def _skip(self, stage: Stage, reason: str) -> None:
        count, first = self._unseen.get(stage.name, (0, reason))
        self._unseen[stage.name] = count + 1, first

    def _note(self, stage: Stage, rows: Sequence[Place | None], output: Any) -> None:
        made = batch_input(output)
        is_split = (isinstance(made, torch.Tensor) and made.dim() > 0) or isinstance(made, (list, tuple))
        if not is_split or len(made) != len(rows):
            self._skip(stage, f"It returned a {type(made).__name__} that does not have a row for each sample.")
            return
        with self._tracker.pause_inside():
            outputs = [one.detach().cpu() if isinstance(one, torch.Tensor) else one for one in made]
        by_batch: dict[int, tuple[UnpredictedBatch, dict[int, Any]]] = {}
        for row, value in zip(rows, outputs, strict=True):
            if row is not None:
                by_batch.setdefault(id(row[0]), (row[0], {}))[1][row[1]] = value
        for batch, values in by_batch.values():
            self._write(batch, stage, values)
        if isinstance(made, torch.Tensor):
            # What the model is given then is known as the output of a stage, without operations in between.
            self._tracker.add(made, RowOrigins(tuple(rows), 0))

    def _write(self, batch: UnpredictedBatch, stage: Stage, values: dict[int, Any]) -> None:
        """Add the rows of one batch's samples to those that wait, or write them where the others are written already."""
        level = self._level.get()
        described: dict[int, Row] = {
            place: batch_row(value, level, batch.digests[place]) for place, value in values.items()
        }
        call = batch.next_stage_call(stage.path)
        ordinal = self._stages.append(
            stage if call == 1 else RepeatedCall(stage, call).describe(), _last_ordinal(batch)
        )
        batch.last_ordinal = ordinal
        tables = {name: wire.columns(name) for name in ("stage_outputs", "payloads")}
        for place, row in described.items():
            row.write(batch.indices[place], place, ordinal, stage.name, tables["stage_outputs"], tables["payloads"])
            self._batches.change_digest(batch, place, row.facts.digest)
        stamp = wire.BatchStamp(self._state.run.run_id, batch.epoch, None, batch.visits)
        made = stamp.apply(wire.to_tables(tables))
        self._state.write(self._take_stages())
        if batch.written or "stage_outputs" not in batch.tables:
            self._state.write([BatchRows(tables=made)])
            return
        for name, table in made.items():
            batch.tables[name] = wire.join_tables([batch.tables[name], table]) if name in batch.tables else table

    def _take_stages(self) -> list[BatchRows]:
        fresh = self._stages.take_rows()
        return [BatchRows(tables={"stages": fresh})] if fresh is not None else []

    def report(self) -> None:
        """Say which calls were not recorded."""
        run = self._state.run
        for name, (count, reason) in self._unseen.items():
            run.unrecorded = [*(run.unrecorded or []), f"{count:,} calls of run.stage({name}): {reason}"]


def _last_ordinal(batch: UnpredictedBatch) -> int | None:
    if batch.last_ordinal is None and (outputs := batch.tables.get("stage_outputs")) is not None:
        return max(outputs["stage"].to_pylist(), default=None)
    return batch.last_ordinal


class BatchStage:
    """Stands in for a transform of whole batches; everything but calling it is the transform's own."""

    def __init__(self, target: Callable[..., Any], stage: Stage, stages: BatchStages) -> None:
        object.__setattr__(self, "_audit_target", target)
        object.__setattr__(self, "_audit_call", lambda args, kwargs: stages.call(stage, target, args, kwargs))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._audit_target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._audit_call(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_audit_"):
            raise AttributeError(name)
        return getattr(self._audit_target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._audit_target, name, value)

    def __repr__(self) -> str:
        return repr(self._audit_target)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, is the user's transform: a recording cannot be in two places.
        return (_return_unchanged, (self._audit_target,))


def _return_unchanged(target: Any) -> Any:
    return target
