"""Follows the tensors of recorded batches through what a loop does to them, up to the model.

A torch function mode sees each operation of the thread that fetched a batch: not inside the model, the loader or an
optimizer's step, and not at all while no model is recorded. It calls the operation as it was called and looks at nothing but
the identity of its arguments. A tensor that is changed by an operation without a rule is no longer known. Memory that was
handed out (`x.numpy()`) may be changed without an operation: from then on its content is compared each time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from audit import values
from audit.recorders.model.function_modes import place_at_bottom, remove_mode
from audit.recorders.model.operations import join_rules, value_rules
from audit.recorders.model.operations.table import UNCHANGING_OPERATIONS, list_functions
from audit.recorders.model.output_uses import OutputUses
from audit.recorders.model.row_origins import OperationCall, RowOrigins, Rule


class _Memory:
    """Tensors that share one memory: what changes one of them changes all."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.overwritten = False
        #: Somebody else may write to it.
        self.exposed = False


class _Entry:
    """One tensor that is known, as it was when it was last looked at."""

    __slots__ = ("__weakref__", "content", "memory", "origins", "reference", "version")

    def __init__(self, tensor: torch.Tensor, origins: RowOrigins, memory: _Memory, forget: Any) -> None:
        self.reference: weakref.ref[torch.Tensor] = weakref.ref(tensor, forget)
        self.origins = origins
        self.memory = memory
        self.version = version_of(tensor)
        self.content = digest_of(tensor) if memory.exposed else None
        memory.entries.append(self)


class BatchTracker(TorchFunctionMode):
    """Knows, of each tensor that was made from a recorded batch, which samples its rows are."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[int, _Entry] = {}
        self._local = threading.local()
        self._table = list_functions()
        #: What the loop does with the outputs of models.
        self.uses = OutputUses()
        #: Whether a tensor that is not known may be found by its content later: items of a recorded dataset.
        self._tracks_unknown = False
        self.closed = False
        _TRACKERS.add(self)

    # -- what is known ---------------------------------------------------------------------------

    def add(self, tensor: torch.Tensor, origins: RowOrigins, like: torch.Tensor | None = None) -> None:
        """Know a tensor; `like` is one that it may share its memory with."""
        other = self._entries.get(id(like)) if like is not None else None
        shared = other is not None and like is not None and _shares_memory(tensor, like)
        memory = other.memory if other is not None and shared else _Memory()
        key = id(tensor)
        self._entries[key] = _Entry(tensor, origins, memory, lambda gone: self._forget(key, gone))

    def _forget(self, key: int, reference: weakref.ref[torch.Tensor]) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.reference is reference:
            del self._entries[key]
            with contextlib.suppress(ValueError):
                entry.memory.entries.remove(entry)

    def origins_of(self, tensor: torch.Tensor) -> RowOrigins | None:
        """Return the samples of a tensor's rows; None when they are not known, or it was overwritten since."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry.reference() is not tensor or entry.memory.overwritten:
            return None
        if entry.memory.exposed and entry.content != digest_of(tensor):
            entry.memory.overwritten = True
            return None
        return entry.origins if entry.version == version_of(tensor) else None

    # -- when it looks ---------------------------------------------------------------------------

    def follow(self) -> None:
        """Look at what this thread does from now on."""
        self._local.paused = 0
        if not self.closed:
            place_at_bottom(self)

    def track_unknown_tensors(self) -> None:
        """Remember tensors that are not known: the loop builds its batches from items of a recorded dataset."""
        self._tracks_unknown = True

    def pause(self) -> None:
        """Look away, until `resume` was called as often."""
        self._local.paused = getattr(self._local, "paused", 0) + 1
        self._local.resumes = remove_mode(self) or getattr(self._local, "resumes", False)

    def resume(self) -> None:
        """Look again."""
        self._local.paused = max(getattr(self._local, "paused", 0) - 1, 0)
        if not self._local.paused and getattr(self._local, "resumes", False) and not self.closed:
            self._local.resumes = False
            place_at_bottom(self)

    @contextlib.contextmanager
    def pause_inside(self) -> Iterator[None]:
        """Record no operation inside the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """Look at nothing any more."""
        self.closed = True
        remove_mode(self)
        self._entries.clear()

    # -- one operation ---------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or self.closed:
            return func(*args, **kwargs)
        if self.uses.watched:
            self.uses.note(func, args, kwargs)
        found = self._table.get(func)
        if found is None or not (self._entries or self._tracks_unknown) or torch._C._get_tracing_state() is not None:
            return func(*args, **kwargs)
        rule, name, in_place = found
        if rule is value_rules.expose:
            self._expose(args[0] if args else None)
            return func(*args, **kwargs)
        if in_place and args:
            self.origins_of(args[0])  # what others have written is seen before this operation hides it
        if self._tracks_unknown and not in_place and rule not in (join_rules.concatenate, join_rules.stack):
            self._track_unknown(args)
        if not self._is_about_known(args, kwargs):
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        try:
            self._note(OperationCall(func, args, kwargs, result, self.origins_of), rule, name, in_place)
        except Exception:
            # A form of the call that the rule does not know: what comes of it is not known either.
            if in_place:
                self._mark_overwritten(args[0])
        return result

    def _is_about_known(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        entries = self._entries
        for value in (*args, *kwargs.values()):
            if id(value) in entries:
                return True
            if isinstance(value, (tuple, list)) and any(id(item) in entries for item in value):
                return True
        return False

    def _note(self, call: OperationCall, rule: Rule, name: str, in_place: bool) -> None:
        if in_place:
            self._note_in_place(call, rule, name)
            return
        found = rule(call)
        if isinstance(found, list):
            for part, origins in zip(call.result, found, strict=True):
                self._add_result(call, part, origins, name)
        else:
            self._add_result(call, call.result, found, name)

    def _add_result(self, call: OperationCall, result: Any, origins: RowOrigins | None, name: str) -> None:
        if origins is None or not isinstance(result, torch.Tensor) or result is call.value:
            return
        source = call.value if isinstance(call.value, torch.Tensor) else None
        is_changed = source is None or _is_changed(source, self.origins_of(source), result, origins, name)
        if is_changed and name not in UNCHANGING_OPERATIONS:
            origins = replace(origins, operations=(*origins.operations, name.strip("_")))
        self.add(result, origins, like=source)

    def _note_in_place(self, call: OperationCall, rule: Rule, name: str) -> None:
        """Note an operation in place that is over: the versions of its arguments are those before it plus one."""
        target = call.value
        entry = self._entries.get(id(target))
        if entry is not None and entry.reference() is target and version_of(call.args[0]) == entry.version + 1:
            for one in entry.memory.entries:
                shared = one.reference()
                if shared is not None and version_of(shared) == one.version + 1:
                    one.version += 1
        origins = rule(call)
        if not isinstance(origins, RowOrigins):
            self._mark_overwritten(target)
        elif entry is None:
            self.add(target, replace(origins, operations=(*origins.operations, *_operation_names(name))))
        else:
            has_other_rows = rule is value_rules.copy_ or origins.rows != entry.origins.rows
            entry.origins = origins
            for one in entry.memory.entries:
                if has_other_rows and one is not entry:
                    one.version = -1
                one.origins = replace(one.origins, operations=(*one.origins.operations, *_operation_names(name)))
            if entry.memory.exposed:
                _note_contents(entry.memory)

    def _expose(self, tensor: Any) -> None:
        """Note that a tensor's memory is handed out to what no operation shows."""
        entry = self._entries.get(id(tensor))
        if entry is not None and not entry.memory.exposed:
            entry.memory.exposed = True
            _note_contents(entry.memory)

    def _mark_overwritten(self, tensor: Any) -> None:
        entry = self._entries.get(id(tensor))
        if entry is not None:
            entry.memory.overwritten = True

    def _track_unknown(self, args: tuple[Any, ...]) -> None:
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor) or id(first) in self._entries or first.requires_grad:
            return
        if first.dim() > 0 and 0 < first.shape[0] <= _MOST_ROWS:
            content = UnknownTensor(first)
            self.add(first, RowOrigins(tuple((content, row) for row in range(first.shape[0]))))


