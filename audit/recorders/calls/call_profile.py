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

from audit.recorders.calls.callables import is_library_file, is_own_file
from audit.recorders.calls.data_values import carries_data
from audit.recorders.calls.function_slot import FunctionSlot
from audit.recorders.calls.operators import is_held, is_new_array, operator_lines

#: Packages whose C functions change values.
_PACKAGES = {"numpy", "torch", "cv2", "PIL", "scipy", "skimage"}
#: Functions that make a value out of none, or ask about one.
_NO_CHANGES = {
    *("arange", "default_rng", "empty", "eye", "full", "get_rng_state", "imread", "is_tensor", "linspace", "load"),
    *("manual_seed", "normal", "ones", "open", "rand", "randint", "randn", "randperm", "seed", "tensor", "zeros"),
    *("dim", "item", "numel", "size", "tolist", "tobytes", "data_ptr", "getpixel", "close", "verify", "any", "all"),
    *("load_prepare", "getbands", "getbbox"),
}
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
_MOST_CALLS = 12


class CallProfile:
    """The calls that changed values in the user's own code during one visit."""

    def __init__(self) -> None:
        #: (function, file, first line) of the user's own code to the names of its calls, with their lines.
        self.calls: dict[tuple[str, str, int], list[str]] = {}
        #: Code of the user's own that ran and returned values of the sample.
        self._codes: dict[CodeType, None] = {}
        #: Values that functions of libraries returned to the user's own code, by identity.
        self._returned: dict[int, Any] = {}
        #: Whether values were made by functions in C, whose results are not seen.
        self._makes_unseen = False
        #: Whether another profiler kept this one from running.
        self.is_blocked = False

    def run(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns; its calls are listed. Another profiler that is active is left alone."""
        if sys.getprofile() is not None:
            self.is_blocked = True
            return make()
        sys.setprofile(self._event)
        try:
            return make()
        finally:
            sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            if not is_library_file(frame.f_code.co_filename):
                if _changes_values(function):
                    self._add(frame, _name_of(function))
                elif _is_simple_queue(function):
                    self._add(frame, "SimpleQueue.get, which waits for another thread")
                elif _makes_values(function):
                    self._makes_unseen = True
        elif event == "return":
            self._return(frame, function)
        elif event == "call" and frame.f_back is not None:
            code = frame.f_code
            if _is_wait(code) and not is_library_file(frame.f_back.f_code.co_filename):
                self._add(frame.f_back, f"{code.co_qualname}, which waits for another thread")
            elif (
                is_library_file(code.co_filename)
                and not is_library_file(frame.f_back.f_code.co_filename)
                and not is_own_file(code.co_filename)
                and not _is_observed(code)
                and code.co_name not in _NO_CHANGES
                and not code.co_name.startswith("__")
                and _is_given_data(frame, code)
            ):
                self._add(frame.f_back, _name_of_code(frame, code))

    def _return(self, frame: FrameType, value: Any) -> None:
        code = frame.f_code
        if not is_library_file(code.co_filename):
            if carries_data(value):
                self._codes[code] = None
        elif (
            frame.f_back is not None
            and not is_own_file(code.co_filename)
            and not is_library_file(frame.f_back.f_code.co_filename)
            and carries_data(value)
        ):
            self._returned[id(value)] = value

    def is_changed_by_operators(self, value: Any, dataset: Any) -> bool:
        """Return whether a value is new, though nothing but operators of the user's own code can have made it."""
        if self.is_blocked or self._makes_unseen or not is_new_array(value) or id(value) in self._returned:
            return False
        return bool(self._operators()) and not is_held(value, dataset)

    def _operators(self) -> dict[CodeType, list[int]]:
        return {code: lines for code in self._codes if (lines := operator_lines(code))}

    def forget_values(self) -> None:
        """Let go of the values of the visit."""
        self._returned = {}

    def _add(self, caller: FrameType, name: str) -> None:
        code = caller.f_code
        calls = self.calls.setdefault((code.co_qualname, code.co_filename, code.co_firstlineno), [])
        call = f"{name} (line {caller.f_lineno})"
        if call not in calls and len(calls) < _MOST_CALLS:
            calls.append(call)

    def describe(self) -> list[str]:
        """Return a sentence part for each function of the user's that changes values, with its file and line."""
        found = {key: list(calls) for key, calls in self.calls.items()}
        for code, lines in self._operators().items():
            listed = ", ".join(map(str, lines[:_MOST_CALLS]))
            found.setdefault((code.co_qualname, code.co_filename, code.co_firstlineno), []).append(
                f"operators (line {listed})"
            )
        return [
            f"{name} ({os.path.relpath(file)}:{line}): {', '.join(calls)}"
            for (name, file, line), calls in found.items()
        ]


def _makes_values(function: Any) -> bool:
    """Return whether a function in C makes a value out of none."""
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
    package = str(module).lstrip("_").partition(".")[0]
    return getattr(function, "__name__", "") in _NO_CHANGES and package in _PACKAGES


def _changes_values(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    if name in _NO_CHANGES or name.startswith("__"):
        return False
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type) and type(owner).__name__ != "module":
        return not isinstance(owner, (str, list, tuple, dict)) and carries_data(owner)
    module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
    return isinstance(module, str) and module.lstrip("_").partition(".")[0] in _PACKAGES


def _name_of(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type) and type(owner).__name__ != "module":
        return f"{type(owner).__name__}.{function.__name__}"
    module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
    return f"{str(module).lstrip('_').partition('.')[0]}.{function.__name__}"


def _is_wait(code: CodeType) -> bool:
    return code.co_qualname in _WAITS and os.path.basename(code.co_filename) in _WAITING_MODULES


def _is_simple_queue(function: Any) -> bool:
    return (
        getattr(function, "__name__", "") == "get"
        and type(getattr(function, "__self__", None)).__name__ == "SimpleQueue"
    )


def _is_observed(code: CodeType) -> bool:
    return any(isinstance(constant, FunctionSlot) for constant in code.co_consts)


def _is_given_data(frame: FrameType, code: CodeType) -> bool:
    values, flags = frame.f_locals, code.co_flags
    further = bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + further]
    return any(carries_data(values.get(name)) for name in names)


def _name_of_code(frame: FrameType, code: CodeType) -> str:
    """The name of a function; of a torch module the name of its class, as all of them are called through one function."""
    if code.co_name == "_wrapped_call_impl":
        return type(frame.f_locals.get("self")).__name__
    return code.co_qualname
