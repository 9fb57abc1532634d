"""One recording in a user's own loop: batches come from loaders, predictions from the model, rows go to the store.

Nothing here raises into the loop unless the recording is strict. The loop never waits for the disk: a thread writes, and
only when too much is waiting does the loop wait too.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from audit.errors import RecordingError, UsageError, plainly
from audit.identity import check_run_name
from audit.models.presets import expand_preset
from audit.recorders.loop.dataset_proxy import Channel, RecordedDatasetProxy, RecordedIterableProxy
from audit.recorders.loop.expected_draws import length_of, sampler_of
from audit.recorders.loop.loader import RecordedLoader, base_of, being_iterated
from audit.recorders.loop.logged import checked
from audit.recorders.loop.ranks import rank_tags
from audit.recorders.loop.state import RecordingState
from audit.recorders.model.hooks import RecordedModel
from audit.recorders.model.layers import LayerHooks, LayerPolicy, chosen_samples
from audit.recorders.model.output_reader import OutputReader, Picker
from audit.recorders.problems import RecordingWarning
from audit.recorders.randomness.visit_randomness import WatchedRandomness
from audit.recorders.stages.discover import Pipeline, find_pipeline
from audit.recorders.visit.item_recorder import ItemRecorder, LabelFinder
from audit.recorders.visit.items import whole_number
from audit.recorders.visit.make import VisitMaker
from audit.recorders.visit.origin import class_names
from audit.records import Run
from audit.sources.builder import Builder, described
from audit.sources.trust import sign_recipe

__all__ = ["Recording", "RecordingWarning"]


class Recording:
    """A run being recorded. Made by `audit.record`; use it as a context manager."""

    def __init__(
        self,
        store: str,
        *,
        name: str | None = None,
        capture: str = "auto",
        capture_budget: int = 2 * 2**30,
        capture_where: str | None = None,
        strict: bool = False,
        tags: Mapping[str, str] | None = None,
        describe: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise UsageError(f"name is {name!r}.", hint="A run's name is text.")
        if tags is not None and not isinstance(tags, Mapping):
            raise UsageError(f"tags is {tags!r}.", hint='Give a mapping, such as {"purpose": "baseline"}.')
        if not isinstance(capture_budget, (int, float)) or not capture_budget >= 0:
            raise UsageError(f"capture_budget is {capture_budget!r}.", hint="Give a number of bytes.")
        check_run_name(name)
        details = describe() if describe is not None else {}
        tagged = rank_tags() | dict(tags or {})
        row = Run("", name=name, tags=tagged, capture=capture, **details)
        self._ledger = RecordingState(
            store, row, capture=capture, capture_budget=capture_budget, capture_where=capture_where, strict=strict
        )
        self._loaders: list[RecordedLoader] = []

    @property
    def open(self) -> bool:
        """Whether anything is recorded: not after `close`, and not in a process that was forked from this one."""
        return self._ledger.open

    @property
    def strict(self) -> bool:
        """Whether a recording failure is raised into the loop."""
        return self._ledger.problems.strict

    @property
    def run(self) -> Run:
        """The run's row as it stands."""
        return self._ledger.run

    @property
    def run_id(self) -> str:
        """The id of the run that is being recorded."""
        return self._ledger.run.run_id

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._ledger.location

    # -- what is recorded ------------------------------------------------------------------------

    def loader(
        self,
        loader: DataLoader[Any],
        *,
        label: LabelFinder = None,
        split: str | None = None,
        builder: Builder | None = None,
    ) -> DataLoader[Any]:
        """The same loader, recorded: iterate the one that is returned.

        `label` says where an item's label is (a key, a position, or a function of the item); `split` names the rows.
        `builder` is a function that builds such a dataset, or its name ("FILE.py:function"): a replay calls it.
        """
        self._require_open()
        self._check_loader(loader)
        how = described(builder, split)
        dataset = base_of(loader).dataset
        pipeline = find_pipeline(dataset, expand=expand_preset, observe_calls=True)
        wrapped = RecordedLoader(loader, pipeline, self._ledger.plan.level, self._ledger, label)
        self._loaders.append(wrapped)
        self._register(id(wrapped), pipeline, dataset, how, type(sampler_of(wrapped._audit_base)).__name__)
        return wrapped  # type: ignore[return-value]

    def _check_loader(self, loader: Any) -> None:
        base = base_of(loader)
        if type(loader) is RecordedLoader or any(known._audit_base is base for known in self._loaders):
            raise UsageError("This loader is recorded already.", hint="Call run.loader once for each loader.")
        if not isinstance(base, DataLoader):
            raise UsageError(
                f"run.loader takes a torch DataLoader, or an object that holds one, not a {type(loader).__name__}.",
                hint="Use run.dataset for a Dataset, and run.log(indices=…, logits=…, labels=…) for other loops.",
            )
        if _is_recorded(base.dataset):
            raise UsageError(
                "The dataset of this loader is recorded already.", hint="Wrap the dataset or its loader, not both."
            )
        if getattr(base, "_iterator", None) is not None:
            raise UsageError(
                "This loader is being iterated already, with workers that know nothing of the recording.",
                hint="Wrap it before its first epoch.",
            )
        if being_iterated(base):
            warnings.warn(
                "audit: this loader is being iterated already; batches of that loop are not recorded.",
                RecordingWarning,
                stacklevel=3,
            )

    def dataset(
        self,
        dataset: Any,
        *,
        stages: Sequence[str] | None = None,
        label: LabelFinder = None,
        split: str | None = None,
        builder: Builder | None = None,
    ) -> Any:
        """The same dataset, recorded: build your loader from the one that is returned.

        Stages are found on its `transform` and `target_transform`; `stages` names attributes that hold others.
        `label`, `split` and `builder` are those of `loader`.
        """
        self._require_open()
        _check_dataset(dataset)
        if _is_recorded(dataset):
            raise UsageError("This dataset is recorded already.", hint="Call run.dataset once for each dataset.")
        how = described(builder, split)
        pipeline = find_pipeline(dataset, expand=expand_preset, stages=stages, observe_calls=True)
        channel = Channel(lambda envelope: self._ledger.receive_loose(id(channel), envelope), self._ledger.tracker)
        kind = RecordedIterableProxy if isinstance(dataset, IterableDataset) else RecordedDatasetProxy
        self._ledger.channels.append(channel)
        self._ledger.tracker.adopts = True
        self._register(id(channel), pipeline, dataset, how)
        maker = VisitMaker(dataset, pipeline, WatchedRandomness(dataset))
        return kind(ItemRecorder(maker, self._ledger.plan.level, label=label), channel)

    def _register(
        self, key: int, pipeline: Pipeline, dataset: Any, how: dict[str, Any], sampler: str | None = None
    ) -> None:
        self._ledger.add_source(key, pipeline, how["split"], _length(dataset))
        self._ledger.passes.add(key, how["split"], length_of(dataset), sampler)
        run = self._ledger.run
        if how not in (known := run.recipe.setdefault("builders", [])):
            known.append(how)
            run.recipe = sign_recipe(run.recipe)
        run.recipe["observed_calls"] = True
        run.unrecorded = run.unrecorded or []
        run.classes = run.classes or class_names(dataset)
        run.dataset = run.dataset or f"{type(dataset).__module__}.{type(dataset).__qualname__}"

    def model(
        self,
        model: nn.Module,
        *,
        name: str | None = None,
        output: str | None = None,
        logits: Picker = None,
        layers: Sequence[str | type[nn.Module]] | None = None,
        keep: Any = "stats",
        backward: bool = False,
        per_sample: bool = True,
        every: int = 1,
        indices: Sequence[int] | None = None,
        when: Any = None,
        budget: int = 256 * 2**20,
    ) -> nn.Module:
        """The same model: its logits are recorded, and what the chosen layers saw. Nothing else about it changes.

        `name` is what its predictions are known by; without it, the name of its class. `output` says what the numbers mean
        (logits, probabilities, sigmoid, log_probabilities, multilabel, regression, embedding); `logits` picks the tensor
        by a key, a position or a function where the model returns several, and is False to record none. `layers` are names, patterns or types; `keep` is "stats", "full" or a function of the tensor; `every` N steps,
        only these `indices`, only `when` an SQL condition over the prediction (or a function of it) holds.
        """
        self._require_open()
        if not isinstance(model, nn.Module):
            raise UsageError(f"run.model takes a torch module, not a {type(model).__name__}.")
        if any(watched.model is model for watched in self._ledger.models):
            raise UsageError("This model is recorded already.", hint="Call run.model once, with all its layers.")
        policy = LayerPolicy(layers or (), keep, backward, per_sample, every, chosen_samples(indices), when, budget)
        if layers is None and policy != LayerPolicy(budget=budget):
            raise UsageError(
                "keep, backward, per_sample, every, indices and when are about layers, and none are chosen.",
                hint="Add layers=[...]: names, patterns such as 'layer4.*', or types.",
            )
        hooks = LayerHooks(model, policy) if layers else None
        ledger = self._ledger
        known = self._model_name(model, name)
        reader = OutputReader(model, known, output, logits)
        ledger.watch(RecordedModel(model, known, reader, hooks, ledger.before_call, ledger.after_call, ledger.tracker))
        run = self._ledger.run
        if hooks is not None:
            # What was asked for: the check `hooks` compares it with what was heard.
            run.recipe["layers"] = [*run.recipe.get("layers", ()), *hooks.modules]
        run.model = run.model or type(model).__qualname__
        run.arch = run.arch or type(model).__name__
        return model

    def _model_name(self, model: nn.Module, name: str | None) -> str:
        """The name given, else that of the class; a second one of that class has a number."""
        taken = {watched.name for watched in self._ledger.models}
        if name is not None:
            if not isinstance(name, str) or not name or name in taken:
                raise UsageError(f"name is {name!r}.", hint="Give each recorded model a name of its own.")
            return name
        kind = type(model).__name__
        numbers = (kind if number == 1 else f"{kind}-{number}" for number in itertools.count(1))
        return next(candidate for candidate in numbers if candidate not in taken)

    def epochs(self, count: int) -> Iterator[int]:
        """`range(count)`, with the recording told which epoch it is."""
        count = whole_number(count, "The number of epochs")
        self._ledger.intake.expected_epochs = max(count, 1)
        return self._told_epochs(count)

    def _told_epochs(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.epoch(number)
            yield number
        self._ledger.clock.told = None

    def epoch(self, number: int) -> None:
        """Say which epoch the rows belong to from now on; -1 is for what comes before the first."""
        self._ledger.set_epoch(whole_number(number, "The epoch", least=-1))

    def log(self, *, indices: Sequence[int], logits: Any, labels: Any = None, epoch: int | None = None) -> None:
        """Predictions of a loop that fits nothing else: logits (N, C) of the samples with these indices."""
        self._require_open()
        with self._ledger.problems.caught():
            self._ledger.log(*checked(indices, logits, labels, epoch))

    def parents(self, weights: Sequence[Sequence[tuple[int, float]]], *, batch: int | None = None) -> None:
        """Say which samples each place of the last batch was mixed from: for each place, (index, weight) pairs."""
        self._require_open()
        with self._ledger.problems.caught():
            self._ledger.parents([[(int(index), float(share)) for index, share in pairs] for pairs in weights], batch)

    # -- the end ---------------------------------------------------------------------------------

    def close(self, status: str = "complete") -> Run:
        """End the recording: everything is written, every hook is gone."""
        if not self.open:
            return self._ledger.run
        try:
            run = self._ledger.close(status)
        except Exception as error:
            # As every reader of the store will find it.
            self._ledger.run.status = "interrupted"
            # The writer's hint is for `audit run`: a loop of the user's own cannot be resumed.
            reason, safe = plainly(error), "What was committed before is safe."
            self._ledger.problems.mark(f"The run stopped: {reason}", loud=False)
            if self.strict:
                raise RecordingError(f"The recording could not be finished: {reason}", hint=safe) from error
            warnings.warn(f"audit: the recording is incomplete: {reason} {safe}", RecordingWarning, stacklevel=2)
            return self._ledger.run
        if status == "complete" and run.status == "failed":
            hint = f"See why with: audit sql 'FROM failures' --run {run.run_id}"
            warnings.warn(f"audit: {run.warnings[-1]} {hint}", RecordingWarning, stacklevel=2)
        return run

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self.close()
            return
        self._ledger.problems.mark(f"The loop ended with {kind.__name__}: {error}", loud=False)
        with contextlib.suppress(RecordingError):
            # What ended the loop is what its user must see.
            self.close("interrupted" if issubclass(kind, (KeyboardInterrupt, SystemExit)) else "failed")

    def _require_open(self) -> None:
        if not self.open:
            raise UsageError("This recording is closed.", hint="Begin another with audit.record(...).")


def _check_dataset(dataset: Any) -> None:
    kind, hint = type(dataset).__name__, "Give the object that a DataLoader would be made of."
    if isinstance(dataset, DataLoader):
        hint = "Use run.loader for a DataLoader."
    elif isinstance(dataset, type):
        kind, hint = f"class ({dataset.__name__})", "Make one of it, and give that."
    elif isinstance(dataset, (str, bytes)):
        hint = "Open it first, for instance with torchvision.datasets.ImageFolder(path); audit.run takes a path."
    elif hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__"):
        return
    raise UsageError(f"run.dataset takes a Dataset, not a {kind}.", hint=hint)


def _is_recorded(dataset: Any) -> bool:
    """Whether a recorded dataset lies somewhere in this one."""
    for _ in range(20):
        if isinstance(dataset, (list, tuple)):
            return any(_is_recorded(part) for part in dataset)
        if type(dataset) in (RecordedDatasetProxy, RecordedIterableProxy):
            return True
        inner = getattr(dataset, "datasets", None)
        dataset = inner if isinstance(inner, (list, tuple)) else getattr(dataset, "dataset", None)
        if dataset is None:
            return False
    return False


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        # An iterable that does not tell: an estimate of what it will take needs some number.
        return 10_000
