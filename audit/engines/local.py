"""DataLoader workers on this machine: samples are recorded in the workers, the model runs here.

A worker that dies takes its batch with it, not the run: the loader is started again where it stopped, and a
sample that kills its worker twice is a failed row like any other.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from audit import values
from audit.engines import environment
from audit.engines.assemble import Assembly, assemble
from audit.engines.request import Progress, RunRequest
from audit.errors import AuditError, ModelError, NotFound, PipelineError, RecordingError, StoreError, UsageError
from audit.identity import check_run_name
from audit.models.outputs import logits_of
from audit.recorders.budget import Budget, Decision, decide
from audit.recorders.dataset import Batch, CaptureLevel, RecordedDataset, as_is
from audit.recorders.predictions import prediction_columns
from audit.recorders.randomness import Seeder
from audit.records import Run, Status
from audit.store import batch as rows
from audit.store.background import BackgroundWriter
from audit.store.reader import Reader
from audit.store.selection import Selection
from audit.store.writer import RunWriter

_PROBED = 4
_MOST_WORKERS = 8


def run(request: RunRequest) -> Run:
    """Record a new run; gives its row as committed."""
    check_run_name(request.name)
    selection = Selection(request.capture_where) if request.capture_where else None
    assembly = assemble(request)
    total = min(len(assembly.dataset), request.limit or len(assembly.dataset))
    row = _row(request, assembly, total)
    writer = RunWriter.create(request.store, row)
    return LocalRun(request, assembly, writer, range(total), selection).go()


def resume(store: str, reference: str | None, **changes: Any) -> Run:
    """Continue an interrupted run to exactly the rows that an undisturbed one has."""
    with Reader(store) as reader:
        recorded = _resumable(reader, reference)
        request = RunRequest.from_recipe(recorded.recipe, store, capture="auto", **changes)
        request.capture = str(recorded.recipe.get("capture", "auto"))
        request.capture_budget = int(recorded.recipe.get("capture_budget", request.capture_budget))
        request.capture_where = recorded.recipe.get("capture_where")
        rows_done = reader.sql("SELECT DISTINCT index FROM samples WHERE run_id = ?", parameters=[recorded.run_id])
        done = rows_done.arrow()["index"].to_numpy()
        batches = reader.sql("SELECT max(batch) FROM samples WHERE run_id = ?", parameters=[recorded.run_id]).fetchone()
    assembly = assemble(request)
    _check_unchanged(recorded, assembly)
    wanted = np.arange(recorded.expected or len(assembly.dataset))
    remaining = np.setdiff1d(wanted, done, assume_unique=True)
    selection = Selection(request.capture_where) if request.capture_where else None
    writer = RunWriter.resume(store, recorded.run_id)
    first = int(batches[0]) + 1 if batches and batches[0] is not None else 0
    return LocalRun(request, assembly, writer, remaining, selection, first_batch=first).go()


def _resumable(reader: Reader, reference: str | None) -> Run:
    unfinished = [run for run in reader.runs() if run.status in ("interrupted", "failed")]
    if reference is None and not unfinished:
        raise NotFound("The store holds no interrupted run.", hint="See them all with: audit runs")
    recorded = reader.run(reference) if reference else unfinished[-1]
    if recorded.status == "complete":
        raise UsageError(f"The run {recorded.run_id} is complete: there is nothing to resume.")
    return recorded


def _check_unchanged(recorded: Run, assembly: Assembly) -> None:
    model_digest = assembly.model.digest if assembly.model else None
    for what, before, now in (
        ("pipeline", recorded.pipeline_digest, assembly.pipeline_digest()),
        ("dataset", recorded.dataset_digest, assembly.dataset_digest()),
        ("model", recorded.model_digest, model_digest),
    ):
        if before != now:
            raise UsageError(
                f"The {what} has changed since the run {recorded.run_id} was interrupted (its digest was {before}, "
                f"now it is {now}): its two halves would not belong together.",
                hint="Begin a new run instead.",
            )


def _row(request: RunRequest, assembly: Assembly, total: int) -> Run:
    model = assembly.model
    kept = {name: getattr(request, name) for name in ("capture", "capture_budget", "capture_where")}
    return Run(
        run_id="",
        sequence=0,
        started_at="",
        name=request.name,
        command=request.command,
        seed=request.seed,
        dataset=_shown(request.dataset),
        dataset_digest=assembly.dataset_digest(),
        model=_shown(request.model),
        model_digest=model.digest if model else None,
        arch=model.arch if model else None,
        classes=assembly.classes,
        pipeline_digest=assembly.pipeline_digest(),
        versions=environment.versions(),
        git_commit=environment.git_commit(),
        host=environment.host(),
        tags=dict(request.tags),
        recipe=request.recipe() | kept,
        expected=total,
        warnings=list(assembly.notes),
    )


def _shown(text: str | None) -> str | None:
    return None if text is None else os.fsencode(text).decode("utf-8", "backslashreplace")


class Batches:
    """Indices cut into batches, made one at a time: a million of them take no memory."""

    def __init__(self, indices: Sequence[int] | np.ndarray[Any, Any], size: int) -> None:
        self.indices = indices
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.indices) // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self.indices), self.size):
            yield [int(index) for index in self.indices[start : start + self.size]]


class LocalRun:
    """One run under way."""

    def __init__(
        self,
        request: RunRequest,
        assembly: Assembly,
        writer: RunWriter,
        indices: Sequence[int] | np.ndarray[Any, Any],
        selection: Selection | None,
        first_batch: int = 0,
    ) -> None:
        self.request = request
        self.assembly = assembly
        self.indices = indices
        self.selection = selection
        self.batch = first_batch
        self.done = writer.run.samples
        self.failed = writer.run.failed
        self.total = self.done + len(indices)
        self.outside = 0
        self.undecided = False
        self.problems: list[str] = []
        self.writer = writer
        if request.commit_every is not None:
            writer.commit_every(request.commit_every)
        self.background: BackgroundWriter | None = None

    def go(self) -> Run:
        """Record everything; the run's row says how it ended. Raises only what stops the run itself."""
        status: Status = "failed"
        try:
            self._record()
            status = "complete"
        except KeyboardInterrupt:
            status = "interrupted"
        except StoreError:
            self._let_go()
            raise
        except BaseException as error:
            self._warn(f"The run stopped: {error}")
            self._finish(status)
            raise
        return self._finish(status)

    def _finish(self, status: Status) -> Run:
        if self.outside:
            self._warn(f"{self.outside} labels lie outside the model's outputs; their samples have no loss.")
        if self.problems:
            self._warn(f"{len(self.problems)} values could not be recorded, the first: {self.problems[0]}")
        if self.background is not None:
            return self.background.finish(status)
        return self.writer.finish(status)

    def _let_go(self) -> None:
        self.writer.abandon()

    def _warn(self, message: str) -> None:
        self.writer.run.warnings.append(message)

    def _record(self) -> None:
        request = self.request
        decision = self._decide()
        level = CaptureLevel(decision.level)
        self.budget = Budget(request.capture_budget if request.capture == "auto" else None)
        self.level = level
        self.writer.run.capture = str(decision)
        self.recorded = self._recorded_dataset(level)
        batches = self._batches()
        first = next(batches, None)
        # The workers are forked by now: a thread that lives while a process forks can hold a lock in it for ever.
        self.background = BackgroundWriter(self.writer)
        self._write_stages()
        with torch.inference_mode():
            if first is not None:
                self._take(first)
            for fetched in batches:
                self._take(fetched)

    def _recorded_dataset(self, level: CaptureLevel) -> RecordedDataset:
        return RecordedDataset(
            self.assembly.dataset,
            self.assembly.pipeline,
            level=level,
            seeder=Seeder(self.assembly.dataset, self.request.seed),
            want_inputs=self.assembly.model is not None,
        )

    def _decide(self) -> Decision:
        """Estimate from a few samples what keeping everything would take.

        In a worker of their own, which nothing of the run remembers: one of them may kill its process, and a pipeline
        with a memory must not have seen any sample twice. Without workers the first batch itself tells (`_settle`).
        """
        asked = self.request.capture
        if asked != "auto" or not len(self.indices):
            return decide(asked if asked != "auto" else "digest", None, 0, 0)
        if self._workers(1) == 0:
            self.undecided = True
            return Decision("full", "auto")
        places = sorted({int(p) for p in np.linspace(0, len(self.indices) - 1, _PROBED)})
        batches = Batches([int(self.indices[place]) for place in places], _PROBED)
        try:
            fetched = next(_started(self._loader(self._recorded_dataset(CaptureLevel("full")), batches)))
        except RuntimeError:
            return self._decided(None)
        return self._decided(fetched)

    def _decided(self, fetched: Batch | None) -> Decision:
        mean = fetched.payload_bytes / len(fetched.ok) if fetched is not None and fetched.ok else None
        return decide(self.request.capture, mean, self.total, self.request.capture_budget)

    def _settle(self, fetched: Batch) -> None:
        """The first batch was kept in full; what it took decides about the rest."""
        self.undecided = False
        decision = self._decided(fetched)
        self.level.lower(decision.level)
        self.writer.run.capture = str(decision)

    def _write_stages(self) -> None:
        if "stages" in self.writer.committed_tables or self.background is None:
            return
        stages = self.assembly.pipeline.stages
        columns = {name: [getattr(stage, name) for stage in stages] for name in stages[0].__slots__}
        table = rows.table_of("stages", columns | {"run_id": [self.writer.run.run_id] * len(stages)})
        self.background.submit(lambda writer: writer.append({"stages": table}))

    # -- batches ---------------------------------------------------------------------------------

    def _workers(self, count: int) -> int:
        if self.request.workers is not None:
            return self.request.workers
        return min(os.cpu_count() or 1, _MOST_WORKERS, count)

    def _batches(self) -> Iterator[Batch]:
        """Every batch in order, through the deaths of workers."""
        indices, size, stuck = self.indices, self.request.batch_size, 0
        while len(indices):
            received = 0
            try:
                for fetched in _started(self._loader(self.recorded, Batches(indices, size))):
                    received += 1
                    yield fetched
                return
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                indices = indices[received * size :]
                stuck = stuck + 1 if received == 0 else 1
                if stuck >= 2:
                    # Twice at the same place: these samples one by one, in a worker of their own.
                    for index in indices[:size]:
                        yield self._alone(int(index))
                    indices, stuck = indices[size:], 0

    def _loader(self, dataset: RecordedDataset, batches: Batches) -> DataLoader[Any]:
        workers = self._workers(len(batches))
        return DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=as_is,
            multiprocessing_context=self.request.start_method if workers else None,
            pin_memory=self.request.device.startswith("cuda"),
        )

    def _alone(self, index: int) -> Batch:
        try:
            alone: Batch = next(_started(self._loader(self.recorded, Batches([index], 1))))
            return alone
        except RuntimeError:
            return self.recorded.died(index)

    def _take(self, fetched: Batch) -> None:
        """Run the model on a batch and hand all of it to the writer."""
        assert self.background is not None
        if self.background.error is not None:
            raise self.background.error
        logits = self._forward(fetched) if self.assembly.model and fetched.ok else None
        digests = _input_digests(fetched) if logits is not None else []
        number, run_id, classes, selection = self.batch, self.writer.run.run_id, self.assembly.classes, self.selection

        def write(writer: RunWriter) -> None:
            count = len(fetched.indices)
            unpacked = rows.unpack(fetched.records.numpy())
            tables = rows.Stamp(run_id, epoch=0, batch=number, visits=[0] * count).apply(unpacked)
            if logits is not None:
                tables["predictions"] = _predictions(fetched, logits, digests, classes, run_id, number)
            writer.append(selection.apply(tables) if selection else tables)

        self.background.submit(write, fetched.records.numel())
        self._count(fetched, logits)

    def _count(self, fetched: Batch, logits: torch.Tensor | None) -> None:
        self.batch += 1
        self.done += len(fetched.indices)
        failed = len(fetched.indices) - len(fetched.ok)
        self.failed += failed
        self.problems.extend(fetched.problems)
        if logits is not None:
            width = max(int(logits.shape[1]), 2)
            self.outside += sum(label is not None and not 0 <= label < width for label in fetched.labels)
        if self.undecided:
            self._settle(fetched)
        if self.budget.spent(fetched.payload_bytes) and self.level.get() == "full":
            self.level.lower("preview")
            self._warn("The capture budget was reached: later outputs are kept as previews.")
        if self.request.progress is not None:
            self.request.progress(Progress(self.done, self.total, self.failed))
        if failed and self.request.strict:
            raise RecordingError(
                fetched.failures[0],
                hint="See it with: audit sql 'FROM failures'. Without --strict the run would have gone on.",
            )

    # -- the model -------------------------------------------------------------------------------

    def _forward(self, fetched: Batch) -> torch.Tensor:
        assert self.assembly.model is not None
        inputs = fetched.inputs
        if isinstance(inputs, list) and all(isinstance(value, torch.Tensor) for value in inputs):
            # Samples of different shapes cannot share a batch: each goes alone.
            return torch.cat([self._call(value[None], 1) for value in inputs])
        return self._call(inputs, len(fetched.ok))

    def _call(self, inputs: Any, count: int) -> torch.Tensor:
        model = self.assembly.model
        assert model is not None
        moved = inputs.to(self.request.device, non_blocking=True) if isinstance(inputs, torch.Tensor) else inputs
        try:
            output = model.module(moved)
        except AuditError:
            raise
        except Exception as error:
            shape = tuple(inputs.shape) if isinstance(inputs, torch.Tensor) else type(inputs).__name__
            raise ModelError(
                f"The model {self.request.model} could not be run on a batch of {shape}: "
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                hint="Check that the pipeline makes what this model expects.",
            ) from error
        return logits_of(output, batch=count).float().cpu()


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """The loader's iterator; a pipeline that cannot be sent to its workers is named as such."""
    try:
        return iter(loader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error).lower():
            raise
        raise PipelineError(
            f"The pipeline cannot be sent to worker processes that are not forked: {error}",
            hint="Name functions and classes instead of using lambdas, or give --start-method fork or --workers 0.",
        ) from error


def _predictions(
    fetched: Batch, logits: torch.Tensor, digests: list[str], classes: list[str] | None, run_id: str, number: int
) -> Any:
    count = len(fetched.ok)
    columns = prediction_columns(logits, fetched.labels, classes)
    return rows.table_of(
        "predictions",
        columns
        | {
            "run_id": [run_id] * count,
            "epoch": [0] * count,
            "index": [fetched.indices[place] for place in fetched.ok],
            "visit": [0] * count,
            "input_digest": digests,
            "batch": [number] * count,
            "position": fetched.ok,
            "step": [number] * count,
        },
    )


def _input_digests(fetched: Batch) -> list[str]:
    """The digest of what the model was given, sample by sample: taken from the batch, so that a mix-up shows."""
    inputs = fetched.inputs
    if isinstance(inputs, torch.Tensor) and fetched.last_kind == "array":
        return [values.digest(value) for value in inputs.numpy()]
    if isinstance(inputs, (torch.Tensor, list, tuple)) and len(inputs) == len(fetched.ok):
        return [values.digest(value) for value in inputs]
    return [values.digest(inputs)] * len(fetched.ok)