#: A tensor with more rows is not a batch.
_MOST_ROWS = 1 << 14


class UnknownTensor:
    """A tensor of unknown origin, kept so that its rows can be compared with recorded samples."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor: torch.Tensor = tensor.detach()
        self._version = version_of(self._tensor)

    @property
    def rows(self) -> torch.Tensor | None:
        """The rows; None when they were overwritten since."""
        return self._tensor if version_of(self._tensor) == self._version else None


def _note_contents(memory: _Memory) -> None:
    for entry in memory.entries:
        tensor = entry.reference()
        entry.content = None if tensor is None else digest_of(tensor)


def digest_of(tensor: torch.Tensor) -> str | None:
    """Return a digest of what a tensor holds now."""
    return values.digest(tensor.detach())


def _operation_names(name: str) -> tuple[str, ...]:
    return () if name in UNCHANGING_OPERATIONS else (name.strip("_"),)


def _is_changed(
    source: torch.Tensor, before: RowOrigins | None, result: torch.Tensor, after: RowOrigins, name: str
) -> bool:
    """Return whether a sample is other than it was: rows that are only picked, moved or repeated are not."""
    if name in ("to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long"):
        return source.dtype != result.dtype
    if name in ("__getitem__", "chunk", "split", "unbind", "index_select", "narrow", "select", "repeat_interleave"):
        return _sample_shape(source, before) != _sample_shape(result, after)
    return True


def _sample_shape(tensor: torch.Tensor, origins: RowOrigins | None) -> tuple[int, ...]:
    shape = tuple(tensor.shape)
    if origins is None or origins.axis is None:
        return shape
    return (*shape[: origins.axis], *shape[origins.axis + 1 :])


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place."""
    try:
        # A tensor of inference mode has no count of its changes, and its exception takes longer than all else of a small batch.
        return 0 if tensor.is_inference() else tensor._version
    except (RuntimeError, AttributeError):
        return 0


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False


_TRACKERS: weakref.WeakSet[BatchTracker] = weakref.WeakSet()


def _leave_forked_process() -> None:
    for tracker in list(_TRACKERS):
        tracker.close()


os.register_at_fork(after_in_child=_leave_forked_process)
