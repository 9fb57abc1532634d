"""Which sample each row of a tensor came from, and one operation on tensors as the rules see it (see operations/)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: A sample as (its batch, its place there); None for a row that is not a recorded sample.
Row = tuple[Any, int] | None


@dataclass(frozen=True, slots=True)
class RowOrigins:
    """The samples that a tensor was made of."""

    rows: tuple[Row, ...]
    #: The axis that the samples lie along; None for a tensor that is known only as a whole.
    axis: int | None = 0
    #: What was done to the batch on the way, in order.
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
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
Rule = Callable[[Call], "Origins | list[Origins]"]
