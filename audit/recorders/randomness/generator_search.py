"""Where a dataset and its transforms hold random number generators: attributes, lists, closures, the globals of their code.

Found once and then watched: looking whether any holder has changed costs a microsecond or two, a new search a hundred. Code of
libraries is not read, as what it draws comes from the global generators or from objects that are found here; generators
that only a running Python generator, a C extension or another thread can reach are not found.
"""

from __future__ import annotations

import dis
import functools
import itertools
import operator
import os
import random
import sys
import types
from collections import deque
from dataclasses import dataclass
from typing import Any

from audit.values import native as loops

_DEEPEST = 40
_WIDEST = 2000
_MOST = 200_000
_PLAIN_KINDS = (str, bytes, bytearray, int, float, complex, type(None), range, slice)
#: The attribute of a stand-in (stages/stand_in.py) that holds the user's own object.
_TARGET = "_audit_target"
_PLAIN_TYPES = set(_PLAIN_KINDS) | {bool}
#: A list of fewer rows is searched one by one.
_TABLE = 32
#: Whose code is not read.
_LIBRARIES = frozenset(sys.stdlib_module_names) | {
    "torch", "torchvision", "numpy", "PIL", "scipy", "pandas", "pyarrow", "cv2", "albumentations", "albucore", "sklearn",
    "skimage", "datasets", "transformers", "tokenizers", "timm", "pydantic", "audit",
}  # fmt: skip
#: Whose objects hold data and never a generator.
_DATA = frozenset(("PIL", "pandas", "pyarrow", "duckdb", "threading", "logging", "pydantic", "multiprocessing"))
#: Code that asks for one of these may depend on which worker it runs in.
_SEED_NAME = "initial_seed"
_WORKER_NAMES = frozenset((_SEED_NAME, "get_worker_info"))


@dataclass(slots=True)
class GeneratorPlace:
    """One generator, and what holds it."""

    path: str
    generator: Any
    holder: Any
    key: Any

    def current_generator(self) -> Any:
        """Return what is at that place now; None when nothing is."""
        holder = self.holder
        if holder is None:
            return self.generator
        if isinstance(holder, dict):
            return holder.get(self.key)
        if isinstance(holder, types.CellType):
            return _contents(holder)
        if isinstance(holder, (list, deque)):
            return holder[self.key] if self.key < len(holder) else None
        return _slot(holder, self.key)

    def forget(self, *, named: bool) -> None:
        """Leave nothing at that place, as before the generator was made: None where the place was `named` already."""
        if isinstance(self.holder, dict):
            if named:
                self.holder[self.key] = None
            else:
                self.holder.pop(self.key, None)


