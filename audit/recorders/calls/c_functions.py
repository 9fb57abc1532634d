"""What a function in C does with values, by its name and owner: a profile function sees neither its arguments nor its result."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from audit.recorders.calls.callables import is_a
from audit.recorders.calls.data_values import carries_data

#: Packages whose functions change values.
PACKAGES = {"numpy", "torch", "cv2", "PIL", "scipy", "skimage"}
#: Functions that make a value out of none, or ask about one.
NO_CHANGES = {
    *("arange", "default_rng", "empty", "eye", "full", "get_rng_state", "imread", "is_tensor", "linspace", "load"),
    *("manual_seed", "normal", "ones", "open", "rand", "randint", "randn", "randperm", "seed", "tensor", "zeros"),
    *("dim", "item", "numel", "size", "tolist", "tobytes", "data_ptr", "getpixel", "close", "verify", "any", "all"),
    *("load_prepare", "getbands", "getbbox"),
}
#: Functions that give a value another class, or memory of its own, and leave its content as it is.
_CONVERSIONS = {
    *(
        "array",
        "asanyarray",
        "asarray",
        "ascontiguousarray",
        "contiguous",
        "copy",
        "detach",
        "from_numpy",
        "frombuffer",
    ),
    *("fromiter", "numpy", "reshape", "view"),
}
#: The same for functions in Python. Nearly every picture is converted to RGB when it is opened, also by torchvision's loader.
_PYTHON_CONVERSIONS = {
    *("atleast_1d", "atleast_2d", "atleast_3d", "convert", "deepcopy", "expand_dims", "fromarray", "load", "squeeze"),
}
#: Methods of a text that make another of it.
_TEXT_CHANGES = {
    *("capitalize", "casefold", "expandtabs", "join", "lower", "lstrip", "removeprefix", "removesuffix", "replace"),
    *("center", "encode", "format", "format_map", "ljust", "partition", "rjust", "rpartition", "rsplit"),
    *("rstrip", "split", "splitlines", "strip", "swapcase", "title", "translate", "upper", "zfill"),
}
#: Modules of Python whose functions compute with what they are given, and read nothing.
_PURE = {
    *("bisect", "builtins", "cmath", "collections", "functools", "gc", "heapq", "imp", "itertools", "locale", "math"),
    *("operator", "posix", "random", "sys", "thread", "time", "unicodedata", "warnings", "weakref"),
}
#: Methods of an open file that read nothing.
_HANDLING_METHODS = {"__enter__", "__exit__", "close", "flush", "seek", "tell"}
_CONTAINERS = (str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float, complex, range, type)


def changes_text(function: Any) -> bool:
    """Return whether a function in C makes a text of another: a method of a text or of a regular expression."""
    owner = getattr(function, "__self__", None)
    if type(owner).__module__ == "re":
        return True
    return is_a(owner, str) and function.__name__ in _TEXT_CHANGES


def makes_values(function: Any) -> bool:
    """Return whether a function in C may make a value out of none: it reads one, decodes bytes, or draws random numbers."""
    name, owner, package = _parts_of(function)
    if package in PACKAGES:
        return name in NO_CHANGES and name != "tensor"  # which torch_calls.py sees
    if _is_object(owner):
        return name not in _HANDLING_METHODS and not is_a(owner, _CONTAINERS) and not carries_data(owner)
    if is_a(owner, type) and owner.__module__ in ("builtins", "datetime"):
        return False
    return package not in _PURE or name == "next"


def changes_values(function: Any) -> bool:
    """Return whether a function in C changes values: a method of one, or a function of a package for arithmetic."""
    name, owner, package = _parts_of(function)
    if name in NO_CHANGES or name.startswith("__"):
        return False
    if _is_object(owner):
        return not is_a(owner, (str, list, tuple, dict)) and carries_data(owner)
    return package in PACKAGES


def converts_values(function: Any) -> bool:
    """Return whether a function that `changes_values` leaves the content as it is."""
    return is_conversion(_parts_of(function)[0])


def is_conversion(name: str) -> bool:
    """Return whether functions of a name leave the content of a value as it is, or finish its decoding."""
    return name in _CONVERSIONS or name in _PYTHON_CONVERSIONS


def name_of_c(function: Any) -> str:
    """Return the name of a function in C with its module, or with the class of its owner."""
    name, owner, package = _parts_of(function)
    return f"{type(owner).__name__}.{name}" if _is_object(owner) else f"{package}.{name}"


def is_simple_queue(function: Any) -> bool:
    """Return whether a function takes what another thread put into a queue in C."""
    name, owner, _ = _parts_of(function)
    return name == "get" and type(owner).__name__ == "SimpleQueue"


def _parts_of(function: Any) -> tuple[str, Any, str]:
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
    if not module and owner is None and vars(sys.modules.get("cv2", sys)).get(name) is function:
        module = "cv2"  # whose functions do not name it
    return name, owner, str(module).removeprefix("_").partition(".")[0]


def _is_object(owner: Any) -> bool:
    return owner is not None and not is_a(owner, (type, ModuleType))
