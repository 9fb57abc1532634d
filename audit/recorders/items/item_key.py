"""The key that a dataset was asked for, where it is not a whole number: a replay asks with the same key.

Samplers give tuples (an index and a size), mappings or names. A key is stored as Python writes it, if it consists of
numbers, texts and plain containers of these. Of any other key a replay can only say what it was.
"""

from __future__ import annotations

import ast
import json
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audit.recorders.randomness.generator_states import GeneratorState
from audit.recorders.randomness.watch import KEY
from audit.texts import as_utf8

_MOST_SHOWN = 200
_MOST_STORED = 10_000


@dataclass(frozen=True, slots=True)
class ItemKey:
    """A key, as a recording has it."""

    shown: str
    #: The key itself, unless it could not be stored.
    value: Any = None
    is_stored: bool = True

    def at(self, place: int) -> Any:
        """Return the key of a sample that is at this place now."""
        if isinstance(self.value, tuple) and place >= 0:
            return (place, *self.value[1:])
        return self.value


def number_of(key: Any) -> int | None:
    """Return the number in the dataset that a key means: a whole number, or of a tuple the first; None for any other key."""
    try:
        return operator.index(key[0] if isinstance(key, tuple) and key else key)
    except TypeError:
        return None


def show_key(key: Any) -> str:
    """Return a key as text that can be stored."""
    return as_utf8(str(key))[:_MOST_SHOWN]


def key_states(key: Any) -> list[tuple[str, GeneratorState]]:
    """Return what is stored of a key with its visit: nothing for a whole number, which the sample's index is."""
    if not isinstance(key, tuple) and number_of(key) is not None:
        return []
    written = write_key(key)
    said = {"key": written} if written is not None else {"shown": show_key(key)}
    return [(KEY, GeneratorState(json.dumps(said).encode()))]


def write_key(key: Any) -> str | None:
    """Return a key as Python writes it; None for one that cannot be stored."""
    try:
        written = repr(_to_plain(key))
    except (TypeError, RecursionError):
        return None
    return written if len(written) <= _MOST_STORED else None


def read_key(written: str) -> Any:
    """Return the key that `write_key` wrote. This reads numbers, texts and containers, and runs nothing."""
    if len(written) > _MOST_STORED:
        raise ValueError("a key that is too long")
    return ast.literal_eval(written)


def read_recorded_key(states: Mapping[str, GeneratorState]) -> ItemKey | None:
    """Return the key that a visit was asked for by, if that was not a number."""
    if KEY not in states:
        return None
    said = json.loads(states[KEY].small)
    if "key" not in said:
        return ItemKey(said["shown"], is_stored=False)
    try:
        return ItemKey(said["key"][:_MOST_SHOWN], read_key(said["key"]))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ItemKey(said["key"][:_MOST_SHOWN], is_stored=False)


def _to_plain(part: Any) -> Any:
    """Return a part of a key without numpy's and torch's numbers; TypeError for what is not plain."""
    kind = type(part)
    if kind in (bool, int, str, bytes, type(None)) or (kind is float and math.isfinite(part)):
        return part
    if kind in (tuple, list):
        return kind(_to_plain(one) for one in part)
    if kind is dict:
        return {_to_plain(name): _to_plain(one) for name, one in part.items()}
    if getattr(part, "shape", None) == () and hasattr(part, "item"):
        return _to_plain(part.item())
    raise TypeError(f"a {kind.__name__} in a key cannot be stored")
