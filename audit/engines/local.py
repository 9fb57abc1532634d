"""DataLoader workers on this machine: samples are recorded in the workers, the model runs here.

A worker that dies takes its batch with it, not the run: the loader is started again where it stopped, and a
sample that kills its worker twice is a failed row like any other.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from audit.engines.executor import PROBED, Recorded, RunExecutor
from audit.engines.forward import Forward, Rows, input_digests, labels_outside
from audit.engines.plan import Batches, Plan, begin, resume_plan
from audit.engines.request import RunRequest
from audit.engines.workers import defer_worker_death, is_worker_death, silence_broken_pipe
from audit.errors import PipelineError
from audit.recorders.capture import Decision, decide
from audit.recorders.randomness.seeding import Seeder
from audit.recorders.seeded_dataset import Batch, CaptureLevel, RecordedDataset, as_is
from audit.records import Run, Status
from audit.store.write.background import BackgroundWriter
from audit.store.write.writer import RunWriter

_MOST_WORKERS = 8


def run(request: RunRequest) -> Run:
    """Record a new run; gives its row as committed."""
    return LocalRun(begin(request)).go()


def resume(store: str, reference: str | None, **changes: Any) -> Run:
    """Continue an interrupted run to exactly the rows that an undisturbed one has."""
    return LocalRun(resume_plan(store, reference, **changes)).go()


class LocalRun(RunExecutor):
    """One run under way on this machine."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.indices = plan.indices
        self.numbers = plan.numbers()
        self.undecided = False
        self.background: BackgroundWriter | None = None
        model = self.assembly.model
        request = self.request
        self.forward = Forward(model, request.model, request.device, request.output) if model else None
        self.rows = Rows(self.writer.run.run_id, self.assembly.classes, plan.selection, self.forward)

    def end(self, status: Status) -> Run:
        if self.background is not None:
            return self.background.finish(status)
        return self.writer.finish(status)

    def record(self) -> None:
        decision = self._decide()
        self.level = CaptureLevel(decision.level)
        self.writer.run.capture = str(decision)
        self.recorded = self._recorded_dataset(self.level)
        batches = self._batches()
        first = next(batches, None)
        # The workers are forked by now: a thread that lives while a process forks can hold a lock in it for ever.
        self.background = BackgroundWriter(self.writer)
        if (stages := self.stages_table()) is not None:
            self.background.submit(lambda writer: writer.append({"stages": stages}))
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
            code=self.assembly.code,
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
        places = sorted({int(p) for p in np.linspace(0, len(self.indices) - 1, PROBED)})
        batches = Batches([int(self.indices[place]) for place in places], PROBED)
        try:
            fetched = next(_started(self._loader(self._recorded_dataset(CaptureLevel("full")), batches)))
        except Exception as error:
            if not is_worker_death(error):
                raise
            return self.decided(0, 0)
        return self.decided(fetched.payload_bytes, len(fetched.ok))

    def _settle(self, fetched: Batch) -> None:
        """The first batch was kept in full; what it took decides about the rest."""
        self.undecided = False
        decision = self.decided(fetched.payload_bytes, len(fetched.ok))
        self.level.lower(decision.level)
        self.writer.run.capture = str(decision)

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
                    with defer_worker_death():
                        yield fetched
                return
            except Exception as error:
                if not is_worker_death(error):
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
            worker_init_fn=silence_broken_pipe,
            multiprocessing_context=self.request.start_method if workers else None,
            pin_memory=self.request.device.startswith("cuda"),
        )

    def _alone(self, index: int) -> Batch:
        try:
            alone: Batch = next(_started(self._loader(self.recorded, Batches([index], 1))))
            return alone
        except Exception as error:
            if not is_worker_death(error):
                raise
            return self.recorded.died(index)

    def _take(self, fetched: Batch) -> None:
        """Run the model on a batch and hand all of it to the writer."""
        assert self.background is not None
        if self.background.error is not None:
            raise self.background.error
        logits = self._predict(fetched)
        digests = input_digests(fetched) if logits is not None else []
        number, made = next(self.numbers), self.rows

        def write(writer: RunWriter) -> None:
            writer.append(made.tables(fetched, number, logits, digests))

        self.background.submit(write, fetched.records.numel())
        self._count(fetched, logits)

    def _predict(self, fetched: Batch) -> torch.Tensor | None:
        if self.forward is None or not fetched.ok:
            return None
        is_first = self.forward.reader.meaning is None
        values = self.forward(fetched)
        meaning = self.forward.reader.meaning
        if is_first and meaning is not None:
            run = self.writer.run
            run.output, run.task, run.output_evidence = meaning.kind, meaning.task, meaning.evidence
            if meaning.doubt is not None:
                self.warn(f"The output of the model {self.forward.model_name}: {meaning.doubt}")
        return values

    def _count(self, fetched: Batch, logits: torch.Tensor | None) -> None:
        if self.undecided:
            self._settle(fetched)
        recorded = Recorded(
            len(fetched.indices),
            len(fetched.indices) - len(fetched.ok),
            fetched.payload_bytes,
            labels_outside(fetched, logits, self.forward) if logits is not None and self.forward is not None else 0,
            int(logits.shape[1]) if logits is not None else None,
            fetched.problems,
            fetched.failures,
        )
        if self.count(recorded) and self.level.get() == "full":
            self.level.lower("preview")
            self.warn("The capture budget was reached: later outputs are kept as previews.")


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
