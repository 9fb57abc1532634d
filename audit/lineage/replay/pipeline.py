"""Visits made again, from the source and the recorded random state: the part of a replay that runs in workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch.utils.data import DataLoader, IterableDataset

from audit import values
from audit.engines.assemble import assemble
from audit.engines.request import RunRequest
from audit.engines.workers import defer_worker_death, is_worker_death, silence_broken_pipe
from audit.errors import DatasetError, PipelineError, UsageError
from audit.models.presets import expand_preset
from audit.recorders.loop.fetching import fetches_batches
from audit.recorders.randomness.seeding import Seeder
from audit.recorders.randomness.states import State, global_sources
from audit.recorders.randomness.watch import BATCH, Restorer, own_worker
from audit.recorders.seeded_dataset import Instrument, as_is
from audit.recorders.stages.discover import Pipeline, find_pipeline
from audit.recorders.visit.batch_visits import BatchFetch, make_batch
from audit.recorders.visit.items import parts_of, split_item
from audit.recorders.visit.origin import origin_of
from audit.recorders.visit.visit import Visit
from audit.records import Run, Stage
from audit.sources.builder import builders_of, built
from audit.sources.trust import require_trust

_MOST_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Task:
    """One visit to make again."""

    epoch: int
    index: int
    visit: int
    #: Generator name to its state before the visit; empty for a run that seeds every sample.
    states: dict[str, State] = field(default_factory=dict)
    #: Where the sample is in the dataset now.
    place: int = 0
    #: It killed its worker when it was recorded, and so is made in one of its own.
    alone: bool = False


@dataclass(slots=True)
class ReplayedVisit:
    """What a visit came to this time."""

    task: Task
    digests: dict[str, str | None]
    source_digest: str | None
    failed_stage: str | None
    error: str | None
    #: Stage path to the exact output, when it was asked for.
    exact: dict[str, tuple[str, values.Encoded]] = field(default_factory=dict)
    final: Any = None
    #: Generators that were recorded and are nowhere to be found.
    missing: list[str] = field(default_factory=list)
    #: Stage path to the description of a stage that was found by its call.
    found: dict[str, Stage] = field(default_factory=dict)


class ReplayPipeline:
    """A dataset and its stages, ready to make visits again in any process."""

    def __init__(
        self, dataset: Any, pipeline: Pipeline, seed: int | None, digests: int = values.DIGEST_VERSION
    ) -> None:
        #: The version of the recipe that the recorded digests follow.
        self.digests = digests
        self.dataset = dataset
        self.pipeline = pipeline
        self.seeded = seed is not None
        self._seeder = Seeder(dataset, seed) if seed is not None else None
        self._instrument = Instrument(pipeline)
        self._restorer: Restorer | None = None
        self._sources: _Sources | None = None
        #: In a loader its samples are made by `__getitems__`, and so they are here.
        self._fetches_batches = not self.seeded and fetches_batches(dataset)
        self.level: Literal["verify", "full"] = "verify"
        self.keep_final = False

    @property
    def stages(self) -> list[Stage]:
        """The stages as they are described now."""
        return self.pipeline.stages

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_restorer": None, "_sources": None}

    def __len__(self) -> int:
        return len(self.dataset)

    def place_of(self, index: int, source: str | None, root: str | None) -> int | None:
        """Where a recorded sample is now: a file's own place, though others were added or removed; None when it is gone."""
        if root is None or source is None:
            return index if 0 <= index < len(self) else None
        if 0 <= index < len(self):
            origin = origin_of(self.dataset, index)
            if (origin.root, origin.source) == (root, source):
                return index
            if origin.root is None:
                # The dataset does not tell its files: this one was seen while the sample was made.
                return index
        if self._sources is None:
            self._sources = _Sources(self.dataset, len(self))
        return self._sources.place_of(index, source, root)

    def __getitems__(self, tasks: Sequence[Task]) -> list[ReplayedVisit]:
        """Several visits; called by a DataLoader in a worker."""
        return [self.again(task) for task in tasks]

    def again(self, task: Task) -> ReplayedVisit:
        """Make one visit again, with the random state that it had."""
        with own_worker(), values.following_digests(self.digests):
            missing = self._restore(task)
            outcome = self._make(task)
            if self._seeder.appeared() if self._seeder is not None else missing:
                # Generators that are made when they are first needed are there now: once more, with their states.
                outcome.missing = self._restore(task)
                if len(outcome.missing) < len(missing) or self._seeder is not None:
                    outcome = self._make(task, outcome.missing)
        return outcome

    def _restore(self, task: Task) -> list[str]:
        if self._seeder is not None:
            self._seeder(task.epoch, task.index)
            return []
        if self._restorer is None:
            self._restorer = Restorer(self.dataset)
        return self._restorer.restore(task.states)

    def _make(self, task: Task, missing: list[str] | None = None) -> ReplayedVisit:
        final: Any = None
        if self._fetches_batches or BATCH in task.states:
            visit, final = self._from_batch(task)
            return self._outcome(task, visit, final, missing)
        with self._instrument.watching(self.level, refuse_none=self.seeded) as visit:
            try:
                final = self._item(visit, self.dataset[task.place])
            except (Exception, SystemExit) as error:
                # An exit too: escaping, it would end the replay with whatever code the stage chose.
                visit.fail("dataset" if visit.rows else "load", error)
        return self._outcome(task, visit, final, missing)

    def _from_batch(self, task: Task) -> tuple[Visit, Any]:
        """The sample out of its whole batch, where it was recorded that it needs one; else out of a batch of its own."""
        fetch, place = BatchFetch("__getitems__", [task.place]), 0
        if (state := task.states.get(BATCH)) is not None:
            fetch, place = BatchFetch.recorded(state)
            fetch = replace(fetch, indices=[*fetch.indices[:place], task.place, *fetch.indices[place + 1 :]])
        made = make_batch(self.dataset, fetch, self._instrument, self.level)
        visit = made.visits[place] or Visit(self.pipeline, self.level)
        final = None
        try:
            if made.error is not None:
                raise made.error
            final = self._item(visit, fetch.item(made.made, place))
        except Exception as error:
            visit.fail("dataset" if visit.rows else "load", error)
        visit.end()
        return visit, final

    def _outcome(self, task: Task, visit: Visit, final: Any, missing: list[str] | None) -> ReplayedVisit:
        rows = {visit.path_of(ordinal): row for ordinal, row in visit.rows.items()}
        return ReplayedVisit(
            task,
            {path: row.facts.digest for path, row in rows.items()},
            visit.source_digest,
            visit.failed_stage,
            visit.error,
            {path: row.full for path, row in rows.items() if row.full is not None},
            final if self.keep_final and visit.error is None else None,
            missing or [],
            {stage.path: stage for stage in self._instrument.describe(visit).values()},
        )

    def _item(self, visit: Visit, item: Any) -> Any:
        """What the model is given; noted as recording notes it."""
        final, label = split_item(item)
        visit.settle_calls(final, label)
        if self.seeded and final is None:
            visit.fail(visit.last_name or "dataset", TypeError("the pipeline returned None instead of a value"))
        elif 0 not in visit.rows:
            visit.loaded(final)
        elif not self.seeded and not any(visit.holds(part) for part in parts_of(item)) and not visit.holds_equal(final):
            visit.noted("item", final, 0)
        return final


