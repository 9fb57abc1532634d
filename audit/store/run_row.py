"""A run's row as a manifest keeps it: read back, with every value of the kind that its column has.

A manifest may come from anyone: what a table cannot hold is refused here, once, and not met by each reader.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, get_args, get_type_hints

from audit.records import Run, Status, as_tags
from audit.texts import as_utf8

_TIMES = ("started_at", "finished_at")
#: Keys of a recipe by the kind of their values, each of which may be null or absent.
_TEXTS = ("dataset", "pipeline", "model", "arch", "mode", "device", "output", "capture", "capture_where")
_NUMBERS = ("seed", "limit", "batch_size", "workers", "capture_budget")
_OBJECTS = ("code", "builders", "loaders", "several_datasets")
_RECIPE: dict[str, type] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys((*_OBJECTS, "layers", "graded_outputs"), list),
}


def parse_run(row: dict[str, Any]) -> Run:
    """Return the row; keys of a later minor version are left aside. ValueError for a value of a wrong kind."""
    found: dict[str, Any] = {}
    for name, (check, optional) in _kinds().items():
        if name in row:
            value = row[name]
            kind = type(value)
            # Of a thousand runs, calls for plain values would be half of what opening a store takes.
            if value is None:
                is_plain = optional
            elif kind is str:
                is_plain = check is _text and value.isascii() and name not in _TIMES
            elif kind is int:
                is_plain = check is _whole_number and -(2**63) <= value < 2**63
            else:
                is_plain = check is _EMPTY.get(kind) and not value
            found[name] = value if is_plain else _check_field(name, value, check, optional)
    return Run(**found)


def _check_field(name: str, value: Any, check: Callable[[str, Any], Any], optional: bool) -> Any:
    if value is None:
        found, is_right = None, optional
    else:
        found = check(name, value)
        is_right = found is not None
    if not is_right:
        raise ValueError(f"its {name} is {str(value)[:80]!r}")
    return found


def _text(name: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    if name in _TIMES and value:
        datetime.fromisoformat(value)
    return as_utf8(value)


def _whole_number(_: str, value: Any) -> int | None:
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def _number(_: str, value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _texts(_: str, value: Any) -> list[str] | None:
    is_right = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return [as_utf8(one) for one in value] if is_right else None


def _object(name: str, value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    if name == "versions":
        int(value.get("digests", 1))
    if name == "recipe":
        _check_recipe(value)
    return as_tags(value) if name == "tags" else value


def _check_recipe(recipe: dict[str, Any]) -> None:
    """Raise ValueError where a part of a recipe that code works with is of another kind than any recording writes."""
    for key, value in recipe.items():
        kind = _RECIPE.get(key)
        if kind is None or value is None:
            continue
        is_right = isinstance(value, kind)
        if is_right and key in _OBJECTS:
            is_right = all(isinstance(entry, dict) and _has_code_files(key, entry) for entry in value)
        if not is_right:
            raise ValueError(f"its recipe says {key} = {str(value)[:80]!r}")


def _has_code_files(key: str, entry: dict[str, Any]) -> bool:
    """Return whether an entry of `code`, or the code of a builder, names files as recordings do."""
    files = [entry] if key == "code" else entry.get("code", ()) if key == "builders" else ()
    return isinstance(files, list | tuple) and all(map(_is_code_file, files))


def _is_code_file(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), str) for name in ("module", "file"))
        and isinstance(entry.get("sha256"), str | None)
    )


#: What checks a value of these types: an empty one is always right.
_EMPTY: dict[type, Callable[[str, Any], Any]] = {dict: _object, list: _texts}
_CHECKS: dict[Any, Callable[[str, Any], Any]] = {
    str: _text,
    Status: _text,
    int: _whole_number,
    float: _number,
    list[str]: _texts,
    dict[str, str]: _object,
    dict[str, Any]: _object,
}


@cache
def _kinds() -> dict[str, tuple[Callable[[str, Any], Any], bool]]:
    """Return for each field of a run how its value is checked, and whether it may be null."""
    hints = {name: hint for name, hint in get_type_hints(Run).items() if name in Run.__dataclass_fields__}
    kinds = {}
    for name, hint in hints.items():
        optional = type(None) in get_args(hint)
        kind = next(one for one in get_args(hint) if one is not type(None)) if optional else hint
        kinds[name] = _CHECKS[kind], optional
    return kinds
