"""One recording in a user's own loop: batches come from loaders, predictions from the model, rows go to the store.

A failure of the recording is a warning, and raises in the loop only if the recording is strict. A thread writes to the
disk; the loop waits for it only if too many bytes are queued.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from audit import provenance, values
from audit.errors import AuditError, RecordingError, UsageError, message_without_hint
from audit.identity import check_run_name
from audit.models.expected_input import find_stated_input
from audit.models.presets import expand_preset
from audit.recorders.calls.callables import read_attribute
from audit.recorders.calls.monitor import MONITOR
from audit.recorders.calls.unseen_changes import WHOLE_BATCHES, describe_unrecorded
from audit.recorders.capture_plan import CapturePlan
from audit.recorders.files.origin import class_names
from audit.recorders.items.item_parts import whole_number
from audit.recorders.items.targets import TargetPicker
from audit.recorders.loop.base_loader import base_of
from audit.recorders.loop.batch_intake import BatchIntake
from audit.recorders.loop.batch_receiver import BatchReceiver
from audit.recorders.loop.batch_stage import BatchStages
from audit.recorders.loop.call_receiver import CallReceiver
from audit.recorders.loop.dataset_proxy import Channel, RecordedDatasetProxy, RecordedIterableProxy
from audit.recorders.loop.dataset_split import split_of_loader
from audit.recorders.loop.expected_draws import ExpectedDraws, sampler_of
from audit.recorders.loop.loader import RecordedLoader
from audit.recorders.loop.loader_recording import LoaderRecording
from audit.recorders.loop.logged_predictions import check_logged, make_logged_rows
from audit.recorders.loop.recordable import check_dataset, check_loader, estimate_length
from audit.recorders.loop.recording_state import RecordingState
from audit.recorders.model import mixing
from audit.recorders.model.call_recorder import CallRecorder
from audit.recorders.model.graded_targets import GradedHead, make_heads
from audit.recorders.model.layers import LayerHooks, LayerPolicy, choose_samples
from audit.recorders.model.output_reader import OutputReader, Picker
from audit.recorders.model.recorded_model import RecordedModel
from audit.recorders.problems import Problems, RecordingWarning
from audit.recorders.randomness.visit_randomness import WatchedRandomness
from audit.recorders.ranks import rank_tags
from audit.recorders.stages.discover import Pipeline, find_pipeline
from audit.recorders.unused_name import unused_name
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.item_label import LabelFinder
from audit.recorders.visit.item_recorder import ItemRecorder
from audit.recorders.visit.item_source import SourceFinder
from audit.recorders.visit.make import VisitMaker
from audit.recorders.visit.stage_register import StageRegister
from audit.records import DEFAULT_BUDGET, Run
from audit.sources.builder import Builder, describe_builder
from audit.sources.trust import sign_recipe

__all__ = ["Recording", "RecordingWarning"]


F = TypeVar("F", bound=Callable[..., Any])


class Recording:
    """A run being recorded. Made by `audit.record`; use it as a context manager."""

    def __init__(
        self,
        store: str,
        *,
        name: str | None = None,
        capture: str = "auto",
        capture_budget: int = DEFAULT_BUDGET,
        capture_where: str | None = None,
        strict: bool = False,
        tags: Mapping[str, str] | None = None,
        stall_timeout: float = 600.0,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise UsageError(f"name cannot be {name!r}.", hint="A run's name is text.")
        if tags is not None and not isinstance(tags, Mapping):
            raise UsageError(f"tags cannot be {tags!r}.", hint='Give a mapping, such as {"purpose": "baseline"}.')
        if not isinstance(capture_budget, (int, float)) or not capture_budget >= 0:
            raise UsageError(f"capture_budget cannot be {capture_budget!r}.", hint="Give a number of bytes.")
        if not isinstance(stall_timeout, (int, float)) or not stall_timeout >= 0:
            raise UsageError(f"stall_timeout cannot be {stall_timeout!r}.", hint="Give seconds, or 0 for no warning.")
        check_run_name(name)
        tagged = rank_tags() | dict(tags or {})
        facts = provenance.describe(values.digest_version())
        run = Run("", name=name, tags=tagged, capture=capture, **facts)
        self._problems = problems = Problems(run.warnings, strict=strict)
        self._plan = CapturePlan(capture, capture_budget, run, problems)
        self._state = state = RecordingState(
            store, run, problems, capture_where=capture_where, stall_timeout=stall_timeout
        )
        stages = StageRegister(run.run_id)
        self._intake = BatchIntake(run, problems, self._plan, stages)
        self._batch_stages = BatchStages(state, problems, stages, self._plan.level)
        self._draws = ExpectedDraws()
        self._loaders: list[LoaderRecording] = []
        self._channels: list[Channel] = []
        self._receiver = BatchReceiver(state, problems, self._intake, self._draws)
        self._recorder = CallRecorder(
            run,
            problems,
            numbers=state.numbers,
            batches=state.batches,
            mixes=state.mixes,
            tracker=state.tracker,
            plan=self._plan,
        )
        self._calls = CallReceiver(state, problems, self._recorder, self._channels)

    @property
    def open(self) -> bool:
        """Whether it still records: False after `close`, and in a process that was forked from this one."""
        return self._state.is_open

    @property
    def strict(self) -> bool:
        """Whether a recording failure is raised into the loop."""
        return self._problems.strict

    @property
    def run(self) -> Run:
        """The run's row in its current state."""
        return self._state.run

    @property
    def run_id(self) -> str:
        """The id of the run that is being recorded."""
        return self.run.run_id

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._state.location

    # -- what is recorded ------------------------------------------------------------------------

    def loader(
        self,
        loader: DataLoader[Any],
        *,
        label: LabelFinder = None,
        split: str | None = None,
        builder: Builder | None = None,
        source: SourceFinder = None,
    ) -> DataLoader[Any]:
        """Return a loader that gives the same batches and records them. Iterate over it instead of yours.

        `label` says where an item's label is (a key, a position, or a function of the item). `split`, such as "train", is
        written to the column `split`. Without it, a loader that draws a whole dataset has the split that the dataset names: in its
        attribute `split`, by the name of its folder, or by `train` if it is one of torchvision's.
        `builder` is a function that builds such a dataset, or its name ("FILE.py:function"): a replay calls it.
        `source` names the files of a sample: a function of the index (or of index and item), or a mapping by index. Each gives
        a path, a list of paths, or a mapping by role, such as {"image": …, "mask": …}.
        """
        self._require_open()
        check_loader(loader, self._loaders)
        base = base_of(loader)
        builder_entry = describe_builder(builder, split if split is not None else split_of_loader(base))
        try:
            pipeline = find_pipeline(base.dataset, expand=expand_preset, observe_calls=True)
            recording = LoaderRecording(loader, pipeline, self._plan.level, self._receiver, label, source)
        except Exception as error:
            self._note_unsearched(base.dataset, error)
            return loader
        self._loaders.append(recording)
        self._register(id(recording), pipeline, base.dataset, builder_entry, type(sampler_of(base)).__name__)
        return RecordedLoader(recording)  # type: ignore[return-value]

    def dataset(
        self,
        dataset: Any,
        *,
        stages: Sequence[str] | None = None,
        label: LabelFinder = None,
        split: str | None = None,
        builder: Builder | None = None,
        source: SourceFinder = None,
    ) -> Any:
        """Return a dataset that gives the same items and records them. Build your loader from it instead of yours.

        Stages are found on its `transform` and `target_transform`; `stages` names attributes that hold others.
        `label`, `builder` and `source` mean the same as for `loader`, and so does `split`, which must be passed here.
        """
        self._require_open()
        check_dataset(dataset)
        builder_entry = describe_builder(builder, split)
        try:
            pipeline = find_pipeline(dataset, expand=expand_preset, stages=stages, observe_calls=True)
        except Exception as error:
            self._note_unsearched(dataset, error)
            return dataset
        try:
            channel = Channel(self._receiver)
        except RecordingError as error:
            self._problems.note(error)
            return dataset
        kind = RecordedIterableProxy if isinstance(dataset, IterableDataset) else RecordedDatasetProxy
        self._channels.append(channel)
        self._receiver.expect_items()
        self._register(id(channel), pipeline, dataset, builder_entry)
        maker = VisitMaker(dataset, pipeline, WatchedRandomness(dataset), activity=self._receiver.new_activity())
        # audit does not see the batches that are built from these items, so it takes the target from each item.
        recorder = ItemRecorder(maker, self._plan.level, label=label, source=source, all_targets=True)
        return kind(recorder, channel)

    def _note_unsearched(self, dataset: Any, error: Exception) -> None:
        """Mark the run with a dataset that is used unrecorded, because to look at it raised an error; raise the errors of ours."""
        if isinstance(error, AuditError):
            raise error
        self._problems.note(
            RecordingError(
                f"{type(dataset).__name__} is not recorded: looking for its stages raised {describe_error(error)}.",
                hint="Correct the object that raises, or record the samples with run.log.",
            )
        )

    def _register(
        self, key: int, pipeline: Pipeline, dataset: Any, builder_entry: dict[str, Any], sampler: str | None = None
    ) -> None:
        run = self.run
        self._intake.add(key, pipeline, builder_entry["split"], estimate_length(dataset))
        mixing.install()
        self._draws.add(run, key, builder_entry["split"], dataset, sampler)
        if builder_entry not in (known := run.recipe.setdefault("builders", [])):
            known.append(builder_entry)
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
        output: str | Mapping[str | int, str | None] | None = None,
        logits: Picker = None,
        target: Mapping[str | int, TargetPicker] | None = None,
        layers: Sequence[str | type[nn.Module]] | None = None,
        keep: Any = "stats",
        backward: bool = False,
        per_sample: bool = True,
        every: int = 1,
        indices: Sequence[int] | None = None,
        when: Any = None,
        budget: int = 256 * 2**20,
    ) -> nn.Module:
        """Record the model's logits, and inputs and outputs of the chosen layers. Returns the same model; it computes the same.

        `name` is written to the column `model`; without it, the name of its class. `output` says what the numbers mean
        (logits, probabilities, sigmoid, log_probabilities, multilabel, regression, embedding); `logits` picks the tensor
        by a key, a position or a function if the model returns several; `logits=False` records none.

        For a model with several graded outputs, `output` is a dict: the key or position of each, and what its numbers mean (None:
        what is evident from the model and its first output). `target` says where in the batch the target of each is: a key, a
        position or a function; without it, the batch's entry of the same name.

        `layers` are names, patterns or types; `keep` is "stats", "full" or a function of the tensor, and at most `budget` bytes of
        values are kept. `backward` also records the gradients; with `per_sample=False` a layer has one row for each call, and not
        one for each sample. `every=N` records layers in each Nth step only, `indices` only for these samples, and `when` only for
        predictions that meet a condition (SQL, or a function of the prediction).
        """
        self._require_open()
        self._check_model(model)
        policy = LayerPolicy(layers or (), keep, backward, per_sample, every, choose_samples(indices), when, budget)
        if layers is None and policy != LayerPolicy(budget=budget):
            raise UsageError(
                "keep, backward, per_sample, every, indices and when apply to layers, but no layers are chosen.",
                hint="Add layers=[...]: names, patterns such as 'layer4.*', or types.",
            )
        hooks = LayerHooks(model, policy) if layers else None
        known = self._model_name(model, name)
        heads: tuple[GradedHead, ...] = ()
        if isinstance(output, Mapping):
            heads, output = self._make_heads(model, known, output, logits, target), None
        elif target is not None:
            raise UsageError(
                "target is for a model with several graded outputs.",
                hint="Give output a dict too, such as {'digit': 'logits', 'angle': 'regression'}.",
            )
        reader = OutputReader(model, known, output, logits)
        self._recorder.add(RecordedModel(model, known, reader, hooks, self._calls, self._state.tracker, heads))
        self._state.heads += [(known, head) for head in heads]
        self._intake.has_warned_of_labels |= bool(heads)  # each head has a target of its own
        self._state.has_models = True
        self._describe_model(model, hooks)
        return model

    def _check_model(self, model: nn.Module) -> None:
        """Refuse what is not a module, a module whose calls cannot be recorded, and one that is recorded already."""
        if not isinstance(model, nn.Module):
            raise UsageError(f"run.model takes a torch module, not a {type(model).__name__}.")
        if isinstance(model, torch.jit.ScriptModule):
            raise UsageError(
                "run.model cannot record a TorchScript module: torch runs no hooks on its calls.",
                hint="Put it into a module and call that: model = run.model(torch.nn.Sequential(model)).",
            )
        if any(watched.model is model for watched in self._recorder.models):
            raise UsageError("This model is recorded already.", hint="Call run.model once, with all its layers.")

    def _describe_model(self, model: nn.Module, hooks: LayerHooks | None) -> None:
        """Note in the run's row which model and layers are recorded, and how the model's inputs are prepared."""
        run = self.run
        if hooks is not None:
            # What was asked for: the check `hooks` compares it with what was recorded.
            run.recipe["layers"] = [*run.recipe.get("layers", ()), *hooks.modules]
        # timm's models carry the normalisation of their weights.
        config = read_attribute(model, "pretrained_cfg")
        if (
            isinstance(config, dict)
            and (expected := find_stated_input(config, "the model's pretrained_cfg")) is not None
        ):
            run.recipe.setdefault("expected_input", expected)
        run.model = run.model or type(model).__qualname__
        run.arch = run.arch or type(model).__name__

    def _make_heads(
        self,
        model: nn.Module,
        name: str,
        outputs: Mapping[str | int, str | None],
        logits: Picker,
        target: Mapping[str | int, TargetPicker] | None,
    ) -> tuple[GradedHead, ...]:
        if logits is not None or not outputs:
            raise UsageError(
                "logits picks one output, and output names several." if outputs else "output is an empty dict.",
                hint="Name each output in the dict of output, and leave logits out.",
            )
        readers = {str(key): OutputReader(model, f"{name}.{key}", kind, key) for key, kind in outputs.items()}
        return make_heads(readers, target)

    def _model_name(self, model: nn.Module, name: str | None) -> str:
        """Return the given name, or else the name of the class, with a number if that is taken."""
        taken = {watched.name for watched in self._recorder.models}
        if name is not None:
            if not isinstance(name, str) or not name or name in taken:
                raise UsageError(
                    f"Another recorded model has the name {name!r}.", hint="Give each recorded model a name of its own."
                )
            return name
        return unused_name(type(model).__name__, taken)

    def stage(self, transform: F, *, name: str | None = None) -> F:
        """Return a transform of whole batches that does the same and is recorded as a stage. Call it instead of yours.

        For what a loop does to batches after the loader: torchvision's v2 or kornia on tensors, a function of your own. Row n of
        the result must be the same sample as row n of the input.
        """
        self._require_open()
        if not callable(transform):
            raise UsageError(f"run.stage takes a callable, not a {type(transform).__name__}.")
        return self._batch_stages.add(transform, name)  # type: ignore[return-value]

    def epochs(self, count: int) -> Iterator[int]:
        """Return `range(count)`; the rows of each turn of a loop over it belong to that epoch."""
        count = whole_number(count, "The number of epochs")
        self._intake.expected_epochs = max(count, 1)
        return self._count_epochs(count)

    def _count_epochs(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.epoch(number)
            yield number
        self._state.set_epoch(None)

    def epoch(self, number: int) -> None:
        """Set the epoch of all rows from now on; -1 is for samples before the first epoch."""
        number = whole_number(number, "The epoch", least=-1)
        self._state.set_epoch(number)
        for channel in self._channels:
            channel.set_epoch(number)

    def log(self, *, indices: Sequence[int], logits: Any, labels: Any = None, epoch: int | None = None) -> None:
        """Record predictions without `loader` and `model`: logits (N, C) of the samples with these indices."""
        self._require_open()
        with self._problems.guard():
            logged = check_logged(indices, logits, labels, epoch)
            self._state.has_logged = True
            self._state.write([make_logged_rows(logged, self._state, self._intake.visits, self._problems)])

    def parents(self, weights: Sequence[Sequence[tuple[int, float]]], *, batch: int | None = None) -> None:
        """Record which samples each row of the last batch was mixed from: for each row, a list of (index, weight) pairs."""
        self._require_open()
        with self._state.guard():
            parents = [[(int(index), float(share)) for index, share in pairs] for pairs in weights]
            self._state.write([self._receiver.parent_rows(parents, batch)])

    # -- the end ---------------------------------------------------------------------------------

    def close(self, status: str = "complete") -> Run:
        """End the recording: write everything that is left, and remove every hook."""
        if not self.open:
            return self.run
        try:
            run = self._finish(status)
        except Exception as error:
            # Readers of the store will see the same status.
            self.run.status = "interrupted"
            # The error's own hint is left out: it is about `audit run --resume`, which cannot resume a user's own loop.
            reason, safe = message_without_hint(error), "What was committed before is safe."
            self._problems.mark(f"The run stopped: {reason}", loud=False)
            if self.strict:
                raise RecordingError(f"The recording could not be finished: {reason}", hint=safe) from error
            warnings.warn(f"audit: the recording is incomplete: {reason} {safe}", RecordingWarning, stacklevel=2)
            return self.run
        if status == "complete" and run.status == "failed":
            hint = f"See why with: audit sql 'FROM failures' --run {run.run_id}"
            warnings.warn(f"audit: {run.warnings[-1]} {hint}", RecordingWarning, stacklevel=2)
        return run

    def _finish(self, status: str) -> Run:
        """Write what is left and end the run."""
        try:
            self._write_rest()
        except BaseException as error:
            # The recording is strict, or Ctrl-C was pressed. The run must not look as if it were still running.
            self._problems.mark(f"The run stopped: {message_without_hint(error)}", loud=False)
            with contextlib.suppress(Exception):
                self._state.finish("interrupted")
            raise
        return self._state.finish(status)  # type: ignore[arg-type]

    def _write_rest(self) -> None:
        self._receiver.remove_hooks()
        self._recorder.remove_hooks()
        MONITOR.release()
        for channel in self._channels:
            # If a worker has died, torch's signal handler raises wherever the main thread is: also here, while it waits for rows.
            with self._problems.guard():
                channel.close()
        with self._state.guard():
            self._receiver.finish()
            self._calls.report()
            self._batch_stages.report()
            if texts := [text for text in self.run.unrecorded or () if not text.endswith(WHOLE_BATCHES)]:
                self._problems.mark(describe_unrecorded(texts))

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self.close()
            return
        self._problems.mark(f"The loop ended with {kind.__name__}: {error}", loud=False)
        with contextlib.suppress(RecordingError):
            # The user must see the exception that ended the loop, and not one of closing.
            self.close("interrupted" if issubclass(kind, (KeyboardInterrupt, SystemExit)) else "failed")

    def _require_open(self) -> None:
        if not self.open:
            raise UsageError("This recording is closed.", hint="Begin another with audit.record(...).")