class _Sources:
    """Where each file is in a dataset now. Joined folders may have files of one name, which their roots tell apart."""

    def __init__(self, dataset: Any, count: int) -> None:
        origins = [origin_of(dataset, place) for place in range(count)]
        self._roots = {origin.root for origin in origins}
        self._files = {(origin.root, origin.source): place for place, origin in reversed([*enumerate(origins)])}
        self._names: dict[str, list[int]] = {}
        for place, origin in enumerate(origins):
            self._names.setdefault(origin.source, []).append(place)

    def place_of(self, index: int, source: str, root: str) -> int | None:
        """By its path; by its name alone where the whole folder was moved, and the place tells files of one name apart."""
        if root in self._roots:
            return self._files.get((root, source))
        places = self._names.get(source, [])
        return index if index in places else places[0] if places else None


def rebuild_pipeline(
    run: Run,
    store: str,
    dataset: Any = None,
    named: Sequence[str] = (),
    split: str | None = None,
    *,
    trust: bool = False,
) -> ReplayPipeline:
    """The run's pipeline again: from the dataset that is given, else from the run's recipe or the split's builder.

    Of a run made by `audit run`, a dataset that is named stands in for the one in its recipe, which may have moved.
    `named` are stages that were recorded under the name of an attribute: `run.dataset(ds, stages=["tokenise"])`.
    Code that the recipe names runs only if this machine recorded it, or with `trust`; else CodeNotTrusted.
    """
    if dataset is None and (builders := builders_of(run.recipe)):
        require_trust(run, trust, ["builders"])
        dataset = built(builders, split)
    if dataset is not None and not isinstance(dataset, str):
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise UsageError(
                f"A {type(dataset).__name__} gives its samples only in order, so that single ones cannot be made again.",
                hint="Give a dataset with __getitem__; recorded stages of an iterable one are in the store (--capture full).",
            )
        seed = run.seed if run.recipe.get("kind") == "run" else None
        stages = [name for name in named if callable(getattr(dataset, name, None))]
        # A run that was recorded before stages were found by their calls has none of them, and another `load`.
        found = find_pipeline(
            dataset, expand=expand_preset, stages=stages, observe_calls=bool(run.recipe.get("observed_calls"))
        )
        return ReplayPipeline(dataset, found, seed, run.digest_version)
    if run.recipe.get("kind") != "run":
        raise UsageError(
            f"The run {run.run_id} was recorded in a loop of its own, and does not say how its dataset is built.",
            hint="Give the dataset: store.replay(run, dataset=…), or audit replay --dataset FILE.py:function; "
            "recorded with run.loader(…, builder=…), a run knows it by itself.",
        )
    # Without a pipeline file the stages are the preset of the model's architecture.
    with_model = run.recipe.get("pipeline") is None
    using = {"pipeline", *(() if dataset else ("dataset",)), *(("model", "arch") if with_model else ())}
    vouched = require_trust(run, trust, using)
    changes = {"dataset": dataset} if dataset else {}
    request = RunRequest.from_recipe(run.recipe, store, trust=vouched, **changes)
    try:
        assembly = assemble(request, with_model=with_model)
    except (DatasetError, PipelineError) as error:
        error.hint = (
            f"The run {run.run_id} was recorded with it. Put it back; "
            "for a dataset that has moved: audit replay --dataset DATA, or store.replay(run, dataset='DATA')."
        )
        raise
    return ReplayPipeline(assembly.dataset, assembly.pipeline, request.seed, run.digest_version)


