"""What Ray's workers do: make and record batches, run the model on them, write parts. Nothing here commits.

Every process builds the pipeline from the run's recipe, once, and checks that it is the one that the driver sees.
What goes wrong is returned, not raised: Ray would try it again, and again.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from audit.engines.assemble import assemble, load_model
from audit.engines.executor import BatchCounts
from audit.engines.forward import Forward, RowAppender, input_digests
from audit.engines.ray.stage_number_actor import SharedStages, ask_numbering
from audit.engines.request import RunRequest
from audit.errors import AuditError
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.envelope import RecordedBatch
from audit.recorders.seeded_dataset import RecordedDataset
from audit.records import Level, Stage
from audit.store.write.block import Block, BlockWriter
from audit.store.write.payload_filter import Selection
from audit.usercode import CodeFiles

T = TypeVar("T")
#: A batch to be made: its number, and the indices of its samples.
Share = tuple[int, list[int]]
#: How often a task is tried again whose worker died. Ray Data would try without end.
RETRIES = 1


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker must know of a run."""

    recipe: dict[str, Any]
    location: str
    run_id: str
    level: Level
    classes: list[str] | None
    capture_where: str | None
    device: str
    #: What the driver's dataset, pipeline and model are; a worker's must be the same.
    digests: dict[str, str | None]
    #: The SHA-256 of each file of the user's own code, by module.
    code: dict[str, str]
    #: The stages of the pipeline, and the actor that numbers these and all that visits meet.
    stages: list[Stage]
    numbering: Any
    #: Each sample's share of the capture budget; None where the budget does not count.
    share: float | None = None

    def request(self, device: str) -> RunRequest:
        """Return the request as this machine must understand it."""
        # The driver has decided whose code may run before it sent the job.
        return RunRequest.from_recipe(self.recipe, self.location, trust=bool(self.recipe["trust"]), device=device)

    def check(self, what: str, found: str | None) -> None:
        """Refuse to mix what two machines see under the same name."""
        if found != self.digests[what]:
            raise AuditError(
                f"The {what} on {socket.gethostname()} is not that of the driver (digest {found}, and on the driver "
                f"{self.digests[what]}).",
                hint="Every machine of the cluster needs the same files at the same paths, and the same versions; a "
                "function that makes a model or a dataset must make the same one in every process.",
            )

    def check_code(self, found: CodeFiles) -> None:
        """Refuse code that is not the driver's."""
        for file in found:
            if self.code.get(file.module, file.sha256) != file.sha256:
                raise AuditError(
                    f"{file.path} on {socket.gethostname()} is not the file that the driver executed.",
                    hint="Every machine of the cluster needs the same files; do not edit them while a run is made.",
                )


