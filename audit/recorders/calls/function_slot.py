"""A place inside a Python function where its calls can be observed, however the function is reached.

A transform may sit in an attribute of any name, in a dict, a tuple, a slot, a closure cell or a module's global. All of
these lead to one function object: the function itself, or `__call__` or `forward` of its class. So the stand-in sits
there: for the length of a visit the function's code is a trampoline with the same signature, which hands the call to an
observer. Nothing that the user holds is replaced, and afterwards the function has its own code again.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

_PLACEHOLDER = "the observer of audit"
_LOCK = threading.Lock()
#: Functions whose calls return before their code has run.
_DEFERRED_FLAGS = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)

#: Called with the function's slot, and the arguments of one call. Returns what the caller is given.
Observe = Callable[["FunctionSlot", tuple[Any, ...], dict[str, Any]], Any]


class FunctionSlot:
    """One Python function whose calls go to an observer between `put` and `restore`."""

    __slots__ = ("_code", "_observe", "_trampoline", "_users", "function", "original")

    def __init__(self, function: FunctionType, observe: Observe) -> None:
        self.function = function
        self._observe = observe
        self._code = function.__code__
        self._users = 0
        #: Runs the user's code while the function itself holds the trampoline.
        self.original = _copy(function, self._code)
        self._trampoline = make_trampoline(self._code, self)

    def put(self) -> bool:
        """Let the observer have the calls. Returns False where the function has other code than it had."""
        with _LOCK:
            if self._users == 0:
                if self.function.__code__ is not self._code:
                    return False
                self.function.__code__ = self._trampoline
            self._users += 1
            return True

    def restore(self) -> None:
        """Undo one `put`; after the last the function has its own code again."""
        with _LOCK:
            self._users -= 1
            if self._users == 0 and self.function.__code__ is self._trampoline:
                self.function.__code__ = self._code

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Take one call; the trampoline comes here."""
        return self._observe(self, args, kwargs)


def is_observable(function: object) -> bool:
    """Return whether a function has code that a trampoline can stand in for."""
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    return not code.co_flags & _DEFERRED_FLAGS and all(name.isidentifier() for name in names)


def make_trampoline(code: CodeType, slot: FunctionSlot) -> CodeType:
    """Return code with the signature of `code` that does nothing but `slot.call(...)`."""
    parameters, arguments = _signature(code)
    # A constant and no name: the function keeps its own globals, where `slot` means nothing.
    source = f"def trampoline({parameters}):\n  return {_PLACEHOLDER!r}.call({arguments})\n"
    free = code.co_freevars
    if free:
        # A closure must keep its cells, and set them up as it begins: a debugger that looks at them crashes otherwise.
        inner = source.replace("\n", "\n  ") + f"  {', '.join(free)},\n"
        source = f"def make():\n  {' = '.join(free)} = None\n  {inner}  return trampoline\ntrampoline = make()\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), namespace)
    made: CodeType = namespace["trampoline"].__code__
    constants = tuple(slot if constant == _PLACEHOLDER else constant for constant in made.co_consts)
    return made.replace(
        co_consts=constants,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )


def _signature(code: CodeType) -> tuple[str, str]:
    """Return the parameters of a function as source text, and the arguments that pass them on."""
    names = code.co_varnames
    positional = names[: code.co_argcount]
    keyword = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    at = code.co_argcount + code.co_kwonlyargcount
    parameters, arguments = list(positional), list(positional)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        parameters.append(f"*{names[at]}")
        arguments.append(f"*{names[at]}")
        at += 1
    elif keyword:
        parameters.append("*")
    parameters += keyword
    arguments += [f"{name}={name}" for name in keyword]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parameters.append(f"**{names[at]}")
        arguments.append(f"**{names[at]}")
    return ", ".join(parameters), ", ".join(arguments)


def _copy(function: FunctionType, code: CodeType) -> FunctionType:
    copied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__ = function.__qualname__
    copied.__module__ = function.__module__
    return copied
