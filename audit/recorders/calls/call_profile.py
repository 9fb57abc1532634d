"""Names the calls by which a dataset's own code changes a value without a stage, with their lines.

One visit of each process runs under a profile function. It sees calls of C functions (`torch.from_numpy`, `cv2.resize`)
and of methods of the value itself (`image.convert`), where no stand-in can be put.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from audit.recorders.calls.c_functions import (
    NO_CHANGES,
    PACKAGES,
    changes_text,
    changes_values,
    converts_values,
    is_simple_queue,
    makes_values,
    name_of_c,
)
from audit.recorders.calls.callables import dict_of, is_a, is_library_file, is_own_file
from audit.recorders.calls.data_values import carries_data, is_picture, parts_in
from audit.recorders.calls.function_slot import FunctionSlot
from audit.recorders.calls.library_results import LibraryResults
from audit.recorders.calls.operators import Change, carries_numbers, changes_in, data_among, has_branches
from audit.recorders.calls.picture_changes import picture_changed_by
from audit.recorders.calls.torch_calls import TorchCalls, is_load_noted

#: Functions that hand over what another thread or process made, where no call is seen.
_WAITS = {
    *(
        "Queue.get",
        "Future.result",
        "Thread.join",
        "Event.wait",
        "Condition.wait",
        "ApplyResult.get",
        "IMapIterator.next",
    ),
    *("Executor.map", "ThreadPoolExecutor.map", "Pool.map", "BaseEventLoop.run_until_complete", "Runner.run", "run"),
}
_WAITING_MODULES = {
    "queue.py",
    "threading.py",
    "_base.py",
    "thread.py",
    "process.py",
    "pool.py",
    "base_events.py",
    "runners.py",
}
#: Names of functions in Cython that make values: a profile function does not see such calls.
_CYTHON = {
    *("as_py", "choice", "integers", "permutation", "poisson", "rand", "randint", "randn", "random", "random_sample"),
    *("normal", "standard_normal", "to_numpy", "to_pylist", "uniform"),
}
_MOST_CALLS = 12
#: Code of audit's own that stands for a function of a library which reads a file.
READERS: set[CodeType] = set()


#: Whose code a file is.
_USER, _LIBRARY, _AUDIT = "user", "library", "audit"


class _Owners(dict[str, str]):
    """By the name of a file, whose code it is. Each event of a profile asks for one or two."""

    def __missing__(self, file: str) -> str:
        owner = _AUDIT if is_own_file(file) else _LIBRARY if is_library_file(file) else _USER
        self[file] = owner
        return owner


_OWNERS = _Owners()


class CallProfile:
    """The calls that changed values in the user's own code during one visit."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Profile calls; `on_wait` is called before the user's own code waits for another thread."""
        self.on_wait = on_wait
        #: (function, file, first line) of the user's own code to the names of its calls, with their lines.
        self.calls: dict[tuple[str, str, int], list[str]] = {}
        #: Code of the user's own that ran and returned values of the sample, with what changes values in it.
        self._changes: dict[CodeType, list[Change]] = {}
        #: The same for code that began after stage 0 was recorded, and the frames of that code.
        self._later_changes: dict[CodeType, list[Change]] = {}
        self._after_load: set[int] = set()
        #: Values that functions of libraries returned to the user's own code, by identity.
        self.returned: dict[int, Any] = {}
        #: Values that they made of what the user's own code gave them.
        self.worked = LibraryResults()
        #: Pictures that the user's own code had changed in place before stage 0 was recorded, by identity.
        self.changed_pictures: dict[int, Any] = {}
        #: Where the user's own code was when a function in C last made a value, whose result is not seen.
        self._maker: dict[CodeType, int] | None = None
        #: Where it was when stage 0 was recorded: what comes after is not before the first stage.
        self._load: dict[CodeType, int] | None = None
        self._is_cython = False
        #: Whether functions in C changed a value before stage 0 was recorded, or gave it another class.
        self.has_c_change = self.is_converted = False
        #: Whether code of the user's own ran, and whether any code waited for another thread.
        self.has_users_code = self.has_waited = False
        #: Whether code of the user's own ran before the first stage: no other code of theirs can have changed what that was given.
        self.has_earlier_code = False
        #: The call of a stage that is running, which audit makes itself.
        self._stage: FrameType | None = None
        #: Code that has run since.
        self._later: set[CodeType] = set()
        #: Methods of texts that were called, as `calls`. They matter only where the value is a text.
        self.text_calls: list[tuple[CodeType, str]] = []
        #: The same after stage 0 was recorded: what they change is beside the value.
        self.later_text_calls: list[tuple[CodeType, str]] = []
        #: Code of the user's own that ran, with its variables that held data at its end.
        self.users: dict[CodeType, set[str]] = {}
        self.torch = TorchCalls()
        #: Whether another profiler kept this one from running.
        self.is_blocked = False

    def run(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns; its calls are listed. Another profiler that is active is left alone."""
        if sys.getprofile() is not None:
            self.is_blocked = True
            with self.torch:
                return make()
        sys.setprofile(self._event)
        try:
            with self.torch:
                return make()
        finally:
            sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, function: Any) -> None:
        # Nearly all events are inside of libraries: thousands where the item is the first to import something.
        owner = _OWNERS[frame.f_code.co_filename]
        if owner is not _USER:
            if event not in ("call", "return"):
                return
            caller = frame.f_back
            if owner is _LIBRARY and caller is not None and _OWNERS[caller.f_code.co_filename] is not _USER:
                if event == "call" and _is_wait(frame.f_code):
                    self.has_waited = True
                    self.on_wait()
                return
        elif event in ("c_return", "c_exception"):
            if frame is self.torch.reading:
                self.torch.reading = None
            return
        # It is noted by audit's own code, which returns next.
        if self._load is None and is_load_noted():
            self._load = _places(frame, through=True)
        if event == "c_call":
            self._begin_c_call(frame, function)
        elif event == "return":
            self._return(frame, function)
        elif event == "call" and frame.f_back is not None:
            self._begin_call(frame, frame.f_back)

    def _begin_c_call(self, frame: FrameType, function: Any) -> None:
        if changes_values(function):
            self._add(frame, name_of_c(function))
            if not is_load_noted():
                self.has_c_change = self.has_c_change or not converts_values(function)
                self.is_converted = True
        elif is_simple_queue(function):
            self._add(frame, "SimpleQueue.get, which waits for another thread")
            self.on_wait()
        elif changes_text(function):
            calls = self.text_calls if not is_load_noted() else self.later_text_calls
            calls.append((frame.f_code, f"{name_of_c(function)} (line {frame.f_lineno})"))
        elif makes_values(function):
            self._maker, self._later = _places(frame), set()
            self.text_calls = []
            # A function in C has no frame: what it calls seems to be called by the user's own code.
            self.torch.reading = frame

    def _begin_call(self, frame: FrameType, caller: FrameType) -> None:
        code = frame.f_code
        if not is_library_file(code.co_filename):
            if is_load_noted():
                self._after_load.add(id(frame))
            elif self._stage is None and is_own_file(caller.f_code.co_filename) and _is_given_data(frame, code):
                self._stage = frame
        elif not is_load_noted() and not is_library_file(caller.f_code.co_filename):
            picture = picture_changed_by(frame, code)
            if picture is not None:
                self.changed_pictures[id(picture)] = picture
        is_wait = _is_wait(code)
        self.has_waited = self.has_waited or is_wait
        if is_wait:
            self.on_wait()
        if is_wait and not is_library_file(caller.f_code.co_filename):
            self._add(caller, f"{code.co_qualname}, which waits for another thread")
        elif (
            is_library_file(code.co_filename)
            and not is_library_file(caller.f_code.co_filename)
            and not is_own_file(code.co_filename)
            and not _is_observed(code)
            and code.co_name not in NO_CHANGES
            and _has_name(frame, code)
            and _is_called_by_name(caller, frame, code)
            and _is_given_data(frame, code)
        ):
            self._add(caller, _name_of_code(frame, code))
            self.worked.begin(frame, code)

    def _return(self, frame: FrameType, value: Any) -> None:
        code = frame.f_code
        if code.co_filename == "<string>" and frame.f_back and is_library_file(frame.f_back.f_code.co_filename):
            return  # what `namedtuple` and dataclasses write
        if not is_library_file(code.co_filename):
            self.has_users_code = True
            self.users.setdefault(code, set()).update(data_among(frame.f_locals))
            is_after_load = id(frame) in self._after_load
            self._after_load.discard(id(frame))
            if frame is self._stage:
                self._stage = None
                self.has_earlier_code = self.has_earlier_code or not carries_numbers(value)
            elif self._stage is None and not is_after_load and not _is_observed(code):
                self.has_earlier_code = True
            if carries_numbers(value) and not _is_observed(code):
                changes = self._later_changes if is_after_load else self._changes
                found = changes_in(code, frame.f_globals, frame.f_locals)
                changes[code] = sorted({*changes.get(code, ()), *found})
                self._later.add(code)
                self._is_cython = self._is_cython or not _CYTHON.isdisjoint(code.co_names)
        elif not self.worked.end(frame, value) and (
            frame.f_back is not None
            and (not is_own_file(code.co_filename) or code in READERS)
            and not is_library_file(frame.f_back.f_code.co_filename)
            and (carries_data(value) or is_a(value, (str, bytes, list, tuple, dict)))
        ):
            parts = [part for part in parts_in(value) if carries_data(part)] if is_a(value, (tuple, dict)) else []
            self.returned.update((id(one), one) for one in (value, *parts))

    @property
    def has_branches(self) -> bool:
        """Whether the user's own code that ran has branches: another item may take others."""
        return any(has_branches(code) for code in self.users)

    @property
    def has_text_changes(self) -> bool:
        """Whether the user's own code that ran makes texts of others with operators."""
        changes = (
            change for found in (self._changes, self._later_changes) for some in found.values() for change in some
        )
        return any(change.is_of_text for change in changes)

    @property
    def has_maker(self) -> bool:
        """Whether a function in C or Cython was called that may have made the value."""
        return self._maker is not None or self._is_cython

    def changes_since_made(self) -> list[Change]:
        """Return what may have changed a value since a function in C made it."""
        load = self._load or {}
        found = {
            code: [change for change in changes if change.offset < load.get(code, sys.maxsize)]
            for code, changes in self._changes.items()
        }
        if self._maker is None:
            return [change for changes in found.values() for change in changes]
        return [
            change
            for code, changes in found.items()
            for change in changes
            if (code in self._later and code not in self._maker) or change.offset > self._maker.get(code, sys.maxsize)
        ]

    def is_library_result(self, value: Any) -> bool:
        """Return whether a function of a library made this object of a value that the user's own code gave it."""
        return self.worked.has(value)

    def forget_values(self) -> None:
        """Let go of the values of the visit."""
        self.returned, self.changed_pictures = {}, {}
        self.worked.forget_values()
        self.torch.forget_values()

    def _add(self, caller: FrameType, name: str) -> None:
        code = caller.f_code
        calls = self.calls.setdefault(_key_of(code), [])
        call = f"{name} (line {caller.f_lineno})"
        if call not in calls and len(calls) < _MOST_CALLS:
            calls.append(call)

    def describe(self, *, with_later_texts: bool = False) -> list[str]:
        """Return a sentence part for each function of the user's that changes values, with its file and line."""
        found = {key: list(calls) for key, calls in self.calls.items()}
        for code, call in [*self.text_calls, *(self.later_text_calls if with_later_texts else ())][:_MOST_CALLS]:
            found.setdefault(_key_of(code), []).append(call)
        for code, changes in (*self._changes.items(), *self._later_changes.items()):
            lines: dict[str, dict[int, None]] = {}
            for change in changes:
                lines.setdefault(change.name, {})[change.line] = None
            for name, numbers in lines.items():
                listed = ", ".join(map(str, list(numbers)[:_MOST_CALLS]))
                found.setdefault(_key_of(code), []).append(f"{name} (line {listed})")
        return [
            f"{name} ({os.path.relpath(file)}:{line}): {', '.join(calls)}"
            for (name, file, line), calls in found.items()
        ]


