"""A name of its own for each model and each batch transform of a recording."""

from __future__ import annotations

import itertools
from collections.abc import Collection


def unused_name(name: str, taken: Collection[str]) -> str:
    """Return the name if it is not taken, or else the name with a number after it."""
    numbers = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(candidate for candidate in numbers if candidate not in taken)
