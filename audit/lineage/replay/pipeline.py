"""Makes visits again from the source and the recorded random state: the part of a replay that runs in workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch.utils.data import IterableDataset

from audit import values
from audit.engines.assemble import assemble
from audit.engines.request import DEFAULT_STALL_TIMEOUT, RunRequest
from audit.engines.resilient_loader import ResilientLoader
from audit.engines.watchdog import WatchOptions
from audit.errors import DatasetError, PipelineError, UsageError
from audit.lineage.replay.repeated_calls import last_calls
from audit.models.presets import expand_preset
from audit.recorders.activity import Activity
from audit.recorders.calls.requested_items import makes_own_items
from audit.recorders.files.origin import origin_of
from audit.recorders.items.item_key import ItemKey, read_recorded_key
from audit.recorders.loop.recorded_dataset import fetches_batches
from audit.recorders.randomness.generator_states import GeneratorState, global_sources
from audit.recorders.randomness.visit_randomness import Randomness, RestoredRandomness, SeededRandomness, VisitRequest
from audit.recorders.randomness.watch import BATCH, restore_worker
from audit.recorders.shared_memory import to_send
from audit.recorders.stages.discover import Pipeline, find_pipeline
from audit.recorders.visit.batch_fetch import BatchFetch
from audit.recorders.visit.make import MadeVisit, VisitMaker, make_lost_visit, make_stalled_visit
from audit.records import Run, Stage
from audit.sources.builder import build_dataset, builders_of
from audit.sources.contact import allow_contact, allow_sources
from audit.sources.trust import require_trust

#: So many visits are made in this process: starting workers would take longer.
_FEW = 64
_NO_STATES: Mapping[str, GeneratorState] = {}


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """One visit to make again."""

    epoch: int
    index: int
    visit: int
    #: Generator name to its state before the visit; empty for a run that seeds every sample.
    states: dict[str, GeneratorState] = field(default_factory=dict)
    #: Where the sample is in the dataset now.
    place: int = 0
    #: It killed its worker when it was recorded, and so is made in one of its own.
    alone: bool = False


@dataclass(slots=True)
class ReplayedVisit:
    """The result of making a visit again."""

    task: ReplayTask
    digests: dict[str, str | None]
    source_digest: str | None
    failed_stage: str | None
    error: str | None
    #: Stage path to the exact output, when it was asked for.
    exact: dict[str, tuple[str, values.EncodedValue]] = field(default_factory=dict)
    final: Any = None
    #: Generators that were recorded and are nowhere to be found.
    missing: list[str] = field(default_factory=list)
    #: Stage path to the description of a stage that was found by its call.
    found: dict[str, Stage] = field(default_factory=dict)

    def with_last_calls(self, calls: Mapping[str, int], recorded: Collection[str]) -> ReplayedVisit:
        """Return the visit as a run has it that keeps one output for each stage (repeated_calls.py)."""
        if not calls:
            return self
        digests, exact = (last_calls(made, calls, recorded) for made in (self.digests, self.exact))
        return replace(self, digests=digests, exact=exact)  # type: ignore[arg-type]


class ReplayPipeline:
    """A dataset and its stages, ready to make visits again in any process."""

    def __init__(
        self,
        dataset: Any,
        pipeline: Pipeline,
        seed: int | None,
        digests: int = values.DIGEST_VERSION,
        *,
        notes_items: bool = True,
    ) -> None:
        #: The version of the recipe that the recorded digests follow.
        self.digests = digests
        self.dataset = dataset
        self.pipeline = pipeline
        self.seeded = seed is not None
        randomness: Randomness = RestoredRandomness(dataset) if seed is None else SeededRandomness(dataset, seed)
        self.activity = Activity()
        self._maker = VisitMaker(
            dataset,
            pipeline,
            randomness,
            require_value=self.seeded,
            notes_items=notes_items,
            activity=self.activity,
        )
        #: Samples that took too long, with the stage and the reason.
        self._given_up: dict[int, tuple[str, str]] = {}
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
        return self.__dict__ | {"_sources": None}

    def __len__(self) -> int:
        return len(self.dataset)

    def _length(self) -> int:
        """Return the length of the dataset; of one without a length, more than any index."""
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return sys.maxsize

    def place_of(
        self, index: int, source: str | None, root: str | None, states: Mapping[str, GeneratorState] = _NO_STATES
    ) -> int | None:
        """Return where a recorded sample is now: a file's own place, though others were added or removed; None when it is gone.

        One that was asked for by a key without a number has its recorded index, -1; one whose key could not be stored is gone.
        """
        key = read_recorded_key(states)
        if key is not None and (index < 0 or not key.is_stored):
            return index if key.is_stored else None
        if root is None or source is None:
            return index if 0 <= index < self._length() else None
        if 0 <= index < self._length():
            origin = origin_of(self.dataset, index)
            if (origin.root, origin.source) == (root, source):
                return index
            if origin.root is None:
                # The dataset does not tell its files: this one was seen while the sample was made.
                return index
            if makes_own_items(self.dataset) and self._reads(index, key, os.path.join(root, source)):
                # Its list names the files in another order than that of its items.
                return index
        if self._sources is None:
            self._sources = _Sources(self.dataset, len(self))
        return self._sources.place_of(index, source, root)

    def _reads(self, index: int, key: ItemKey | None, path: str) -> bool:
        """Return whether the dataset reads a file when it makes the sample with this index."""
        asked = index if key is None else key.at(index)
        made = self._maker.make(VisitRequest(index), lambda: self.dataset[asked], "verify")
        return any(os.path.abspath(opened) == path for opened in made.visit.opened)

    def __getitems__(self, tasks: Sequence[ReplayTask]) -> list[ReplayedVisit]:
        """Return several visits; called by a DataLoader in a worker."""
        made = [self.replay_visit(task) for task in tasks]
        return to_send(made, [visit.final for visit in made])

    def replay_visit(self, task: ReplayTask) -> ReplayedVisit:
        """Make one visit again, with the random state that it had."""
        if task.index in self._given_up:
            return self._outcome(task, MadeVisit(make_stalled_visit(self.pipeline, *self._given_up[task.index])))
        request = VisitRequest(task.index, task.epoch, task.states)
        asked = _key_of(task)
        with restore_worker(), values.following_digests(self.digests):
            if self._fetches_batches or BATCH in task.states:
                fetch, place = _batch_of(task)
                made = self._maker.make_batch(request, fetch, self.level).visits[place]
            else:
                made = self._maker.make(request, lambda: self.dataset[asked], self.level)
        return self._outcome(task, made)

    def give_up(self, index: int, stage: str, error: str) -> None:
        """Take a sample for one that hangs, instead of making it."""
        self._given_up[index] = stage, error

    def outcome_of_lost_visit(self, task: ReplayTask) -> list[ReplayedVisit]:
        """Return the outcome of a visit that killed its worker."""
        if task.index in self._given_up:
            return [self.replay_visit(task)]
        return [self._outcome(task, MadeVisit(make_lost_visit(self.pipeline)))]

    def _outcome(self, task: ReplayTask, made: MadeVisit) -> ReplayedVisit:
        visit = made.visit
        rows = {visit.path_of(ordinal): row for ordinal, row in visit.rows.items()}
        return ReplayedVisit(
            task,
            {path: row.facts.digest for path, row in rows.items()},
            # Of several files, the first that was read need not be the source.
            None if visit.has_further_sources else visit.source_digest,
            visit.failed_stage,
            visit.error,
            {path: row.full for path, row in rows.items() if row.full is not None},
            made.value if self.keep_final and visit.error is None else None,
            list(self._maker.randomness.missing),
            {stage.path: stage for stage in self._maker.describe_stages(visit).values()},
        )


def _batch_of(task: ReplayTask) -> tuple[BatchFetch, int]:
    """Return the batch that a sample is made in: the recorded one where it needs it, else one of its own."""
    if (state := task.states.get(BATCH)) is None:
        return BatchFetch("__getitems__", [_key_of(task)]), 0
    fetch, place = BatchFetch.from_state(state)
    return replace(fetch, indices=[*fetch.indices[:place], _key_of(task), *fetch.indices[place + 1 :]]), place


def _key_of(task: ReplayTask) -> Any:
    """Return what the dataset is asked for."""
    key = read_recorded_key(task.states)
    return task.place if key is None else key.at(task.place)


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
        """Return a file's place in the dataset: by its path, or by its name alone if the whole folder was moved.

        Of several files with this name it is the one at `index`."""
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
    """Return the run's pipeline again: from the dataset that is given, else from the run's recipe or the split's builder.

    Of a run made by `audit run`, a dataset that is named stands in for the one in its recipe, which may have moved.
    `named` are stages that were recorded under the name of an attribute: `run.dataset(ds, stages=["tokenise"])`.
    Code that the recipe names runs only if this machine recorded it, or with `trust`; else CodeNotTrusted.
    """
    if dataset is None and (builders := builders_of(run.recipe)):
        require_trust(run, trust, ["builders"])
        dataset = build_dataset(builders, split)
    if dataset is not None and not isinstance(dataset, str):
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise UsageError(
                f"A {type(dataset).__name__} gives its samples only in order, so single samples cannot be made again.",
                hint="Give a dataset with __getitem__; recorded stages of an iterable one are in the store (--capture full).",
            )
        seed = run.seed if run.recipe.get("kind") == "run" else None
        stages = [name for name in named if callable(getattr(dataset, name, None))]
        # A run that was recorded before stages were found by their calls has none of them, and another `load`.
        found = find_pipeline(
            dataset, expand=expand_preset, stages=stages, observe_calls=bool(run.recipe.get("observed_calls"))
        )
        return ReplayPipeline(dataset, found, seed, run.digest_version, notes_items=_notes_items(run))
    if run.recipe.get("kind") != "run":
        raise UsageError(
            f"The run {run.run_id} was recorded in a user's own loop, and does not say how its dataset is built.",
            hint="Give the dataset: store.replay(run, dataset=…), or audit replay --dataset FILE.py:function; "
            "recorded with run.loader(…, builder=…), a run knows it by itself.",
        )
    # Without a pipeline file the stages are the preset of the model's architecture.
    with_model = run.recipe.get("pipeline") is None
    using = {"pipeline", *(() if dataset else ("dataset",)), *(("model", "arch") if with_model else ())}
    vouched = require_trust(run, trust, using)
    allow_sources(run, store, trust=trust)
    allow_contact(dataset)
    changes = {"dataset": dataset} if dataset else {}
    request = RunRequest.from_recipe(run.recipe, store, trust=vouched, **changes)
    try:
        assembly = assemble(request, with_model=with_model, observe_calls=bool(run.recipe.get("observed_calls")))
    except (DatasetError, PipelineError) as error:
        error.hint = (
            f"The run {run.run_id} was recorded with it. Put it back; "
            "for a dataset that has moved: audit replay --dataset DATA, or store.replay(run, dataset='DATA')."
        )
        raise
    return ReplayPipeline(
        assembly.dataset, assembly.pipeline, request.seed, run.digest_version, notes_items=_notes_items(run)
    )


def _notes_items(run: Run) -> bool:
    """Return whether items that differ from the last stage's output were recorded: loops always did, `audit run` did not at first."""
    return run.recipe.get("kind") != "run" or bool(run.recipe.get("notes_items"))


def replay_all(
    what: ReplayPipeline, tasks: Sequence[ReplayTask], *, workers: int | None, batch_size: int = 32
) -> Generator[ReplayedVisit, None, None]:
    """Yield every task's outcome, over worker processes; one that kills its worker is an outcome too. To be closed."""
    together = [task for task in tasks if not task.alone]
    if workers is None and len(together) <= _FEW:
        workers = 0
    watch = WatchOptions(what.activity, DEFAULT_STALL_TIMEOUT)
    loader = ResilientLoader(what, lost=what.outcome_of_lost_visit, workers=workers, watch=watch)
    before = [source.take() for source in global_sources()]
    try:
        with closing(loader.batches(together, batch_size)) as batches:
            for outcomes in batches:
                yield from outcomes
        for task in tasks:
            if task.alone:
                yield from loader.make_alone(task)
    finally:
        # A replay in this process has set the global generators: the caller's own stream goes on as it was.
        for source, state in zip(global_sources(), before, strict=True):
            source.put(state)
