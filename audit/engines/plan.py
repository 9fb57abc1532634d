"""What a run is to do, whichever engine does it: the pipeline, the samples that are left, and the run's writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from audit import provenance, values
from audit.engines.assemble import Assembly, assemble
from audit.engines.request import RunRequest
from audit.errors import NotFound, UsageError
from audit.identity import check_run_name
from audit.records import Run, Stage
from audit.sources.trust import require_trust, sign_recipe
from audit.store.read.reader import Reader
from audit.store.write.payload_filter import Selection
from audit.store.write.writer import RunWriter
from audit.texts import path_as_utf8

Indices = Sequence[int] | np.ndarray[Any, Any]


@dataclass(slots=True)
class Plan:
    """A run that has its row in the store, and what it has still to record."""

    request: RunRequest
    assembly: Assembly
    writer: RunWriter
    indices: Indices
    selection: Selection | None
    #: Numbers of batches that are recorded already.
    taken: frozenset[int] = field(default_factory=frozenset)
    #: Stages that are in the store already.
    stages: list[Stage] = field(default_factory=list)

    def numbers(self) -> Iterator[int]:
        """Yield numbers for the batches to come. Those that an interrupted run left out come first: it is to end with the
        rows that an undisturbed one has."""
        return (number for number in count() if number not in self.taken)


def begin(request: RunRequest) -> Plan:
    """Plan a new run, and write its row to the store."""
    check_run_name(request.name)
    selection = Selection(request.capture_where) if request.capture_where else None
    commit = provenance.CommitQuery()
    try:
        assembly = assemble(request, observe_calls=True)
        total = min(len(assembly.dataset), request.limit or len(assembly.dataset))
        row = _row(request, assembly, total)
    except BaseException:
        commit.cancel()
        raise
    row.git_commit = commit.answer()
    writer = RunWriter.create(request.store, row)
    return Plan(request, assembly, writer, range(total), selection)


def resume_plan(store: str, reference: str | None, **changes: Any) -> Plan:
    """Plan what an interrupted run has left to do, whichever engine began it."""
    with Reader(store) as reader:
        recorded = _find_resumable_run(reader, reference)
        trust = require_trust(recorded, bool(changes.pop("trust", False)))
        request = RunRequest.from_recipe(recorded.recipe, store, trust=trust, capture="auto", **changes)
        request.capture = str(recorded.recipe.get("capture", "auto"))
        request.capture_budget = int(recorded.recipe.get("capture_budget", request.capture_budget))
        request.capture_where = recorded.recipe.get("capture_where")
        if request.max_failures is None:
            request.max_failures = recorded.recipe.get("max_failures")
        done = _distinct_values(reader, "index", recorded.run_id)
        taken = frozenset(_distinct_values(reader, "batch", recorded.run_id).tolist())
        stages = reader.rows(Stage, recorded.run_id)
    assembly = assemble(request, observe_calls=bool(recorded.recipe.get("observed_calls")))
    _check_unchanged(recorded, assembly)
    wanted = np.arange(recorded.expected or len(assembly.dataset))
    remaining = np.setdiff1d(wanted, done, assume_unique=True)
    selection = Selection(request.capture_where) if request.capture_where else None
    return Plan(request, assembly, RunWriter.resume(store, recorded.run_id), remaining, selection, taken, stages)


def _distinct_values(reader: Reader, column: str, run_id: str) -> np.ndarray[Any, Any]:
    rows = reader.sql(
        f"SELECT DISTINCT {column} FROM samples WHERE run_id = ? AND {column} IS NOT NULL", parameters=[run_id]
    )
    found: np.ndarray[Any, Any] = rows.arrow()[column].to_numpy()
    return found


def _find_resumable_run(reader: Reader, reference: str | None) -> Run:
    unfinished = [run for run in reader.runs() if run.status in ("interrupted", "failed")]
    if reference is None and not unfinished:
        raise NotFound("The store holds no interrupted run.", hint="See them all with: audit runs")
    recorded = reader.run(reference) if reference else unfinished[-1]
    if recorded.status == "complete":
        raise UsageError(
            f"The run {recorded.run_id} is complete: there is nothing to resume.",
            hint="See which runs are interrupted with: audit runs --where \"status = 'interrupted'\"",
        )
    return recorded


def _check_unchanged(recorded: Run, assembly: Assembly) -> None:
    if recorded.digest_version != values.digest_version():
        raise UsageError(
            f"The run {recorded.run_id} follows version {recorded.digest_version} of the digest recipe, and this audit records "
            f"version {values.digest_version()}: the rest of the run would not fit what was recorded.",
            hint="Begin a new run instead, or resume it with the audit that began it.",
        )
    model_digest = assembly.model.digest if assembly.model else None
    for what, before, now in (
        ("pipeline", recorded.pipeline_digest, assembly.pipeline_digest()),
        ("dataset", recorded.dataset_digest, assembly.dataset_digest()),
        ("model", recorded.model_digest, model_digest),
    ):
        if before != now:
            raise UsageError(
                f"The {what} has changed since the run {recorded.run_id} was interrupted (its digest was {before}, "
                f"now it is {now}): the rest of the run would not fit what was recorded.",
                hint="Begin a new run instead.",
            )
    for one in recorded.recipe.get("code") or ():
        now_code = assembly.code.get(one["module"])
        if now_code is not None and now_code.sha256 != one["sha256"]:
            raise UsageError(
                f"{one['file']} has changed since the run {recorded.run_id} was interrupted: the rest of the run "
                "would not fit what was recorded.",
                hint="Begin a new run instead.",
            )


def _row(request: RunRequest, assembly: Assembly, total: int) -> Run:
    model = assembly.model
    kept = {name: getattr(request, name) for name in ("capture", "capture_budget", "capture_where")}
    found: dict[str, Any] = {"notes_items": True, "observed_calls": True}
    if model is not None and model.expected is not None:
        found["expected_input"] = model.expected
    if request.max_failures is not None:
        kept["max_failures"] = request.max_failures
    return Run(
        run_id="",
        name=request.name,
        command=request.command,
        seed=request.seed,
        dataset=_to_text(request.dataset),
        dataset_digest=assembly.dataset_digest(),
        model=_to_text(request.model),
        model_digest=model.digest if model else None,
        arch=model.arch if model else None,
        classes=assembly.classes,
        pipeline_digest=assembly.pipeline_digest(),
        versions=provenance.versions(values.digest_version()),
        host=provenance.host(),
        tags=dict(request.tags),
        recipe=sign_recipe(request.recipe() | assembly.code_recipe(request.pipeline) | kept | found),
        expected=total,
        warnings=list(assembly.notes),
        unrecorded=[],
    )


def _to_text(text: str | None) -> str | None:
    return None if text is None else path_as_utf8(text)