@dataclass(slots=True, kw_only=True)
class TaskResult:
    """What one task recorded: adopted by the driver as a whole, or not at all."""

    numbers: list[int]
    block: Block
    counts: BatchCounts = field(default_factory=BatchCounts)
    #: Its stages, by ordinal.
    stages: dict[int, Stage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a few samples took: bytes of payloads of those that could be read, how many these were, and the time."""

    payload_bytes: int
    ok: int
    seconds: float


class WorkerContext:
    """What one process has at hand for one run, made when it is first needed."""

    def __init__(self, job: Job) -> None:
        # Others work on the same cores: more threads than cores make everything many times slower.
        torch.set_num_threads(1)
        self._job = job
        self._recorded: RecordedDataset | None = None
        self._forward: Forward | None = None
        self._stage_numbers: dict[tuple[Any, ...], dict[int, int]] = {}

    def fetch(self, indices: Sequence[int]) -> RecordedBatch:
        """Return one batch, recorded."""
        return self.open().__getitems__(indices)

    def open(self) -> RecordedDataset:
        """Return the dataset and its stages, ready to be recorded."""
        if self._recorded is None:
            self._recorded = self._build()
        return self._recorded

    def _build(self) -> RecordedDataset:
        job = self._job
        request = job.request("cpu")
        # Where no pipeline is named, the model's own preprocessing is it.
        assembly = assemble(
            request, with_model=request.pipeline is None, observe_calls=bool(self._job.recipe.get("observed_calls"))
        )
        job.check_code(assembly.code)
        job.check("dataset", assembly.dataset_digest())
        job.check("pipeline", assembly.pipeline_digest())
        return RecordedDataset(
            assembly.dataset,
            assembly.pipeline,
            level=CaptureLevel(job.level),
            seed=request.seed,
            want_inputs=request.model is not None,
            head_targets=request.head_targets,
        )

    def forward(self) -> Forward:
        """Return the model, ready to be run."""
        if self._forward is None:
            request = self._job.request(self._job.device)
            model = load_model(request)
            assert model is not None
            self._job.check("model", model.digest)
            self._forward = Forward(
                model,
                request.model,
                request.device,
                request.single_output,
                self._job.classes,
                request.heads,
                self._job.share,
            )
        return self._forward

    def write(self, batches: Iterable[tuple[int, RecordedBatch]]) -> TaskResult:
        """Run the model, if there is one, and write all rows of these batches as parts of one attempt."""
        job = self._job
        selection = Selection(job.capture_where) if job.capture_where else None
        forward = self.forward() if job.recipe["model"] is not None else None
        stages = SharedStages(job.stages, self._stage_numbers, ask_numbering(job.numbering))
        rows = RowAppender(job.run_id, selection, stages, forward)
        writer: BlockWriter | None = None
        numbers: list[int] = []
        total = BatchCounts()
        with torch.inference_mode():
            for number, fetched in batches:
                writer = writer or BlockWriter(job.location, job.run_id, number)
                output = forward(fetched, job.level) if forward is not None and fetched.ok else None
                digests = input_digests(fetched) if output is not None and output.graded else []
                rows.append_to(writer, fetched, number, output, digests)
                numbers.append(number)
                total.add(BatchCounts.of(fetched, output))
        assert writer is not None, "a task was given no batch"
        block = writer.finish()
        total.add(BatchCounts(problems=writer.losses))
        return TaskResult(numbers=numbers, block=block, counts=total, stages=stages.met)


_contexts: dict[str, WorkerContext] = {}


def worker_context(job: Job) -> WorkerContext:
    """Return this process's context for a run; that of an earlier run is cleared away."""
    key = f"{job.location}/{job.run_id}/{job.level}"
    if key not in _contexts:
        _contexts.clear()
        _contexts[key] = WorkerContext(job)
    return _contexts[key]


# -- what Ray Data calls: columns in, columns out ------------------------------------------------


def pack(value: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return one row that holds a Python value as bytes."""
    column = np.empty(1, dtype=object)
    column[0] = pickle.dumps(value, protocol=5)
    return {"value": column}


def unpack(rows: Mapping[str, Any]) -> Iterator[Any]:
    """Return the values of all rows."""
    return (pickle.loads(value) for value in rows["value"])


def record(rows: Mapping[str, Any], job: Job) -> Iterator[dict[str, Any]]:
    """Make the batches of one task, for a pool of models: a row for each, so that none waits for all."""
    if _fails_too_often():
        yield pack(None)
        return
    for number, indices in _shares(rows):
        made = _return_errors(lambda indices=indices: worker_context(job).fetch(indices))  # type: ignore[misc]
        yield pack(made if isinstance(made, AuditError) else (number, made))


def record_and_write(rows: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Record and write the batches of one task: for a run without a model."""
    return pack(None if _fails_too_often() else record_here(_shares(rows), job))


class Predictor:
    """One model of the pool. Loaded at the first batch: what goes wrong then can be reported."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model on recorded batches and write all their rows."""
        made = [value for value in unpack(rows) if value is not None]
        failed = next((value for value in made if isinstance(value, AuditError)), None)
        if failed is not None or not made or _fails_too_often():
            return pack(failed)
        return pack(_return_errors(lambda: worker_context(self._job).write(made)))


def _shares(rows: Mapping[str, Any]) -> list[Share]:
    return [share for task in unpack(rows) for share in task]


def _fails_too_often() -> bool:
    """Return whether this task has failed too often. The task then returns nothing, and the driver records its batches in another way."""
    from ray._private.worker import global_worker

    # Only a private name of Ray says which attempt this is. Without it the driver gives up after a long time without results.
    attempt = getattr(global_worker.core_worker, "get_current_task_attempt_number", lambda: 0)
    return bool(attempt() > RETRIES)


# -- what is called without Ray Data ---------------------------------------------------------------


def record_here(shares: Sequence[Share], job: Job) -> TaskResult | AuditError:
    """Make, predict and write some batches, all in this process."""
    context = worker_context(job)
    return _return_errors(lambda: context.write((number, context.fetch(indices)) for number, indices in shares))


def probe(indices: Sequence[int], job: Job) -> ProbeResult | AuditError:
    """Measure what keeping everything of a few samples takes, and how long."""
    context = worker_context(job)

    def measure() -> ProbeResult:
        context.open()
        begun = time.perf_counter()
        fetched = context.fetch(indices)
        # Nobody reads what a probe did not see: the first batch that is kept must say it again.
        context.open().repeat_unrecorded()
        return ProbeResult(fetched.payload_bytes, len(fetched.ok), time.perf_counter() - begun)

    return _return_errors(measure)


def _return_errors(work: Callable[[], T]) -> T | AuditError:
    try:
        return work()
    except AuditError as error:
        # What is missing there (a file, a credential, a package) may be present where the driver runs.
        error.hint = f"{error.hint or ''} Reported by a Ray worker on {socket.gethostname()}.".strip()
        return error
    except Exception as error:
        return AuditError(f"A Ray worker on {socket.gethostname()} failed: {type(error).__name__}: {error}")
