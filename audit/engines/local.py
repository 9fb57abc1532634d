"""DataLoader workers on this machine: samples are recorded in the workers, the model runs here.

A sample that kills its worker is a failed row like any other (see resilient_loader.py).
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import torch

from audit.engines.executor import PROBED_SAMPLES, BatchCounts, RunExecutor
from audit.engines.forward import ONLY_PIPELINE, Forward, RowAppender, input_digests
from audit.engines.model_output import BatchOutput
from audit.engines.plan import Plan, begin, resume_plan
from audit.engines.request import RunRequest
from audit.engines.resilient_loader import ResilientLoader
from audit.engines.watchdog import WatchOptions
from audit.recorders.calls.monitor import MONITOR
from audit.recorders.capture import Decision, decide
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.envelope import RecordedBatch
from audit.recorders.lent_memory import forget_received
from audit.recorders.seeded_dataset import RecordedDataset
from audit.recorders.visit.stage_register import StageRegister
from audit.records import Run, Status
from audit.store.write.background import BackgroundWriter
from audit.store.write.writer import RunWriter


def record_locally(request: RunRequest) -> Run:
    """Record a new run; gives its row as committed."""
    return LocalRun(begin(request)).execute()


def resume_locally(store: str, reference: str | None, **changes: Any) -> Run:
    """Continue an interrupted run. It then has the same rows as a run that was not interrupted."""
    return LocalRun(resume_plan(store, reference, **changes)).execute()


class LocalRun(RunExecutor):
    """One run under way on this machine."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.indices = plan.indices
        self.numbers = plan.numbers()
        self.undecided = False
        #: Samples that took too long, with the stage and the reason.
        self.given_up: dict[int, tuple[str, str]] = {}
        self.background: BackgroundWriter | None = None
        model = self.assembly.model
        request = self.request
        self.forward = (
            Forward(
                model,
                request.model,
                request.device,
                request.single_output,
                self.assembly.classes,
                request.heads,
                self.share,
            )
            if model
            else None
        )
        if self.forward is not None:
            self.forward.calls.total = self.total
        self.stages = StageRegister(self.writer.run.run_id)
        self.stages.add(ONLY_PIPELINE, self.assembly.pipeline)
        if plan.stages:
            self.stages.restore(plan.stages)
        self.rows = RowAppender(self.writer.run.run_id, plan.selection, self.stages, self.forward)

    def end(self, status: Status) -> Run:
        MONITOR.release()
        self._submit_stages()
        if self.background is not None:
            try:
                return self.background.finish(status)
            finally:
                forget_received()
        return self.writer.finish(status)

    def record(self) -> None:
        decision = self._decide()
        self.level = CaptureLevel(decision.level)
        self.writer.run.capture = str(decision)
        # Closed at once, also if a batch cannot be taken: until then the signal handlers of this loop stay.
        with closing(self._loader(self.level).batches(self.indices, self.request.batch_size)) as batches:
            first = next(batches, None)
            # The workers are forked by now: if a thread holds a lock during a fork, the child can never take that lock.
            self.background = BackgroundWriter(self.writer)
            with torch.inference_mode():
                if first is not None:
                    self._take(first)
                for fetched in batches:
                    self._take(fetched)

    def _submit_stages(self) -> None:
        """Write the rows of `stages`, also if there was no batch."""

        def write(writer: RunWriter) -> None:
            self.stages.register_rest()
            if (stages := self.stages.take_rows()) is not None:
                writer.append({"stages": stages})

        if self.background is None:
            write(self.writer)
        elif self.background.error is None:
            self.background.submit(write)

    def _loader(self, level: CaptureLevel) -> ResilientLoader:
        recorded = RecordedDataset(
            self.assembly.dataset,
            self.assembly.pipeline,
            level=level,
            seed=self.request.seed,
            want_inputs=self.assembly.model is not None,
            code=self.assembly.code,
            given_up=self.given_up,
            head_targets=self.request.head_targets,
        )
        return ResilientLoader(
            recorded,
            lost=recorded.batch_of_lost_sample,
            workers=self.request.workers,
            start_method=self.request.start_method,
            pin_memory=self.assembly.model is not None and self.request.device.startswith("cuda"),
            watch=self._watch(recorded),
            before_workers=recorded.prepare_workers,
        )

    def _watch(self, recorded: RecordedDataset) -> WatchOptions | None:
        """Return what watches for samples that hang; None where the user said to wait without end."""
        limit = self.request.stall_timeout
        if not limit:
            return None

        def report(doing: str) -> None:
            self.request.report_progress(doing, self.done, self.total, self.failed)

        def note(text: str) -> None:
            self.warn(text)
            self.request.report_note(text)

        return WatchOptions(recorded.activity, limit, report, note)

    def _decide(self) -> Decision:
        """Estimate from a few samples what keeping everything would take.

        These samples are made in a separate worker: one of them may crash it, and a pipeline that keeps state must not see
        a sample twice. Without workers the first batch itself shows it (`_settle`).
        """
        asked = self.request.capture
        if asked != "auto" or not len(self.indices):
            return decide(asked if asked != "auto" else "digest", None, 0, 0)
        loader = self._loader(CaptureLevel("full"))
        if loader.worker_count(1) == 0:
            self.undecided = True
            return Decision("full", "auto")
        places = sorted({int(p) for p in np.linspace(0, len(self.indices) - 1, PROBED_SAMPLES)})
        probed = loader.load_one_batch([int(self.indices[place]) for place in places])
        return (
            self.decide_level(probed.payload_bytes, len(probed.ok)) if probed is not None else self.decide_level(0, 0)
        )

    def _settle(self, fetched: RecordedBatch) -> None:
        """Decide about the rest of the run by the bytes of the first batch, which was kept in full."""
        self.undecided = False
        decision = self.decide_level(fetched.payload_bytes, len(fetched.ok))
        self.level.lower(decision.level)
        self.writer.run.capture = str(decision)

    def _take(self, fetched: RecordedBatch) -> None:
        """Run the model on a batch and hand all of it to the writer."""
        assert self.background is not None
        if self.background.error is not None:
            raise self.background.error
        output = self.forward(fetched, self.level.get()) if self.forward is not None and fetched.ok else None
        digests = input_digests(fetched) if output is not None and output.graded else []
        number, made = next(self.numbers), self.rows

        def write(writer: RunWriter) -> None:
            made.append_to(writer, fetched, number, output, digests)

        self.background.submit(write, fetched.row_bytes)
        self._count(fetched, output)

    def _count(self, fetched: RecordedBatch, output: BatchOutput | None) -> None:
        if self.undecided:
            self._settle(fetched)
        counts = BatchCounts.of(fetched, output)
        if self.count(counts) and self.level.get() == "full":
            self.level.lower("preview")
            self.warn("The capture budget was reached: later outputs are kept as previews.")
