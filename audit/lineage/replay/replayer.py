"""Visits made again and compared with what was recorded of them, one dataset at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audit import plainjson, values
from audit.errors import NeedsTrust, NotFound
from audit.lineage.error_comparison import is_same_error
from audit.lineage.replay.kept_values import align
from audit.lineage.replay.reasons import Reasons
from audit.lineage.replay.recorded_visits import Key, RecordedVisit, RecordedVisits
from audit.lineage.replay.result import MOST_LISTED, TOLERANCE, Replay, VisitMismatch
from audit.lineage.trace import trace
from audit.output_file import explain_write_errors
from audit.records import MODEL_STAGE, STALL_ERROR, Progress, Run, is_batch_stage
from audit.store.read.reader import Reader
from audit.tables import SampleSourceRow

if TYPE_CHECKING:
    from audit.lineage.replay.model import ReplayModel
    from audit.lineage.replay.pipeline import ReplayedVisit, ReplayPipeline, ReplayTask

_MODEL_BATCH = 32
_MOST_MEASURED = 20


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Which visits to replay, and what with."""

    indices: Sequence[int] = ()
    sample: int | None = None
    epoch: int | None = None
    stage: int | None = None
    workers: int | None = None
    model: str | bool = False
    export: str | None = None
    progress: Callable[[Progress], None] | None = None
    split: str | None = None
    trust: bool = False


