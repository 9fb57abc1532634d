"""A recording inside another tool's training loop: the tool's events start, feed and end it.

The tool owns the loop, so nothing here may raise into it: a loader that cannot be recorded is returned unchanged,
with a warning, unless the recording is strict. Each tool's own file defines which event calls what.
"""

from __future__ import annotations

import atexit
import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from torch import nn
from torch.utils.data import DataLoader

from audit.config import store_location
from audit.errors import AuditError, UsageError
from audit.recorders.items.targets import TargetPicker
from audit.recorders.loop.loader import RecordedLoader
from audit.recorders.loop.recording import Recording, RecordingWarning
from audit.recorders.model.output_reader import Picker
from audit.recorders.visit.item_label import LabelFinder
from audit.recorders.visit.item_source import SourceFinder
from audit.records import Run
from audit.sources.builder import Builder

#: Which part of a trained object gives the logits: its name, a function of the object, or nothing for the usual one.
Network = str | Callable[[Any], nn.Module] | None


class CallbackOptions(TypedDict, total=False):
    """The options of a callback: those of `audit.record`, of `run.loader` (but for `split`) and of `run.model`."""

    #: Of the run, and of the model in it.
    name: str | None
    capture: str
    capture_budget: int
    capture_where: str | None
    strict: bool
    tags: Mapping[str, str] | None
    stall_timeout: float
    label: LabelFinder
    builder: Builder | None
    source: SourceFinder
    output: str | Mapping[str | int, str | None] | None
    logits: Picker
    target: Mapping[str | int, TargetPicker] | None
    layers: Sequence[str | type[nn.Module]] | None
    keep: Any
    backward: bool
    per_sample: bool
    every: int
    indices: Sequence[int] | None
    when: Any
    budget: int


def _names(function: Any) -> set[str]:
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


class CallbackRecording:
    """The options of a callback, and the current recording if there is one."""

    def __init__(
        self, store: str | os.PathLike[str] | None, options: CallbackOptions, *, workers_stay: bool = False
    ) -> None:
        #: Whether the tool keeps persistent workers from one run to the next.
        self._workers_stay = workers_stay
        self._store = store_location(store)
        for_recording = _names(Recording.__init__)
        for_model, for_loader = _names(Recording.model), _names(Recording.loader) - {"split"}
        known = CallbackOptions.__annotations__
        given = dict[str, Any](options)
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3) or sorted(known)
                raise UsageError(f"There is no recording option {name!r}.", hint=f"Known options: {', '.join(near)}.")
        self._recording_options = {name: given[name] for name in given if name in for_recording}
        self._model_options = {name: given[name] for name in given if name in for_model}
        self._loader_options = {name: given[name] for name in given if name in for_loader}
        self._run: Recording | None = None
        self._network: nn.Module | None = None
        #: Recorded loaders whose workers outlive an epoch, by the id of the loader that they hold.
        self._kept: dict[int, tuple[RecordedLoader, Recording]] = {}
        #: The runs that were recorded, oldest first.
        self.run_ids: list[str] = []

    @property
    def strict(self) -> bool:
        """Return whether problems are raised instead of warned about."""
        return bool(self._recording_options.get("strict"))

    @property
    def run(self) -> Recording | None:
        """Return the current recording, or None."""
        return self._run

    def begin(self, tags: Mapping[str, str]) -> Recording:
        """Start a recording; mark one that was never ended as interrupted."""
        self.end("interrupted")
        options = dict(self._recording_options)
        options["tags"] = {**tags, **(options.get("tags") or {})}
        self._run = Recording(self._store, **options)
        self.run_ids.append(self._run.run_id)
        # A loop that ends with an exception may not call its callbacks; the run must not stay open.
        atexit.register(self.end, "interrupted")
        return self._run

    def set_epoch(self, number: int) -> None:
        """Set the epoch of the current recording, if there is one."""
        if self._run is not None:
            self._run.epoch(number)

    def watch(self, network: nn.Module) -> None:
        """Record the outputs of this module."""
        if self._run is None or self._network is network:
            return
        try:
            self._run.model(network, **self._model_options)
            self._network = network
        except AuditError as error:
            self.complain(error)

    def loader(self, loader: Any, split: str) -> Any:
        """Return a recorded loader; or the loader unchanged, with a warning, if it cannot be recorded."""
        if self._run is None or isinstance(loader, RecordedLoader):
            return loader
        if id(loader) in self._kept:
            return self._find_kept_loader(loader, split)
        if not isinstance(loader, DataLoader):
            self.complain(
                UsageError(f"The {split} batches come from a {type(loader).__name__}, which is not recorded.")
            )
            return loader
        try:
            recorded = self._run.loader(loader, split=split, **self._loader_options)
        except AuditError as error:
            self.complain(error)
            return loader
        if self._workers_stay and loader.persistent_workers and isinstance(recorded, RecordedLoader):
            self._kept[id(loader)] = recorded, self._run
        return recorded

    def _find_kept_loader(self, loader: Any, split: str) -> Any:
        """Keep persistent workers running, because starting them again would draw an extra random number."""
        recorded, owner = self._kept[id(loader)]
        if owner is not self._run:
            self.complain(
                UsageError(
                    f"The {split} loader keeps its workers, which belong to an earlier run: it is not recorded in this one.",
                    hint="Use a separate loader, or one without persistent workers.",
                )
            )
        return recorded

    def end(self, status: str = "complete", error: BaseException | None = None) -> Run | None:
        """End the current recording, if there is one."""
        run, self._run = self._run, None
        self._network = None
        if run is None:
            return None
        atexit.unregister(self.end)
        if error is not None:
            run.__exit__(type(error), error, error.__traceback__)
            return None
        return run.close(status)

    def complain(self, error: AuditError) -> None:
        """Warn about a problem; raise it if the recording is strict."""
        if self.strict:
            raise error
        warnings.warn(f"audit: {error}", RecordingWarning, stacklevel=3)


def network_of(owner: nn.Module, wanted: Network, usual: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return the module that returns the logits: the configured one, or else the usual one."""
    if wanted is None:
        return usual(owner)
    if not isinstance(wanted, str):
        return wanted(owner)
    try:
        return owner.get_submodule(wanted)
    except AttributeError:
        names = [name for name, _ in owner.named_modules() if name]
        near = difflib.get_close_matches(wanted, names, n=5, cutoff=0.3) or names[:8]
        raise UsageError(
            f"{type(owner).__name__} has no module {wanted!r}.", hint=f"Similar names: {', '.join(near)}."
        ) from None
