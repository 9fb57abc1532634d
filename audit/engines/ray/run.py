"""Ray Data on a cluster: its tasks record, a pool of its actors holds the model, each writes parts, the driver commits.

Seeds are per sample, and batches are cut before they are handed out, so that the rows are those of the local engine
whichever worker makes them. What Ray tries again is written again under another name; the driver adopts each batch once, and
asks again for every batch that it has not received. See docs/adr/0004-ray.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from audit.engines.executor import PROBED_SAMPLES, BatchCounts, RunExecutor
from audit.engines.plan import Plan, begin, resume_plan
from audit.engines.ray import work as ray_work
from audit.engines.ray.cluster import Cluster, ClusterCapacity, connect_cluster
from audit.engines.ray.stage_number_actor import ask_numbering, start_numbering
from audit.engines.ray.work import Job, Share, TaskResult
from audit.engines.request import RunRequest
from audit.errors import AuditError
from audit.recorders.capture import Decision, decide
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.seeded_dataset import RecordedDataset
from audit.recorders.visit.stage_register import stage_rows
from audit.records import Level, Run, Stage, Status
from audit.store import wire as rows

#: The most samples of one task: what is lost with a worker, and what one part holds.
_TASK_SAMPLES = 4096
_TASKS_PER_CORE = 4
_TASK_SECONDS = 60.0
_GPU_BATCHES = 16
#: When the first so many samples have all killed their workers, it is not the samples that do it.
_HOPELESS = 6


def record_on_ray(request: RunRequest) -> Run:
    """Record a new run; gives its row as committed."""
    with connect_cluster(request.address) as cluster:
        capacity = cluster.capacity()
        # Before there is a run: what does not fit leaves none behind.
        actors = capacity.actors(request.actors, request.gpus_per_actor)
        return RayRun(begin(request), cluster, capacity, actors).execute()


def resume_on_ray(store: str, reference: str | None, **changes: Any) -> Run:
    """Continue an interrupted run, whichever engine began it."""
    with connect_cluster(changes.get("address")) as cluster:
        capacity = cluster.capacity()
        actors = capacity.actors(changes.get("actors"), changes.get("gpus_per_actor") or 0)
        return RayRun(resume_plan(store, reference, **changes), cluster, capacity, actors).execute()


class RayRun(RunExecutor):
    """One run under way on a cluster."""

    def __init__(self, plan: Plan, cluster: Cluster, capacity: ClusterCapacity, actors: int) -> None:
        super().__init__(plan)
        self.cluster = cluster
        self.capacity = capacity
        self.actors = actors
        self.numbers = plan.numbers()
        self.seconds_each = 0.0
        self.numbering = start_numbering(self.writer.run.run_id, plan.stages)
        #: The ordinals of stages that are in the store.
        self.stored_stages = {stage.stage for stage in plan.stages}
        size = self.request.batch_size
        #: Where the batches begin that have not been recorded, by their number.
        starts = range(0, len(plan.indices), size)
        self.left = {number: start for start, number in zip(starts, self.numbers, strict=False)}

    def end(self, status: Status) -> Run:
        # Workers of our own cluster must have stopped before their leftovers are deleted.
        self.cluster.close()
        return self.writer.finish(status, sweep=True)

    def record(self) -> None:
        decision = self._decide()
        self.writer.run.capture = str(decision)
        job = self._job(decision.level)
        per_task = self._per_task()
        while self.left:
            if self._round(job, per_task):
                job = replace(job, level="preview")
            elif per_task > 1:
                # Something never arrived: once more, in the smallest pieces that leave batches what they are.
                per_task = 1
            else:
                self._record_one_by_one(job)
        self._write_pipeline()

    # -- what is to be done ----------------------------------------------------------------------

    def _job(self, level: Level) -> Job:
        assembly, request = self.assembly, self.request
        observed = {"observed_calls": bool(self.writer.run.recipe.get("observed_calls"))}
        return Job(
            request.recipe() | observed,
            self.writer.location,
            self.writer.run.run_id,
            level,
            assembly.classes,
            request.capture_where,
            "cuda" if request.gpus_per_actor and request.device == "cpu" else request.device,
            {
                "dataset": assembly.dataset_digest(),
                "pipeline": assembly.pipeline_digest(),
                "model": assembly.model.digest if assembly.model else None,
            },
            {file.module: file.sha256 for file in assembly.code},
            self.assembly.pipeline.stages,
            self.numbering,
            self.share,
        )

    def _per_task(self) -> int:
        """Return the number of batches of one task: several tasks for every core, and none of more than a minute or so."""
        tasks = self.capacity.cores * _TASKS_PER_CORE
        samples = min(_TASK_SAMPLES, _TASK_SECONDS / self.seconds_each if self.seconds_each else _TASK_SAMPLES)
        most = max(1, int(samples // self.request.batch_size))
        return min(most, max(1, -(-len(self.left) // tasks)))

    def _shares(self) -> Iterator[Share]:
        size = self.request.batch_size
        for number, start in self.left.items():
            yield number, [int(index) for index in self.plan.indices[start : start + size]]

    def _decide(self) -> Decision:
        """Try a few samples in a worker: what keeping everything would take, and how long one takes."""
        import ray

        indices = self.plan.indices
        if not len(indices):
            return decide("digest", None, 0, 0)
        places = sorted({int(p) for p in np.linspace(0, len(indices) - 1, PROBED_SAMPLES)})
        probe = ray.remote(max_retries=0, num_cpus=1)(ray_work.probe)
        chosen = [int(indices[place]) for place in places]
        found: ray_work.ProbeResult | AuditError
        try:
            found = ray.get(probe.remote(chosen, self._job("full")))
        except ray.exceptions.WorkerCrashedError:
            found = ray_work.ProbeResult(0, 0, 0.0)
        if isinstance(found, AuditError):
            raise found
        self.seconds_each = found.seconds / len(chosen)
        return self.decide_level(found.payload_bytes, found.ok)

    # -- rounds ----------------------------------------------------------------------------------

    def _round(self, job: Job, per_task: int) -> bool:
        """Ask for everything that is left and adopt what comes; True when it was ended because the budget was spent."""
        shares = list(self._shares())
        tasks = [shares[start : start + per_task] for start in range(0, len(shares), per_task)]
        with _our_context(), contextlib.closing(self._results(job, tasks)) as results:
            for result in results:
                if self._take_result(result) and job.level == "full":
                    self.warn("The capture budget was reached: later outputs are kept as previews.")
                    return True
        return False

    def _write_pipeline(self) -> None:
        """Write the rows of the pipeline's stages, though no batch has come."""
        if not self.stored_stages:
            listed = [(stage.stage, stage) for stage in self.assembly.pipeline.stages]
            numbers = ask_numbering(self.numbering)(listed)
            self._write_stages({numbers[own]: stage for own, stage in listed})

    def _write_stages(self, stages: Mapping[int, Stage]) -> None:
        """Write the rows of stages that a worker met, once."""
        fresh = {number: stages[number] for number in sorted(stages.keys() - self.stored_stages)}
        if fresh:
            self.stored_stages |= fresh.keys()
            self.writer.append({"stages": stage_rows(self.writer.run.run_id, fresh)})

    def _results(
        self, job: Job, tasks: Sequence[Sequence[Share]]
    ) -> Generator[TaskResult | AuditError | None, None, None]:
        import ray
        from ray.data.exceptions import ExecutionTimeoutError

        items = [{"value": ray_work.pack(task)["value"][0]} for task in tasks]
        made = ray.data.from_items(items, override_num_blocks=len(items))
        options: dict[str, Any] = {"batch_size": None, "batch_format": "numpy"}
        task = {"fn_kwargs": {"job": job}, "num_cpus": 1, **options}
        if self.assembly.model is None:
            made = made.map_batches(ray_work.record_and_write, **task)
        else:
            gpus = self.request.gpus_per_actor
            # With GPUs, Ray must be given how many rows, which are batches of ours, a model is given at once.
            given = {"batch_size": min(len(tasks[0]), _GPU_BATCHES), "num_gpus": gpus} if gpus else {}
            made = made.map_batches(ray_work.record, **task).map_batches(
                ray_work.Predictor,
                fn_constructor_args=(job,),
                compute=ray.data.ActorPoolStrategy(size=min(self.actors, len(tasks))),
                # Cores are the recorders': a model that had to wait for one, once a node is lost, would wait without end.
                num_cpus=0,
                **options | given,
            )
        try:
            for columns in made.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
                yield from ray_work.unpack(columns)
        except ExecutionTimeoutError:
            # A worker that dies at the same batch every time, or a machine that does not answer.
            return
        except ray.exceptions.RayError as error:
            raise AuditError(
                f"Ray stopped with an error: {' '.join(str(error).split())[:300]}",
                hint=f"What was committed is safe; continue with: audit run --resume {self.writer.run.run_id}",
            ) from error

    def _take_result(self, result: TaskResult | AuditError | None) -> bool:
        """Take a task's parts into the run, unless one of its batches is there already; True when the budget is spent."""
        if isinstance(result, AuditError):
            raise result
        if result is None or not all(number in self.left for number in result.numbers):
            # Given up, or another attempt at the same work; what it holds besides is asked for in the next round.
            return False
        self._write_stages(result.stages)
        self.writer.adopt(result.block.parts, result.block.tally)
        for number in result.numbers:
            del self.left[number]
        return self.count(result.counts)

    def _record_one_by_one(self, job: Job) -> None:
        """Record each sample in a task of its own, where every attempt killed its worker; one that does so again is a failed row."""
        import ray

        task = ray.remote(max_retries=ray_work.RETRIES, num_cpus=1, num_gpus=self.request.gpus_per_actor)(
            ray_work.record_here
        )
        for number, indices in list(self._shares()):
            del self.left[number]
            for index in indices:
                self.left[number] = index
                try:
                    self._take_result(ray.get(task.remote([(number, [index])], job)))
                except ray.exceptions.WorkerCrashedError:
                    self._record_death(number, index)
                number = next(self.numbers)

    def _record_death(self, number: int, index: int) -> None:
        recorded = RecordedDataset(
            self.assembly.dataset,
            self.assembly.pipeline,
            level=CaptureLevel("digest"),
            seed=self.request.seed,
            want_inputs=False,
        )
        fetched = recorded.batch_of_lost_sample(index)
        stamp = rows.BatchStamp(self.writer.run.run_id, epoch=0, batch=number, visits=[0])
        self.writer.append({}, fetched.stamp_rows(stamp), fetched.row_bytes)
        del self.left[number]
        self.count(BatchCounts.of(fetched))
        if self.done == self.failed >= _HOPELESS:
            raise AuditError(
                f"Every worker of Ray died, at each of the first {self.failed} samples: the cause is not a sample, "
                "but the pipeline, the model, or a library that they load.",
                hint="See it with: --engine local --workers 0 --limit 1. Ray's own logs say whether memory ran out.",
            )


#: Ray Data without its own bars and messages. A block that is lost is not an error, as it is asked for again; and so is all
#: that is left when nothing has come for so long.
_CONTEXT = {
    "enable_progress_bars": False,
    "print_on_execution_start": False,
    "max_errored_blocks": -1,
    "execution_no_progress_timeout_s": 1800,
}


@contextlib.contextmanager
def _our_context() -> Iterator[None]:
    from ray.data import DataContext

    context = DataContext.get_current()
    before = {name: getattr(context, name) for name in _CONTEXT}
    handlers = [(h, h.level) for h in logging.getLogger("ray.data").handlers if isinstance(h, logging.StreamHandler)]
    try:
        for name, value in _CONTEXT.items():
            setattr(context, name, value)
        for handler, _ in handlers:
            handler.setLevel(logging.CRITICAL)
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        for handler, level in handlers:
            handler.setLevel(level)
