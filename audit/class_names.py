"""The names of classes: a run's list has one for each number, from 0 on, or is missing."""

from collections.abc import Sequence


def name_class(classes: Sequence[str] | None, number: int | None) -> str | None:
    """Return the name of a class; None where the list has none for it."""
    return classes[number] if classes is not None and number is not None and 0 <= number < len(classes) else None


def show_class(classes: Sequence[str] | None, number: int) -> str:
    """Return the name of a class for people, or its number where it has no name."""
    name = name_class(classes, number)
    return str(number) if name is None else name


def identify_class(classes: Sequence[str] | None, number: int | None) -> str | int | None:
    """Return what tells classes of two runs apart: the name, because each run may number them in its own way, else the number."""
    name = name_class(classes, number)
    return number if name is None else name
