"""A run under way, whichever engine does the work: counts, budget, warnings, and how it ends."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from audit.engines.assemble import WITHOUT_CLASSES, compare_width
from audit.engines.failure_limit import FailureLimit
from audit.engines.model_output import BatchOutput, UnreadOutput, describe_unread
from audit.engines.plan import Plan
from audit.errors import RecordingError, StoreError
from audit.models.meaning import OutputMeaning
from audit.recorders.calls.unseen_changes import describe_unrecorded
from audit.recorders.capture import Budget, Decision, decide
from audit.recorders.envelope import RecordedBatch
from audit.recorders.model.scale_doubt import DOUBT, is_enough
from audit.records import Run, Status, add_unrecorded

#: So many samples, spread over the run, show what keeping everything would take.
PROBED_SAMPLES = 4
#: The most problems and failures of several batches that are kept one by one.
_MOST_KEPT = 20


@dataclass(slots=True, kw_only=True)
class BatchCounts:
    """What recorded batches add to the counts of a run."""

    samples: int = 0
    failed: int = 0
    payload_bytes: int = 0
    #: Labels that no output of the model stands for.
    outside: int = 0
    #: How many outputs the model has, once it has run.
    outputs: int | None = None
    problems: list[str] = field(default_factory=list)
    #: What items look like that have neither a label nor a target, and whether any sample has one.
    unlabelled: str | None = None
    has_labels: bool = False
    #: A sentence for each sample that failed.
    failures: list[str] = field(default_factory=list)
    #: Changes of the values that no stage explains.
    unrecorded: list[str] = field(default_factory=list)
    #: Sentences on predictions that could not be graded.
    ungraded: list[str] = field(default_factory=list)
    #: Outputs that could not be read.
    unread: list[UnreadOutput] = field(default_factory=list)
    #: What the numbers of each graded output mean, once the model has run; the first counts for the run.
    meanings: dict[str | None, OutputMeaning] = field(default_factory=dict)
    #: How many values of each may be probabilities though they are taken for logits; None where they are not in doubt.
    values_inside: dict[str | None, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: RecordedBatch, output: BatchOutput | None = None) -> BatchCounts:
        """Return the counts of one batch, and of what the model made of it."""
        output = output or BatchOutput()
        first = output.main_output
        logits = first.values if first is not None else None
        return cls(
            samples=batch.count,
            failed=batch.failed,
            payload_bytes=batch.payload_bytes + output.payload_bytes,
            outside=first.labels_outside if first is not None else 0,
            outputs=int(logits.shape[1]) if logits is not None else None,
            problems=batch.problems,
            unlabelled=batch.unlabelled,
            has_labels=any(one is not None for one in (*batch.labels, *batch.item_targets, *batch.item_head_targets)),
            failures=batch.failures,
            unrecorded=batch.unrecorded,
            ungraded=output.problems,
            unread=output.unread,
            meanings={one.head: one.reader.meaning for one in output.graded if one.reader.meaning is not None},
            values_inside={one.head: one.values_inside for one in output.graded},
        )

    def add(self, other: BatchCounts) -> None:
        """Add those of another batch; of problems and failures only the first are kept."""
        self.samples += other.samples
        self.failed += other.failed
        self.payload_bytes += other.payload_bytes
        self.outside += other.outside
        self.outputs = other.outputs if other.outputs is not None else self.outputs
        self.problems = [*self.problems, *other.problems][:_MOST_KEPT]
        self.unlabelled = self.unlabelled or other.unlabelled
        self.has_labels = self.has_labels or other.has_labels
        self.failures = [*self.failures, *other.failures][:_MOST_KEPT]
        self.ungraded = [*dict.fromkeys([*self.ungraded, *other.ungraded])][:_MOST_KEPT]
        self.unread = [*self.unread, *other.unread]
        self.meanings = other.meanings | self.meanings
        self.values_inside = _add_values_inside(self.values_inside, other.values_inside)
        self.unrecorded = [*dict.fromkeys([*self.unrecorded, *other.unrecorded])][:_MOST_KEPT]


def _add_values_inside(
    one: Mapping[str | None, int | None], other: Mapping[str | None, int | None]
) -> dict[str | None, int | None]:
    """Return the sums; None where either is not in doubt."""
    found = {**one, **other}
    for head in one.keys() & other.keys():
        first, second = one[head], other[head]
        found[head] = None if first is None or second is None else first + second
    return found


class RunExecutor(ABC):
    """Records what a plan says. An engine says how."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.request = plan.request
        self.assembly = plan.assembly
        self.writer = plan.writer
        self.done = plan.writer.run.samples
        self.failed = plan.writer.run.failed
        self.total = self.done + len(plan.indices)
        self.outside = 0
        self.values_inside: dict[str | None, int | None] = {}
        self.problems: list[str] = []
        self._unlabelled: str | None = None
        self._has_labels = False
        #: Samples without a prediction, by the output and the sentence that says why.
        self.unread: dict[tuple[str | None, str], list[int]] = {}
        self.outputs: int | None = None
        is_auto = self.request.capture == "auto"
        self.budget = Budget(self.request.capture_budget if is_auto else None)
        #: Each sample's share of it; None where the budget does not count.
        self.share = self.request.capture_budget / max(self.total, 1) if is_auto else None
        if self.request.commit_every is not None:
            plan.writer.commit_every(self.request.commit_every)

    @abstractmethod
    def record(self) -> None:
        """Record everything that the plan leaves to do."""

    @abstractmethod
    def end(self, status: Status) -> Run:
        """Commit what is left and let go of the run."""

    def execute(self) -> Run:
        """Record everything; the run's row says how it ended. Raises only what stops the run itself."""
        status: Status = "failed"
        try:
            for note in self.assembly.notes:
                self.request.report_note(note)
            self.request.report_progress("waiting for the first batch", self.done, self.total, self.failed)
            self.record()
            status = "complete"
        except KeyboardInterrupt:
            status = "interrupted"
        except StoreError as error:
            self.warn(f"The run stopped: {error.message}")
            with contextlib.suppress(StoreError):
                self.end("interrupted")
            raise
        except BaseException as error:
            self.warn(f"The run stopped: {error}")
            self._finish(status)
            raise
        return self._finish(status)

    def _finish(self, status: Status) -> Run:
        if status == "complete" and self._fails_too_often():
            status = "failed"
        if self.outside:
            self.warn(f"{self.outside} labels lie outside the model's outputs; their samples have no loss.")
        if self._unlabelled and not self._has_labels and self.writer.run.output not in (None, "embedding"):
            self.warn(
                f"No label was found in the items ({self._unlabelled}): predictions are not graded. "
                "Let the dataset return (input, target)."
            )
        for head, count in self.values_inside.items():
            if count is not None and is_enough(count):
                self.warn(f"The output of the model {self._output_name(head)}: {DOUBT}")
        notes = [describe_unread(head, indices, why) for (head, why), indices in self.unread.items()]
        if self.writer.run.unrecorded:
            notes.append(describe_unrecorded(self.writer.run.unrecorded))
        for note in notes:
            self.warn(note)
            self.request.report_note(note)
        if self.problems:
            self.warn(f"{len(self.problems)} values could not be recorded, the first: {self.problems[0]}")
        return self.end(status)

    def _fails_too_often(self) -> bool:
        """Return whether more samples failed than `max_failures` allows; the run's row then says so."""
        if self.request.max_failures is None:
            return False
        limit = FailureLimit.parse(self.request.max_failures)
        if not limit.is_exceeded(self.failed, self.done):
            return False
        self.warn(f"{self.failed:,} of {self.done:,} samples failed, and max_failures is {limit}.")
        return True

    def warn(self, message: str) -> None:
        """Keep a warning on the run's row, once."""
        self.writer.add_warning(message)

    def count(self, counts: BatchCounts) -> bool:
        """Take note of what was recorded; True once, when the capture budget is spent. Raises when the run is strict
        and a sample failed or has no prediction, and when the first output of all cannot be read."""
        self.done += counts.samples
        self.failed += counts.failed
        self.outside += counts.outside
        self.values_inside = _add_values_inside(self.values_inside, counts.values_inside)
        self.problems.extend(counts.problems)
        self._unlabelled = self._unlabelled or counts.unlabelled
        self._has_labels = self._has_labels or counts.has_labels
        if (run := self.writer.run).unrecorded is not None:
            add_unrecorded(run, counts.unrecorded, _MOST_KEPT)
        self._note_meaning(counts)
        if self.outputs is None and counts.outputs is not None:
            self._compare_outputs(counts.outputs)
        spent = self.budget.spend(counts.payload_bytes)
        self.request.report_progress("recording", self.done, self.total, self.failed)
        if counts.failed and self.request.strict:
            raise RecordingError(
                counts.failures[0],
                hint="See it with: audit sql 'FROM failures'. Without --strict the run would have gone on.",
            )
        for unread in counts.unread:
            self._add_unread(unread)
        return spent

    def _add_unread(self, unread: UnreadOutput) -> None:
        """Take note of samples without a prediction; raise where the run is strict, or no output was read before."""
        if self.request.strict:
            why = describe_unread(unread.head, unread.indices, unread.error.message)
            raise RecordingError(why, hint=unread.error.hint)
        if not (unread.is_stored or self._was_read(unread.head)):
            raise unread.error
        key = (unread.head, str(unread.error))
        if key not in self.unread and len(self.unread) >= _MOST_KEPT:
            key = (unread.head, "The outputs of the model could not be read, for other reasons than those above.")
        self.unread.setdefault(key, []).extend(unread.indices)

    def _was_read(self, head: str | None) -> bool:
        """Return whether the run knows what an output means."""
        if head is None:
            return self.writer.run.output is not None
        return self._output_name(head) in self.writer.run.recipe.get("heads", {})

    def _output_name(self, head: str | None) -> str:
        name = self.assembly.model.name if self.assembly.model is not None else "model"
        return name if head is None else f"{name}.{head}"

    def _note_meaning(self, counts: BatchCounts) -> None:
        """Keep on the run's row what the model's output means, and why predictions could not be graded."""
        run = self.writer.run
        for head, meaning in counts.meanings.items():
            if run.output is None:
                run.output, run.task, run.output_evidence = meaning.kind, meaning.task, meaning.evidence
            if head is not None:
                run.recipe.setdefault("heads", {})[self._output_name(head)] = meaning.kind
            if meaning.doubt is not None:
                self.warn(f"The output of the model {self._output_name(head)}: {meaning.doubt}")
        for problem in counts.ungraded:
            self.warn(f"The output of the model {self._output_name(None)}: {problem}")

    def _compare_outputs(self, outputs: int) -> None:
        """Say once that outputs and classes differ, where only running the model shows how many outputs it has."""
        self.outputs = outputs
        model = self.assembly.model
        has_classes = self.writer.run.output not in WITHOUT_CLASSES
        if model is not None and model.num_classes is None and not self.request.heads and has_classes:
            for note in compare_width(model, outputs, self.assembly.classes):
                self.warn(note)
                self.request.report_note(note)

    def decide_level(self, payload_bytes: int, ok: int) -> Decision:
        """Return the level that follows from what a few samples took; none of them may have been readable."""
        mean = payload_bytes / ok if ok else None
        return decide(self.request.capture, mean, self.total, self.request.capture_budget)
