"""What a callable is made of: the Python function that a call of it runs, and the callables that it holds."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard, TypeVar

from audit.usercode.import_search import is_library as is_library_path

#: Identifies a callable. A bound method is a new object each time it is read, so its parts are used.
Key = tuple[int, int]

T = TypeVar("T")

MOST_ITEMS = 64
_OWN_PACKAGE = __name__.partition(".")[0]
_OWN_FOLDER = os.path.join(os.path.dirname(sys.modules[_OWN_PACKAGE].__file__ or ""), "")


def is_a(value: Any, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Return whether a value is of a class by its type alone; `isinstance` would ask a stand-in for something else."""
    return issubclass(type(value), kinds)


def key_of(target: Any) -> Key:
    """Return what identifies a callable while it is alive."""
    if is_a(target, MethodType):
        return (id(target.__func__), id(target.__self__))
    if is_a(target, functools.partial):
        return key_of(target.func)
    return (id(target), 0)


def function_of(target: Any) -> FunctionType | None:
    """Return the Python function that runs when `target` is called; None where that is not Python code.

    For a class it is the function that a call of its instances runs.
    """
    if is_a(target, FunctionType):
        return target
    if is_a(target, MethodType):
        return function_of(target.__func__)
    if is_a(target, functools.partial):
        return function_of(target.func)
    if is_a(target, functools._lru_cache_wrapper):
        return function_of(target.__wrapped__)
    kind = target if is_a(target, type) else type(target)
    # Every torch module is called through one function; what differs is `forward`.
    name = "forward" if hasattr(kind, "_wrapped_call_impl") else "__call__"
    own = None if is_a(target, type) else dict_of(target).get(name)
    if name == "forward" and own is not None:
        return function_of(own)
    found = find_in_class(kind, name)
    return found if is_a(found, FunctionType) else None


def find_in_class(kind: type, name: str) -> Any:
    """Return what a class or its bases define under a name, without binding it; None where there is nothing."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def unwrap(defined: Any) -> FunctionType | None:
    """Return the function behind a method, static method, class method, property or cache."""
    if is_a(defined, staticmethod) or is_a(defined, classmethod):
        defined = defined.__func__
    elif is_a(defined, property):
        defined = defined.fget
    elif is_a(defined, functools.cached_property):
        defined = defined.func
    if is_a(defined, functools._lru_cache_wrapper):
        defined = defined.__wrapped__
    return defined if is_a(defined, FunctionType) else None


def is_library(function: FunctionType) -> bool:
    """Return whether a function belongs to an installed package rather than to the user's own code."""
    module = function.__module__ or ""
    if module.partition(".")[0] in (_OWN_PACKAGE, *sys.builtin_module_names):
        return True
    return is_library_file(function.__code__.co_filename)


def describe_code(code: CodeType) -> str:
    """Return the name of a function, with its file and line."""
    return f"{code.co_qualname} ({os.path.relpath(code.co_filename)}:{code.co_firstlineno})"


@functools.lru_cache(maxsize=4096)
def is_library_file(path: str) -> bool:
    """Return whether a file of code belongs to an installed package, or to Python itself."""
    return path.startswith("<frozen") or is_library_path(_real_path(path))


def _real_path(path: str) -> str:
    """Return `os.path.realpath`; of the thousands of modules of a process, many lie in one folder."""
    folder, name = os.path.split(path)
    found = os.path.join(_real_folder(folder), name)
    return os.path.realpath(found) if os.path.islink(found) else found


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def is_own_file(path: str) -> bool:
    """Return whether a file of code belongs to audit itself."""
    return path.startswith(_OWN_FOLDER)


def is_standard_library(value: Any) -> bool:
    """Return whether a module, or what defines `__module__`, belongs to Python itself."""
    name = value.__name__ if is_a(value, ModuleType) else getattr(value, "__module__", None)
    return is_a(name, str) and name.partition(".")[0] in sys.stdlib_module_names - {"__main__"}


