"""What a stage is: its name, its parameters as JSON, and a digest of its source code.

Two runs of the same pipeline must describe it identically, in any process: no ids, no addresses.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import json
import math
import re
import types
from collections.abc import Callable
from typing import Any

from audit.texts import as_utf8
from audit.usercode import show_source

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Bookkeeping of nn.Module and of libraries, no parameters of the transform.
_NOT_PARAMETERS = {"training", "T_destination", "call_super_init", "dump_patches"}
_LARGEST = 64
#: So many containers may be inside of each other.
_DEEPEST = 16
#: Python refuses to write longer whole numbers in decimal digits.
_MOST_BITS = 1024


def name_of(stage: object) -> str:
    """Return the name people know it by: a class's or a function's own."""
    if isinstance(stage, functools.partial):
        return name_of(stage.func)
    given = getattr(stage, "__name__", None)
    return as_utf8(given if isinstance(given, str) else type(stage).__name__)


def qualname_of(stage: object) -> str:
    """Return the module and qualified name of the class or function."""
    if isinstance(stage, functools.partial):
        return qualname_of(stage.func)
    what = stage if inspect.isroutine(stage) or inspect.isclass(stage) else type(stage)
    return as_utf8(f"{getattr(what, '__module__', '?')}.{getattr(what, '__qualname__', type(stage).__name__)}")


def parameters_of(stage: object) -> str:
    """Return the stage's settings as JSON text with sorted keys."""
    return json.dumps(_parameters(stage), sort_keys=True, ensure_ascii=False)


def _parameters(stage: object) -> dict[str, Any]:
    if isinstance(stage, functools.partial):
        bound = {str(position): as_stable_json(value) for position, value in enumerate(stage.args)}
        return bound | {key: as_stable_json(value) for key, value in stage.keywords.items()}
    if isinstance(stage, types.MethodType):
        return _parameters(stage.__self__) if not inspect.isclass(stage.__self__) else {}
    if isinstance(stage, types.FunctionType):
        return _closure(stage)
    kind: Any = type(stage)
    found, drawn = getattr(stage, "__dict__", {}), _drawn_attributes(kind)
    return {
        as_utf8(key): as_stable_json(value)
        for key, value in found.items()
        if isinstance(key, str)
        and not key.startswith("_")
        and key not in _NOT_PARAMETERS
        and key not in drawn
        and not _is_stages(value)
    }


@functools.lru_cache(1024)
def _drawn_attributes(kind: type) -> frozenset[str]:
    """Return the attributes in which objects of a library's class keep what their last call drew."""
    match kind.__module__.partition(".")[0]:
        case "albumentations":
            return frozenset({"params"})
        case "monai":
            methods = [vars(base).get("randomize") for base in kind.__mro__]
            steps = (step for method in methods if inspect.isfunction(method) for step in dis.get_instructions(method))
            return frozenset(str(step.argval) for step in steps if step.opname == "STORE_ATTR")
    return frozenset()


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """Return the defaults and captured variables: what makes one lambda differ from another with the same code."""
    signature = inspect.signature(function)
    found = {p.name: as_stable_json(p.default) for p in signature.parameters.values() if p.default is not p.empty}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = as_stable_json(cell.cell_contents)
        except ValueError:
            continue
    return found


def _is_stages(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(callable(item) for item in value)


def as_stable_json(value: Any) -> Any:
    """Return `value` as JSON can hold it, the same in every process; what is large becomes its shape. Raises nothing."""
    return _as_json(value, ())


def _as_json(value: Any, inside: tuple[int, ...]) -> Any:
    """Return a value as JSON can hold it; `inside` are the identities of the containers that hold it, of which it may be one."""
    # An attribute of the user's may be anything, and raise anything when it is asked.
    try:
        return _convert(value, inside)
    except Exception:
        return f"<{qualname_of(type(value))}>"


def _convert(value: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(value, str):
        return as_utf8(value)
    if value is None or isinstance(value, (bool, int)):
        return hex(value)[:200] if isinstance(value, int) and value.bit_length() > _MOST_BITS else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, (int, str)) else value.name
    if isinstance(value, type) or id(value) in inside or len(inside) == _DEEPEST:
        return qualname_of(value)
    within = (*inside, id(value))
    if isinstance(value, dict):
        return {as_utf8(str(key)): _as_json(item, within) for key, item in list(value.items())[:_LARGEST]}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
        return [_as_json(item, within) for item in items[:_LARGEST]]
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        small = math.prod(value.shape) <= _LARGEST
        return _as_json(value.tolist(), within) if small else {"shape": list(value.shape), "dtype": str(value.dtype)}
    if callable(value):
        return qualname_of(value)
    return as_utf8(_ADDRESS.sub("", repr(value))[:200])


def code_digest_of(stage: object) -> str | None:
    """Return a digest of the source code of the class or function, or None for what has none."""
    if isinstance(stage, functools.partial):
        return code_digest_of(stage.func)
    what: Any = stage if inspect.isroutine(stage) or inspect.isclass(stage) else type(stage)
    return _code_digest(what.__func__ if isinstance(what, types.MethodType) else what)


@functools.lru_cache(maxsize=4096)
def _code_digest(what: Callable[..., Any] | type) -> str | None:
    try:
        with show_source(what):
            source = inspect.getsource(what)
    except (OSError, TypeError):
        code = getattr(what, "__code__", None)
        if code is None:
            return None
        source = f"{code.co_code.hex()} {code.co_names} {_ADDRESS.sub('', repr(code.co_consts))}"
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:32]
