"""What the first items without a label say about where it may be. Nothing is chosen: the user names the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from audit.recorders.items.item_parts import fields_of, input_place, label_number


def describe_candidates(items: Sequence[tuple[int, Any]]) -> str | None:
    """Describe items (each with its index) that may hold a label at an unknown place; None if they can hold none."""
    form = next((text for _, item in items if (text := describe_form(item)) is not None), None)
    if form is None:
        return None
    columns = _whole_numbers(items)
    if not columns:
        return form
    return f"{form}; candidates: {', '.join(_describe(place, found) for place, found in columns.items())}"


def _whole_numbers(items: Sequence[tuple[int, Any]]) -> dict[Any, list[tuple[int, int]]]:
    """Return the places that hold a whole number in every item: pairs of the item's index and that number."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for index, item in items:
        for place, part in _places(item):
            if (number := label_number(part)) is not None:
                found.setdefault(place, []).append((index, number))
    return {place: pairs for place, pairs in found.items() if len(pairs) == len(items)}


def whole_numbers(item: Any) -> list[int]:
    """Return the whole numbers that an item holds beside its input."""
    return [number for _, part in _places(item) if (number := label_number(part)) is not None]


def _places(item: Any) -> list[tuple[Any, Any]]:
    if isinstance(item, Mapping):
        return list(item.items())
    if (fields := fields_of(item)) is not None:
        return list(fields.items())
    if not isinstance(item, (tuple, list)) or not item:
        return []
    given = input_place(item)
    return [(place, part) for place, part in enumerate(item) if place != given]


def _describe(place: Any, pairs: list[tuple[int, int]]) -> str:
    numbers = [number for _, number in pairs]
    spread = f"{min(numbers)} to {max(numbers)}" if min(numbers) != max(numbers) else str(numbers[0])
    is_index = len(pairs) > 1 and all(index == number for index, number in pairs)
    return f"label={place!r} ({spread}{', equal to the index' if is_index else ''})"


def describe_form(item: Any) -> str | None:
    """Describe an item that may hold a label at an unknown place; None for one that can hold none."""
    if isinstance(item, Mapping) and len(item) > 1:
        return f"a mapping with the keys {', '.join(repr(str(key))[:40] for key in list(item)[:12])}"
    if isinstance(item, (tuple, list)) and len(item) > 1:
        return f"a {type(item).__name__} of {', '.join(type(part).__name__ for part in item[:8])}"
    if (fields := fields_of(item)) is not None:
        return f"a {type(item).__name__} with the fields {', '.join(list(fields)[:12])}"
    return None
