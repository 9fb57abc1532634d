"""Finds the functions that a dataset may call to change its values, wherever it keeps them.

The search over-reaches on purpose: it lists every function that the dataset's code can name or that its objects hold.
Which of them are stages is decided by what happens: a call that takes a value and returns one (see observed_calls.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch.utils.data import Dataset

from audit.recorders.calls.callables import (
    Key,
    closure_of,
    defaults_of,
    find_in_class,
    function_of,
    is_a,
    is_library,
    is_stage_like,
    is_standard_library,
    is_users,
    is_users_class,
    items_of,
    key_of,
    list_held_callables,
    list_held_values,
    names_in,
    unwrap,
)
from audit.recorders.calls.function_slot import is_observable
from audit.recorders.calls.in_place_changes import may_change_in_place

#: The methods of a dataset that make its items.
_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__")
_MOST_FUNCTIONS = 300
_MOST_OBJECTS = 2_000
#: Packages whose functions do the arithmetic of a dataset's own code, and whose objects are values.
_ARITHMETIC = {"numpy", "torch", "pandas", "pyarrow", "PIL", "random", "audit"}
#: Types of plain values, which hold no code: a dataset may list thousands of them.
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set})
#: Functions of these that are transforms all the same.
_TRANSFORMS = ("torch.nn.functional", "PIL.ImageOps", "torchvision.")


class CallSearch:
    """The functions to observe for one dataset, and the names by which it holds them."""

    def __init__(self, dataset: Any, stages: Sequence[Any] = (), containers: Sequence[Any] = ()) -> None:
        """Search a dataset. `stages` and `containers` are known already, by the attributes that hold them."""
        self.skipped = frozenset(key_of(known) for known in (*stages, *containers) if callable(known))
        self.functions: dict[int, FunctionType] = {}
        self.labels: dict[Key, str] = {}
        #: Keeps what `labels` identifies alive, so that no other object takes its id.
        self._alive: list[Any] = []
        self._seen: set[int] = set()
        self._bodies: deque[tuple[FunctionType, bool]] = deque()
        self._scanned: set[int] = set()
        #: The user's own code that may make items, with the functions inside it.
        self.codes: list[CodeType] = []
        #: Whether the user's own code has operations that may change a value in place.
        self.changes_in_place = False
        #: Objects whose methods make items, by id.
        self.owners: dict[int, Any] = {}
        self._objects: deque[tuple[str, Any, int]] = deque([("", dataset, 0)])
        for stage in stages:
            # A known stage is not searched for; what it holds may be stages beneath it.
            self._objects.extend((label, held, 1) for label, held in list_held_callables(stage).values())
        self._run()

    @property
    def observed_names(self) -> set[str]:
        """The names by which the user's own code may call what is observed."""
        labels = {label.rpartition(".")[2] for label in self.labels.values()}
        return labels | {function.__name__ for function in self.functions.values()}

    def _run(self) -> None:
        while self._objects or self._bodies:
            if len(self._seen) > _MOST_OBJECTS or len(self.functions) > _MOST_FUNCTIONS:
                return
            if self._objects:
                self._take_object(*self._objects.popleft())
            else:
                self._scan(*self._bodies.popleft())

    # -- objects ---------------------------------------------------------------------------------

    def _take_object(self, label: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or depth > 8 or (callable(value) and key_of(value) in self.skipped):
            return
        if is_stage_like(value) and not is_dataset(value):
            self._seen.add(id(value))
            self._take_callable(label, value, depth)
        elif is_dataset(value) or is_users(value):
            self._seen.add(id(value))
            self._alive.append(value)
            self.owners[id(value)] = value
            self._add_entries(type(value))
            # A dataset may call itself.
            self._add(unwrap(find_in_class(type(value), "__call__")))
            for name, held in list_held_values(value):
                self._objects.append((name, held, depth + 1))
        elif is_a(value, (list, tuple, dict)):
            self._seen.add(id(value))
            self._alive.append(value)
            for name, item in items_of(value):
                if is_stage_like(item) or is_dataset(item) or is_users(item) or is_a(item, (list, tuple, dict)):
                    self._objects.append((f"{label}.{name}" if label else name, item, depth + 1))

    def _take_callable(self, label: str, value: Any, depth: int) -> None:
        self._alive.append(value)
        self.labels.setdefault(key_of(value), label)
        self._add(function_of(value))
        for name, held in list_held_callables(value).values():
            self._objects.append((name, held, depth + 1))
        for name, held in list_held_values(value):
            # A callable may hold another dataset, or an object with the transforms.
            if not is_stage_like(held) and (is_dataset(held) or is_users(held)):
                self._objects.append((name, held, depth + 1))

    def _add_entries(self, kind: type) -> None:
        for base in kind.__mro__:
            for name in _ENTRIES:
                if (function := unwrap(vars(base).get(name))) is not None:
                    self._bodies.append((function, is_library(function)))

    def _add(self, function: FunctionType | None) -> None:
        if function is None or hasattr(function, "_audit_stage"):
            # A function under `@audit.stage` reports its own calls.
            return
        if is_observable(function):
            self.functions.setdefault(id(function), function)
        if not is_library(function):
            self._bodies.append((function, False))

    # -- code ------------------------------------------------------------------------------------

    def _scan(self, function: FunctionType, library: bool) -> None:
        """Add what a function's code can call: methods of the objects found so far, globals, captured variables."""
        if id(function) in self._scanned:
            return
        self._scanned.add(id(function))
        names = names_in(function.__code__)
        for owner in list(self.owners.values()):
            for name in names:
                self._add_method(type(owner), name)
        if library:
            return
        self.codes += _codes_in(function.__code__)
        self.changes_in_place = self.changes_in_place or may_change_in_place(function.__code__)
        for name in sorted(names):
            if name in function.__globals__:
                self._add_named(name, function.__globals__[name], names)
        for name, value in (*closure_of(function), *defaults_of(function)):
            self._add_named(name, value, names)

    def _add_method(self, kind: type, name: str) -> None:
        if name in _ENTRIES or (name.startswith("__") and name.endswith("__")):
            return
        defined = find_in_class(kind, name)
        function = unwrap(defined)
        if function is None:
            if defined is not None:
                # A transform as an attribute of the class.
                self._objects.append((name, defined, 1))
            return
        if is_library(function):
            self._bodies.append((function, True))
        self._add(function)

    def _add_named(self, label: str, value: Any, names: set[str]) -> None:
        """Add a global or captured variable: a function, an object, a class, or a module with functions in it."""
        if is_a(value, ModuleType):
            if not is_standard_library(value) and value.__name__ not in _ARITHMETIC:
                for name in sorted(names & vars(value).keys()):
                    self._add_member(name, vars(value)[name], names)
        elif is_a(value, (FunctionType, type)):
            self._add_member(label, value, names)
        elif not is_a(value, MethodType) or not is_standard_library(value):
            self._objects.append((label, value, 1))

    def _add_member(self, label: str, value: Any, names: set[str]) -> None:
        if is_a(value, ModuleType):
            # `transforms.functional.resize`: a module within a module that is named.
            if label != value.__name__:
                self._add_named(value.__name__, value, names - {label})
            return
        if is_standard_library(value) or not _is_transform(value):
            return
        if is_a(value, type):
            # An object of it may be made and called on the spot.
            if not is_dataset_class(value):
                self._add(function_of(value))
            for name in names if is_users_class(value) else ():
                # Its class methods and static methods may be called without an object.
                self._add_method(value, name)
        elif is_a(value, FunctionType):
            self._alive.append(value)
            self.labels.setdefault(key_of(value), label)
            self._add(value)
        elif is_stage_like(value):
            self._objects.append((label, value, 1))


def is_dataset_class(kind: type) -> bool:
    """Return whether objects of a class make items: they have Python code that does."""
    if issubclass(kind, Dataset):
        return True
    # A container of transforms may be indexed, too; but it is called.
    if _package_of(kind) in _ARITHMETIC or find_in_class(kind, "__call__") is not None:
        return False
    return any(is_a(find_in_class(kind, name), FunctionType) for name in _ENTRIES)


def is_dataset(value: Any) -> bool:
    """Return whether an object makes items."""
    if type(value) in _PLAIN_TYPES:
        return False
    return not is_a(value, (type, ModuleType, str, bytes)) and is_dataset_class(type(value))


def _codes_in(code: CodeType) -> list[CodeType]:
    inner = (constant for constant in code.co_consts if is_a(constant, CodeType))
    return [code, *(found for one in inner for found in _codes_in(one))]


def _is_transform(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return _package(module) not in _ARITHMETIC or module.startswith(_TRANSFORMS)


def _package_of(kind: type) -> str:
    return _package(kind.__module__)


def _package(module: str) -> str:
    return module.partition(".")[0]
