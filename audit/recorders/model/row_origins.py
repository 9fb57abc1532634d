"""Which sample each row of a tensor came from, and one operation on tensors as the rules see it (see operations/)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

#: A sample as (its batch, its place there).
Sample = tuple[Any, int]


class MixedRow(NamedTuple):
    """A row that was mixed from several samples. It has the place of one of them, and is none of them."""

    batch: Any
    place: int
    #: The samples that went into it.
    parents: tuple[Sample, ...]


#: Where a row came from; None for a row that is not made of recorded samples.
Row = Sample | MixedRow | None


def parents_of(row: Row) -> tuple[Sample, ...]:
    """Return the samples that a row is made of: one for a row that is a sample, none for an unknown row."""
    if row is None:
        return ()
    return row.parents if isinstance(row, MixedRow) else (row,)


def mix_rows(own: Row, rows: list[Row]) -> Row:
    """Return a row that is made of all these rows, in the place of `own`; None if one of them is unknown."""
    parents = dict.fromkeys(parent for row in rows for parent in parents_of(row))
    if own is None or None in rows:
        return None
    place = own[0], own[1]
    return place if list(parents) == [place] else MixedRow(*place, tuple(parents))


@dataclass(frozen=True, slots=True)
class RowOrigins:
    """The samples that a tensor was made of."""

    rows: tuple[Row, ...]
    #: The axis that the samples lie along; None for a tensor that is known only as a whole.
    axis: int | None = 0
    #: What was done to the batch on the way, in order.
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperationCall:
    """One operation on tensors that has been done."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    lookup: Callable[[torch.Tensor], RowOrigins | None]

    @property
    def value(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)

    @property
    def origins(self) -> RowOrigins | None:
        """The origins of the first argument."""
        return self.lookup(self.value) if isinstance(self.value, torch.Tensor) else None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place or its name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def sizes(self, name: str) -> tuple[Any, ...]:
        """Return arguments that may be given one by one or as one sequence."""
        given = self.args[1:] or (self.kwargs.get(name, ()),)
        return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else tuple(given)


Origins = RowOrigins | None
Rule = Callable[[OperationCall], "Origins | list[Origins]"]
