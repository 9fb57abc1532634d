"""Orders of classes that a model may have been trained with instead of the dataset's."""

from __future__ import annotations

import re


def class_orders(classes: list[str]) -> dict[str, list[int]]:
    """Return for each likely order the label that each output would mean; orders that change nothing are left out."""
    count = len(classes)
    if count < 2:
        return {}
    orders = {
        "with the classes sorted as text": sorted(classes),
        "with the classes sorted without regard to case": sorted(classes, key=str.casefold),
        "with the classes sorted by the numbers in their names": sorted(classes, key=_natural_key),
        "with the classes in reverse order": classes[::-1],
    }
    found = {description: [classes.index(name) for name in order] for description, order in orders.items()}
    found["with every class moved up by one"] = [(n + 1) % count for n in range(count)]
    found["with every class moved down by one"] = [(n - 1) % count for n in range(count)]
    same = list(range(count))
    return {description: order for description, order in found.items() if order != same and sorted(order) == same}


def _natural_key(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts if part]