class GeneratorSearch:
    """The generators below an object, each under the path that leads to it, in an order that is the same in every process."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._search = _Search(root)
        self._growing: set[int] = set()

    @property
    def places(self) -> list[GeneratorPlace]:
        """What was found."""
        return self._search.places

    @property
    def asks_for_worker(self) -> bool:
        """Whether code that was found asks which worker it runs in, or with which seed."""
        return self._search.asks_for_worker

    @property
    def asks_for_seed(self) -> bool:
        """Return whether code that was found asks with which seed torch began."""
        return self._search.asks_for_seed

    @property
    def content(self) -> tuple[list[Any], list[int], list[tuple[dict[Any, Any], Any]]] | None:
        """What `is_unchanged` compares: containers, their lengths, and places that hold None; None where that is not enough."""
        search = self._search
        return None if loops.native is None or search.places else (search.holders, search.lengths, search.empty)

    def is_unchanged(self) -> bool:
        """Return whether one look by the compiled loops shows that nothing was added, taken away, filled or moved."""
        content = self.content
        return content is not None and bool(loops.native.same_holders(*content))  # type: ignore[union-attr]

    def refresh(self) -> dict[str, bool]:
        """Look again where anything has changed; gives the paths of generators that were not there before.

        With each goes whether its place was there already and held None.
        """
        search = self._search
        if self.is_unchanged():
            return {}
        grown = search.find_resized_containers(self._growing)
        moved = (
            any(place.current_generator() is not place.generator for place in search.places) if search.places else False
        )
        if not (grown or moved or search.is_filled()):
            return {}
        known = {place.path for place in search.places}
        self._search = _Search(self._root)
        named = {(id(holder), key) for holder, key in search.empty}
        new = [place for place in self._search.places if place.path not in known]
        fresh = {place.path: (id(place.holder), place.key) in named for place in new}
        if not fresh:
            # A cache that grows with each sample is not worth a search each time.
            self._growing.update(grown)
        return fresh

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self._root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"])  # type: ignore[misc]


class _Search:
    """One walk over everything that an object reaches."""

    def __init__(self, value: Any) -> None:
        self.places: list[GeneratorPlace] = []
        #: Containers by length: another length means that something was added or taken away.
        self.sizes: list[tuple[Any, int]] = []
        #: Attributes that hold None: where a generator is made when it is first needed.
        self.empty: list[tuple[dict[Any, Any], Any]] = []
        self.asks_for_worker = self.asks_for_seed = False
        self._seen = {id(generator) for generator in _global_generators()}
        # A temporary object's address may be given to another: keep what was seen by address.
        self._alive: list[Any] = []
        self._visit(value, "", 0, None, None)
        # Asked twice in each visit: by functions of C over lists that are made once.
        self.holders = [holder for holder, _ in self.sizes]
        self.lengths = [size for _, size in self.sizes]
        self._getters = [holder.get for holder, _ in self.empty]
        self._keys = [key for _, key in self.empty]

    def find_resized_containers(self, ignored: set[int]) -> list[int]:
        """Return the identities of containers that have another length than when they were found."""
        if not any(map(operator.ne, map(len, self.holders), self.lengths)):
            return []
        return [id(holder) for holder, size in self.sizes if len(holder) != size and id(holder) not in ignored]

    def is_filled(self) -> bool:
        """Return whether a place that held None holds something now."""
        return any(map(operator.is_not, map(operator.call, self._getters, self._keys), itertools.repeat(None)))

    def _visit(self, value: Any, path: str, depth: int, holder: Any, key: Any) -> None:
        while hasattr(type(value), _TARGET):
            # A stand-in, which may be in its place while items are made: what it stands for is what counts.
            value = object.__getattribute__(value, _TARGET)
        if _is_instance(value, _PLAIN_KINDS) or id(value) in self._seen or depth > _DEEPEST or len(self._seen) > _MOST:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if is_generator(value):
            self.places.append(GeneratorPlace(path, value, holder, key))
        elif _is_instance(value, types.FunctionType):
            self._function(value, path, depth)
        elif _is_instance(value, (types.ModuleType, type)):
            return
        else:
            self._object(value, path, depth)

    def _search_items(self, items: Any, path: str, depth: int, holder: Any) -> None:
        for key, inner in items:
            self._visit(inner, f"{path}.{key}" if path else str(key), depth + 1, holder, key)

    def _object(self, value: Any, path: str, depth: int) -> None:
        if _is_instance(value, dict):
            if len(value) <= _WIDEST:
                self._mapping(value, path, depth)
        elif _is_instance(value, (list, tuple, deque)):
            # A long list holds samples, not generators.
            if len(value) <= _WIDEST and not _is_table(value):
                own = value if not isinstance(value, tuple) else None
                if own is not None:
                    self.sizes.append((own, len(own)))
                self._search_items(enumerate(list(value)), path, depth, own)
        elif _is_instance(value, functools.partial):
            self._search_items(
                [("func", value.func), ("args", value.args), ("keywords", value.keywords)], path, depth, None
            )
        elif _is_instance(value, (types.MethodType, staticmethod, classmethod)):
            owner = getattr(value, "__self__", None)
            self._search_items([("self", owner), ("func", value.__func__)], path, depth, None)
        elif top_of(type(value)) not in _DATA:
            self._instance(value, path, depth)

    def _instance(self, value: Any, path: str, depth: int) -> None:
        self._class(type(value), depth)
        kind: Any = type(value)
        attributes = object.__getattribute__(value, "__dict__") if _has_own_attributes(kind) else None
        if isinstance(attributes, dict) and len(attributes) <= _WIDEST:
            self._mapping(attributes, path, depth)
        for name in _slots(kind):
            inner = _slot(value, name)
            self._visit(inner, f"{path}.{name}" if path else name, depth + 1, value, name)

    def _mapping(self, mapping: dict[Any, Any], path: str, depth: int) -> None:
        self.sizes.append((mapping, len(mapping)))
        items = list(mapping.items())
        self.empty.extend((mapping, key) for key, inner in items if inner is None)
        self._search_items(items, path, depth, mapping)

    # -- code ------------------------------------------------------------------------------------

    def _class(self, kind: type, depth: int) -> None:
        for base in kind.__mro__:
            if id(base) in self._seen or top_of(base) in _LIBRARIES:
                continue
            self._seen.add(id(base))
            file = _file(vars(sys.modules[base.__module__])) if base.__module__ in sys.modules else base.__module__
            for name, member in list(vars(base).items()):
                path = f"{file}:{base.__qualname__}.{name}"
                inner = member.fget if _is_instance(member, property) else member
                if _is_instance(inner, (types.FunctionType, staticmethod, classmethod)) or is_generator(inner):
                    self._visit(inner, path, depth + 1, None, None)

    def _function(self, function: types.FunctionType, path: str, depth: int) -> None:
        self._search_items(enumerate(function.__defaults__ or ()), f"{path}.defaults", depth, None)
        self._search_items((function.__kwdefaults__ or {}).items(), f"{path}.defaults", depth, None)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self._visit(_contents(cell), f"{path}.closure.{name}", depth + 1, cell, name)
        self._search_items(list(vars(function).items()), path, depth, None)
        if top_of(function) in _LIBRARIES:
            return
        names, attributes = _names(function.__code__)
        self.asks_for_worker = self.asks_for_worker or not _WORKER_NAMES.isdisjoint((*names, *attributes))
        self.asks_for_seed = self.asks_for_seed or _SEED_NAME in (*names, *attributes)
        scope = function.__globals__
        file = _file(scope)
        for name in names:
            value: Any = scope.get(name)
            if _is_instance(value, types.ModuleType):
                self._module(value, attributes, depth)
            elif _is_instance(value, type):
                self._class(value, depth + 1)
            else:
                self._visit(value, f"{file}:{name}", depth + 1, scope, name)
            if value is None and name in scope:
                self.empty.append((scope, name))

    def _module(self, module: types.ModuleType, names: tuple[str, ...], depth: int) -> None:
        """Search, of a module that a function uses, only what the function names."""
        if module.__name__.partition(".")[0] in _LIBRARIES:
            return
        scope = vars(module)
        file = _file(scope)
        for name in names:
            value: Any = scope.get(name)
            if value is not None and not _is_instance(value, (types.ModuleType, type)):
                self._visit(value, f"{file}:{name}", depth + 1, scope, name)


def _is_table(rows: Any) -> bool:
    """Return whether a list has many plain values, or rows of them, such as paths and labels: none can hold a generator."""
    if len(rows) < _TABLE:
        return False
    kinds = set(map(type, rows))
    if kinds == {tuple}:
        kinds = {type(value) for row in rows for value in row}
    return kinds <= _PLAIN_TYPES


def _file(scope: dict[str, Any]) -> str:
    """Return a module by its file: run as a script or loaded twice it has another name."""
    return os.path.basename(str(scope.get("__file__") or scope.get("__name__") or "?"))


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globals that a piece of code reads, and the attributes, with those of the functions inside it."""
    scope: dict[str, None] = {}
    attributes: dict[str, None] = {}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            scope[str(step.argval)] = None
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes[str(step.argval)] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names(constant)
            scope.update(dict.fromkeys(inner[0]))
            attributes.update(dict.fromkeys(inner[1]))
    return tuple(scope), tuple(attributes)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_instance(value: Any, kinds: Any) -> bool:
    """Call `isinstance` without running code of the object: a proxy's `__class__` would make what it stands for."""
    return issubclass(type(value), kinds)