def list_held_values(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield everything that an object or a function holds, with the name it is held by."""
    if is_a(owner, MethodType):
        yield from list_held_values(owner.__self__)
    elif is_a(owner, functools.partial):
        yield "func", owner.func
        yield from ((str(place), value) for place, value in enumerate(owner.args, 1))
        yield from owner.keywords.items()
    elif is_a(owner, FunctionType):
        yield from closure_of(owner)
        yield from defaults_of(owner)
    elif not is_a(owner, (type, ModuleType)):
        yield from _attributes_of(owner)


def closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function has captured."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def defaults_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the default values of a function's parameters."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _attributes_of(owner: Any) -> Iterator[tuple[str, Any]]:
    attributes = dict_of(owner)
    if is_a(attributes, dict):
        for name, value in list(attributes.items()):
            if name == "_modules" and is_a(value, dict):
                yield from ((str(key), child) for key, child in value.items())
            else:
                yield name, value
    for base in type(owner).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if is_a(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and (found := _slot_value(owner, base, name)) is not None:
                yield name, found


def dict_of(owner: Any) -> Mapping[str, Any]:
    """Return the attributes of any object of the user's; none for an object that has no `__dict__` or must not be asked."""
    try:
        found = owner.__dict__
    except Exception:
        return {}
    return found if is_a(found, Mapping) else {}


def read_attribute(owner: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of any object of the user's; the default where there is none, or where it raises when it is asked."""
    try:
        return getattr(owner, name, default)
    except Exception:
        return default


def _slot_value(owner: Any, base: type, name: str) -> Any:
    mangled = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
    try:
        return vars(base)[mangled].__get__(owner)
    except Exception:
        return None


def items_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list, tuple or mapping that is short enough to hold transforms."""
    if is_a(value, (list, tuple)) and len(value) <= MOST_ITEMS:
        yield from ((str(place), item) for place, item in enumerate(value, 1))
    elif is_a(value, Mapping) and is_a(value, dict) and len(value) <= MOST_ITEMS:
        yield from ((str(key), item) for key, item in list(value.items()))


def list_held_callables(owner: Any) -> dict[Key, tuple[str, Any]]:
    """Return the callables that an object holds, in attributes or in lists, tuples and dicts of them, with a label each.

    The items of the only list of a container are labelled by their place alone, as in a Compose. A callable in an
    attribute of a library's object is a part of it (torchvision's Lambda, kornia's generators), unless it is a container.
    """
    single: list[tuple[str, Any]] = []
    groups: dict[str, list[tuple[str, Any]]] = {}
    for name, value in list_held_values(owner):
        if is_stage_like(value):
            if not _is_own_method(owner, value) and (is_users(owner) or is_container(value)):
                single.append((name, value))
        elif items := [(label, item) for label, item in _iterate_nested(value, 2) if not _is_own_method(owner, item)]:
            groups[name] = items
    if is_sequential(owner):
        groups, single = {"": [(str(place), child) for place, child in enumerate(owner.children(), 1)]}, []
    found: dict[Key, tuple[str, Any]] = {key_of(value): (name, value) for name, value in single}
    alone = len(groups) == 1 and not single and callable(owner)
    for name, items in groups.items():
        for label, value in items:
            found.setdefault(key_of(value), (label if alone else f"{name}.{label}", value))
    return found


def is_container(value: Any) -> bool:
    """Return whether a callable holds others in a list, tuple or dict, as a Compose does."""
    if is_sequential(value):
        return True
    return any(
        not is_stage_like(held) and any(not _is_own_method(value, item) for _, item in _iterate_nested(held, 1))
        for _, held in list_held_values(value)
    )


def is_sequential(value: Any) -> bool:
    """Return whether an object is a torch module that is made of its children."""
    return hasattr(type(value), "_wrapped_call_impl") and any(
        base.__module__ == "torch.nn.modules.container" for base in type(value).__mro__
    )


def is_users(value: Any) -> bool:
    """Return whether a function, or an object's class, is the user's own code rather than a library's."""
    if is_a(value, MethodType):
        value = value.__func__
    if is_a(value, functools.partial):
        return True
    if is_a(value, FunctionType):
        return not is_library(value)
    kind = type(value)
    if is_a(value, (type, ModuleType)) or kind.__module__ == "builtins":
        return False
    return any(is_a(item, FunctionType) and not is_library(item) for item in vars(kind).values())


def is_users_class(kind: type) -> bool:
    """Return whether a class is the user's own code rather than a library's."""
    return any(not is_library(function) for item in vars(kind).values() if (function := unwrap(item)) is not None)


def _is_own_method(owner: Any, value: Any) -> bool:
    return is_a(value, MethodType) and value.__self__ is owner


def _iterate_nested(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    for label, item in items_of(value):
        if is_stage_like(item):
            yield label, item
        elif depth:
            yield from ((f"{label}.{inner}", nested) for inner, nested in _iterate_nested(item, depth - 1))


def is_stage_like(value: Any) -> bool:
    """Return whether a value that something holds can be called as a stage: a callable that is not a class."""
    return callable(value) and not is_a(value, type)


def names_in(code: CodeType) -> set[str]:
    """Return the names that code and the functions inside it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if is_a(constant, CodeType):
            names |= names_in(constant)
    return names
