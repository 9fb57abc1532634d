"""A recording that lives inside another tool's training loop: begun, fed and ended by that tool's events.

The tool owns the loop, so nothing here may raise into it: a loader that cannot be recorded is handed back as it was,
with a warning, unless the recording is strict. What each tool calls when is the business of its own file.
"""

from __future__ import annotations

import atexit
import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from audit.config import store_location
from audit.errors import AuditError, UsageError
from audit.provenance import describe
from audit.recorders.loop.loader import RecordedLoader
from audit.recorders.loop.recording import Recording, RecordingWarning
from audit.records import Run

#: Which part of a trained object gives the logits: its name, a function of the object, or nothing for the usual one.
Network = str | Callable[[Any], nn.Module] | None


def _names(function: Any) -> set[str]:
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


class CallbackRecording:
    """The options of a callback, and the recording that is under way if there is one."""

    def __init__(
        self, store: str | os.PathLike[str] | None, options: Mapping[str, Any], *, workers_stay: bool = False
    ) -> None:
        #: Whether the tool lets persistent workers live on from one run to the next.
        self._workers_stay = workers_stay
        self._store = store_location(store)
        for_recording = _names(Recording.__init__) - {"describe"}
        for_model, for_loader = _names(Recording.model), _names(Recording.loader) - {"split"}
        known = for_recording | for_model | for_loader
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3) or sorted(known)
                raise UsageError(f"There is no recording option {name!r}.", hint=f"Options: {', '.join(near)}.")
        self._recording_options = {name: options[name] for name in options if name in for_recording}
        self._model_options = {name: options[name] for name in options if name in for_model}
        self._loader_options = {name: options[name] for name in options if name in for_loader}
        self._run: Recording | None = None
        self._network: nn.Module | None = None
        #: Recorded loaders whose workers outlive an epoch, by the id of the loader that they hold.
        self._kept: dict[int, tuple[RecordedLoader, Recording]] = {}
        #: The runs that were recorded, oldest first.
        self.run_ids: list[str] = []

    @property
    def strict(self) -> bool:
        """Return whether what goes wrong is raised."""
        return bool(self._recording_options.get("strict"))

    @property
    def run(self) -> Recording | None:
        """Return the recording under way."""
        return self._run

    def begin(self, tags: Mapping[str, str]) -> Recording:
        """Begin a recording; one that was never ended was interrupted."""
        self.end("interrupted")
        options = dict(self._recording_options)
        options["tags"] = {**tags, **(options.get("tags") or {})}
        self._run = Recording(self._store, describe=describe, **options)
        self.run_ids.append(self._run.run_id)
        # A loop that ends with an exception need not tell its callbacks; the run must not stay open for that.
        atexit.register(self.end, "interrupted")
        return self._run

    def watch(self, network: nn.Module) -> None:
        """Record what this module puts out."""
        if self._run is None or self._network is network:
            return
        try:
            self._run.model(network, **self._model_options)
            self._network = network
        except AuditError as error:
            self.complain(error)

    def loader(self, loader: Any, split: str) -> Any:
        """Return the loader recorded; as it was, with a warning, where that cannot be."""
        if self._run is None or isinstance(loader, RecordedLoader):
            return loader
        if id(loader) in self._kept:
            return self._kept_loader(loader, split)
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

    def _kept_loader(self, loader: Any, split: str) -> Any:
        """Persistent workers go on as they are: starting them anew would draw a random number that nobody else draws."""
        recorded, owner = self._kept[id(loader)]
        if owner is not self._run:
            self.complain(
                UsageError(
                    f"The {split} loader keeps its workers, which belong to an earlier run: it is not recorded in this one.",
                    hint="Use a loader of its own, or one without persistent workers.",
                )
            )
        return recorded

    def end(self, status: str = "complete", error: BaseException | None = None) -> Run | None:
        """End the recording, if one is under way."""
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
        """A warning; raised when strict."""
        if self.strict:
            raise error
        warnings.warn(f"audit: {error}", RecordingWarning, stacklevel=3)


def network_of(owner: nn.Module, wanted: Network, usual: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return the module that gives the logits: the one that is wanted, else the usual one."""
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
            f"{type(owner).__name__} has no module {wanted!r}.", hint=f"Near names: {', '.join(near)}."
        ) from None