def without_profile(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a call returns, without listing its calls. The profiler of another tool stays where it is.

    For imports: what a module does while it is imported makes no item, and to list that takes several times as long as to import it.
    """
    profile = sys.getprofile()
    if not is_a(getattr(profile, "__self__", None), CallProfile):
        return call(*args, **kwargs)
    sys.setprofile(None)
    try:
        return call(*args, **kwargs)
    finally:
        sys.setprofile(profile)


def _key_of(code: CodeType) -> tuple[str, str, int]:
    return code.co_qualname, code.co_filename, code.co_firstlineno


def _places(frame: FrameType | None, *, through: bool = False) -> dict[CodeType, int]:
    """Return where each function of the user's own is that is running; with `through`, also those that called audit."""
    found: dict[CodeType, int] = {}
    while frame is not None and (through or not is_own_file(frame.f_code.co_filename)):
        if not is_library_file(frame.f_code.co_filename):
            found.setdefault(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return found


def _is_wait(code: CodeType) -> bool:
    return code.co_qualname in _WAITS and os.path.basename(code.co_filename) in _WAITING_MODULES


def _is_observed(code: CodeType) -> bool:
    return any(isinstance(constant, FunctionSlot) for constant in code.co_consts)


def _has_name(frame: FrameType, code: CodeType) -> bool:
    """Return whether a function has a name of its own; of the others, calls of objects and numpy's `r_` and `c_` change values."""
    if not code.co_name.startswith("__") or code.co_name == "__call__":
        return True
    return code.co_name == "__getitem__" and "index_tricks" in str(frame.f_globals.get("__name__"))


def _is_called_by_name(caller: FrameType, frame: FrameType, code: CodeType) -> bool:
    """Return whether the user's own code names a function of numpy's: what Cython code calls seems to be called there, too."""
    names = caller.f_code.co_names
    if _package_of(frame) != "numpy" or code.co_name in names or code.co_name.startswith("_"):
        return True
    return any(getattr(caller.f_globals.get(name), "__name__", None) == code.co_name for name in names)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_given_data(frame: FrameType, code: CodeType) -> bool:
    values, flags = frame.f_locals, code.co_flags
    further = bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + further]
    is_given = carries_numbers if _package_of(frame) in PACKAGES else carries_data
    if any(is_given(values.get(name)) for name in names):
        return True
    # An object of a library that holds a picture, as those of Pillow's ImageEnhance do.
    owner = values.get(names[0]) if names else None
    return any(is_picture(held) for held in dict_of(owner).values())


def _name_of_code(frame: FrameType, code: CodeType) -> str:
    """Return the name of a function; of a torch module the name of its class, as all of them are called through one function."""
    if code.co_name == "_wrapped_call_impl":
        return type(frame.f_locals.get("self")).__name__
    return code.co_qualname