def replay_all(
    what: ReplayPipeline, tasks: Sequence[Task], *, workers: int | None, batch_size: int = 32
) -> Iterator[ReplayedVisit]:
    """Every task's outcome, over worker processes; one that kills its worker is an outcome too."""
    together = [task for task in tasks if not task.alone]
    batches = [together[start : start + batch_size] for start in range(0, len(together), batch_size)]
    if workers is None:
        workers = min(os.cpu_count() or 1, _MOST_WORKERS, len(batches)) if len(together) > 64 else 0
    before = [source.take() for source in global_sources()]
    try:
        while batches:
            received = 0
            try:
                for outcomes in _loader(what, batches, workers):
                    received += 1
                    with defer_worker_death():
                        yield from outcomes
                break
            except Exception as error:
                if not is_worker_death(error):
                    raise
                for task in batches[received]:
                    yield _alone(what, task)
                batches = batches[received + 1 :]
        for task in tasks:
            if task.alone:
                yield _alone(what, task)
    finally:
        # A replay in this process has set the global generators: the caller's own stream goes on as it was.
        for source, state in zip(global_sources(), before, strict=True):
            source.put(state)


def _loader(what: ReplayPipeline, batches: list[list[Task]], workers: int) -> DataLoader[Any]:
    return DataLoader(
        what,  # type: ignore[arg-type]
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=as_is,
        worker_init_fn=silence_broken_pipe,
    )


def _alone(what: ReplayPipeline, task: Task) -> ReplayedVisit:
    try:
        (outcome,) = next(iter(_loader(what, [[task]], 1)))
        made: ReplayedVisit = outcome
        return made
    except Exception as error:
        if not is_worker_death(error):
            raise
        visit = Visit(what.pipeline, "digest")
        # In the words of the recording, so that a sample that kills its worker each time is the same each time.
        visit.fail("worker", RuntimeError("the worker process was killed or crashed at this sample, twice"))
        return ReplayedVisit(task, {}, None, visit.failed_stage, visit.error)