class Replayer:
    """One dataset's replay under way."""

    def __init__(
        self,
        reader: Reader,
        visits: RecordedVisits,
        run: Run,
        pipeline: ReplayPipeline,
        model: ReplayModel | None,
        wanted: ReplayOptions,
        result: Replay,
    ) -> None:
        self.reader = reader
        self.visits = visits
        self.run = run
        self.pipeline = pipeline
        self.model = model
        self.wanted = wanted
        self.result = result
        self.reasons = Reasons(run, pipeline, visits.stages)
        self._paths = {stage.path for stage in visits.stages.values()}
        self.inputs: list[tuple[Key, Any]] = []
        self.logits: dict[Key, list[float]] = {}
        if wanted.export:
            pipeline.level = "full"
        pipeline.keep_final = model is not None

    def execute(self) -> None:
        """Replay chunk by chunk, so that memory does not grow with the run."""
        from audit.lineage.replay.pipeline import replay_all

        wanted = self.wanted
        keys = self.visits.keys(wanted.indices, wanted.epoch, wanted.split, wanted.sample)
        done = 0
        for facts in self.visits.chunks(keys):
            self.logits = self.visits.logits(list(facts)) if self.model is not None else {}
            with closing(replay_all(self.pipeline, self._tasks(facts), workers=wanted.workers)) as outcomes:
                for outcome in outcomes:
                    self._compare(outcome, facts[_key(outcome.task)])
                    done += 1
                    if wanted.progress is not None:
                        wanted.progress(Progress(done, len(keys), doing="replaying"))
            self._compare_logits()

    def _tasks(self, facts: dict[Key, RecordedVisit]) -> list[ReplayTask]:
        """Return what is to be made again; samples that the dataset no longer has are judged at once."""
        from audit.lineage.replay.pipeline import ReplayTask

        states = {} if self.pipeline.seeded else self.visits.states(list(facts))
        tasks = []
        for key, fact in facts.items():
            epoch, index, visit = key
            place = self.pipeline.place_of(index, fact["source"], fact["root"], states.get(key, {}))
            if place is None:
                reason, detail = self.reasons.explain_absent(fact, index, states.get(key, {}))
                self._count(fact, 0)
                self._differs(VisitMismatch(index, epoch, visit, fact["source"], 0, "load", reason, None, detail))
            else:
                alone = fact["failed_stage"] == "worker" or STALL_ERROR in (fact["error"] or "")
                tasks.append(ReplayTask(epoch, index, visit, states.get(key, {}), place, alone))
        return tasks

    # -- comparing -------------------------------------------------------------------------------

    def _compare(self, outcome: ReplayedVisit, fact: RecordedVisit) -> None:
        made, outcome = outcome, outcome.with_last_calls(fact["calls"], self._paths)
        if self.wanted.export:
            with explain_write_errors(self.wanted.export, "Choose another folder with --export."):
                self._export(outcome)
        outcome, fact = self._leave_out_kept(outcome, fact)
        if not self._has_compared(fact):
            return
        self._count(fact, self._equal_outputs(outcome, fact))
        if self.model is not None and outcome.final is not None:
            self.inputs.append((_key(outcome.task), outcome.final))
            if len(self.inputs) >= _MODEL_BATCH:
                self._compare_logits()
        first = self._first_difference(outcome, fact)
        if first is None:
            self.result.identical += 1
        elif len(self.result.different) < MOST_LISTED:
            self._differs(self._explain(made, fact, *first))

    def _leave_out_kept(self, outcome: ReplayedVisit, fact: RecordedVisit) -> tuple[ReplayedVisit, RecordedVisit]:
        """Leave out stages whose output the dataset kept from an earlier visit: the recording has them, or the replay."""
        epoch, _, visit = _key(outcome.task)
        if not (epoch or visit) or outcome.digests.get("0") == fact["stages"].get(0):
            return outcome, fact
        paths = {self._stage(ordinal)[0]: ordinal for ordinal in sorted(fact["stages"])}
        recorded, made = align({path: fact["stages"][paths[path]] for path in paths}, outcome.digests)
        for path in paths.keys() - recorded.keys():
            self._add_not_compared(paths[path])
        stages = {paths[path]: digest for path, digest in recorded.items()}
        return replace(outcome, digests=made), {**fact, "stages": stages}

    def _has_compared(self, fact: RecordedVisit) -> bool:
        """Count the outputs of a visit that cannot be compared; return whether anything is left."""
        for ordinal, digest in fact["stages"].items():
            if self._is_wanted(ordinal) and not self._is_compared(ordinal, digest):
                self._add_not_compared(ordinal)
        return fact["status"] == "failed" or any(self._is_compared(*pair) for pair in fact["stages"].items())

    def _add_not_compared(self, ordinal: int) -> None:
        path, name = self._stage(ordinal)
        key = f"{path} ({name})"
        self.result.not_compared[key] = self.result.not_compared.get(key, 0) + 1

    def _count(self, fact: RecordedVisit, equal: int) -> None:
        self.result.checked += 1
        self.result.stage_outputs += sum(self._is_compared(*pair) for pair in fact["stages"].items())
        self.result.identical_outputs += equal

    def _differs(self, difference: VisitMismatch) -> None:
        if len(self.result.different) < MOST_LISTED:
            self.result.different.append(difference)

    def _is_wanted(self, ordinal: int) -> bool:
        return self.wanted.stage is None or ordinal == self.wanted.stage

    def _is_compared(self, ordinal: int, digest: str | None) -> bool:
        """Return whether a recorded output can be compared: two values without a digest may or may not be equal."""
        return self._is_wanted(ordinal) and digest is not None and not is_batch_stage(self._stage(ordinal)[0])

    def _stage(self, ordinal: int) -> tuple[str, str]:
        stage = self.visits.stages.get(ordinal)
        return (stage.path, stage.name) if stage else (str(ordinal), f"stage {ordinal}")

    def _equal_outputs(self, outcome: ReplayedVisit, fact: RecordedVisit) -> int:
        return sum(
            outcome.digests.get(self._stage(ordinal)[0]) == digest
            for ordinal, digest in fact["stages"].items()
            if self._is_compared(ordinal, digest)
        )

    def _first_difference(self, outcome: ReplayedVisit, fact: RecordedVisit) -> tuple[int | None, str] | None:
        """Return (ordinal, name) of the first stage whose digest differs, or None when all are equal."""
        paths = set()
        for ordinal in sorted(fact["stages"]):
            path, name = self._stage(ordinal)
            paths.add(path)
            recorded = fact["stages"][ordinal]
            if self._is_compared(ordinal, recorded) and outcome.digests.get(path, "") != recorded:
                return ordinal, name
        if self.wanted.stage is not None:
            return None
        # The model is not run in a replay: if it could not take the sample, what comes before is compared.
        if fact["status"] == "failed" and not (fact["failed_stage"] == MODEL_STAGE and outcome.error is None):
            same = outcome.failed_stage == fact["failed_stage"] and is_same_error(outcome.error, fact["error"])
            return None if same else (None, fact["failed_stage"] or "load")
        if outcome.error is not None:
            return None, outcome.failed_stage or "load"
        if fact["source_digest"] and outcome.source_digest and outcome.source_digest != fact["source_digest"]:
            return 0, "load"
        if any(map(self.reasons.is_file_changed, self._list_unread_files(outcome, fact))):
            return 0, "load"
        if more := [path for path in outcome.digests if path not in paths]:
            return None, more[0]
        return None

    def _list_unread_files(self, outcome: ReplayedVisit, fact: RecordedVisit) -> list[SampleSourceRow]:
        """Return the files of a sample that the replay has not hashed while it made the sample."""
        return [row for row in fact["sources"] if row["ordinal"] or outcome.source_digest is None]

    def _explain(self, outcome: ReplayedVisit, fact: RecordedVisit, ordinal: int | None, name: str) -> VisitMismatch:
        reason, detail = self.reasons.of(outcome, fact, ordinal)
        epoch, index, visit = _key(outcome.task)
        distance = self._distance(outcome, fact, ordinal)
        return VisitMismatch(index, epoch, visit, fact["source"], ordinal, name, reason, distance, detail)

    def _distance(self, outcome: ReplayedVisit, fact: RecordedVisit, ordinal: int | None) -> float | None:
        """Return the largest absolute difference from the stored value, where it was stored and both are numbers."""
        if ordinal is None or len(self.result.different) >= _MOST_MEASURED:
            return None
        task = outcome.task
        recorded = trace(self.reader, self.run.run_id, index=task.index, epoch=task.epoch, visit=task.visit)
        if not recorded.is_stored(ordinal):
            return None
        level, self.pipeline.level = self.pipeline.level, "full"
        try:
            again = self.pipeline.replay_visit(task).with_last_calls(fact["calls"], self._paths)
            exact = again.exact.get(self._stage(ordinal)[0])
        finally:
            self.pipeline.level = level
        if exact is None:
            return None
        try:
            before = _numbers(recorded.value(ordinal, numpy_only=True))
            now = _numbers(values.decode(*exact, numpy_only=True, allow_pickle=True))
        except (NeedsTrust, NotFound):
            return None  # the numbers cannot be read without executing what the store contains
        if before is None or now is None or before.shape != now.shape or not before.size:
            return None
        return float(np.abs(before - now).max())

    # -- besides ---------------------------------------------------------------------------------

    def _export(self, outcome: ReplayedVisit) -> None:
        task = outcome.task
        folder = Path(str(self.wanted.export)) / f"{task.index}-{task.epoch}-{task.visit}"
        folder.mkdir(parents=True, exist_ok=True)
        only = None if self.wanted.stage is None else self._stage(self.wanted.stage)[0]
        for path, (kind, encoded) in outcome.exact.items():
            if only is None or path == only:
                values.export(values.decode(kind, encoded, allow_pickle=True), folder / _file_name(path))
        (folder / "digests.json").write_text(plainjson.dumps(outcome.digests, indent=1))

    def _compare_logits(self) -> None:
        """Compare the logits of the inputs that have gathered, in one batch."""
        comparison, inputs = self.result.model, [pair for pair in self.inputs if pair[0] in self.logits]
        self.inputs = []
        if self.model is None or comparison is None or not inputs:
            return
        for (key, _), again in zip(inputs, self.model.logits([value for _, value in inputs]), strict=True):
            comparison.compared += 1
            distance, within = _distance_of(again, self.logits[key])
            comparison.max_abs_diff = max(comparison.max_abs_diff, distance)
            if not within:
                comparison.beyond.append(key[1])


def _key(task: ReplayTask) -> Key:
    return task.epoch, task.index, task.visit


def _file_name(path: str) -> str:
    """Return a stage's path as the name of a file; names of stages that `audit.stage` gives are the user's own text."""
    kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in path)[:100]
    return kept.lstrip(".") or "_"


def _numbers(value: Any) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _distance_of(now: list[float], before: list[float]) -> tuple[float, bool]:
    """Return the largest difference, and whether all are within the tolerance; NaN equals NaN, as both say the same."""
    if len(now) != len(before):
        return math.inf, False
    a, b = np.asarray(now), np.asarray(before)
    within = bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    finite = apart[np.isfinite(apart)]
    return (float(finite.max()) if finite.size else 0.0), within