def _slot(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


@functools.lru_cache(maxsize=1024)
def _has_own_attributes(kind: Any) -> bool:
    """Return whether an object's `__dict__` is simply its attributes, and not a property that does something."""
    found = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return isinstance(found, types.GetSetDescriptorType)


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        if top_of(base) not in _LIBRARIES:
            found.extend([slots] if isinstance(slots, str) else list(slots))
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def top_of(what: Any) -> str:
    """Return the package that a class or function comes from."""
    return str(getattr(what, "__module__", None) or "").partition(".")[0]


def is_generator(value: Any) -> bool:
    """Return whether this is a source of random numbers with a state that can be read and set."""
    if _is_instance(value, random.Random):
        # SystemRandom has no state: it asks the system each time.
        return not _is_instance(value, random.SystemRandom)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and _is_instance(value, _numpy_kinds(numpy)):
        return True
    return torch is not None and _is_instance(value, torch.Generator)


@functools.cache
def _numpy_kinds(numpy: Any) -> tuple[type, ...]:
    kinds = numpy.random
    return (kinds.Generator, kinds.RandomState, kinds.BitGenerator, kinds.SeedSequence)


def _global_generators() -> list[Any]:
    found: list[Any] = [random._inst]
    if (numpy := sys.modules.get("numpy")) is not None:
        found.append(numpy.random.mtrand._rand)
    if (torch := sys.modules.get("torch")) is not None:
        found.append(torch.default_generator)
    return found
