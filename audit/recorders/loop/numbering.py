"""Numbers of epochs and visits.

The epoch that the user gives counts. Otherwise a loader that was iterated in the current epoch begins the next one when it is iterated again, and one
that was not joins it: so training and validation alternate within an epoch, and a test at the end belongs to the last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class EpochClock:
    """Epochs never go back by themselves."""

    def __init__(self) -> None:
        #: What the user said last; None when they say nothing.
        self._given: int | None = None
        self._current = 0
        self._iterated: set[int] = set()

    @property
    def current_epoch(self) -> int:
        """The epoch of what happens outside any loader."""
        return self._given if self._given is not None else self._current

    def set(self, number: int | None) -> None:
        """Take the epoch that the user gives; None to count epochs again."""
        self._given = number
        if number is not None and number != self._current:
            self._current = number
            self._iterated.clear()

    def begin(self, loader: int) -> int:
        """Begin a pass over a loader, by its key; return its epoch."""
        if self._given is None and loader in self._iterated:
            self._current += 1
            self._iterated.clear()
        self._iterated.add(loader)
        return self.current_epoch


#: Epochs counted index by index: the current one, and those whose items may still be on their way.
_OPEN = 3


class VisitCounter:
    """Gives 0, 1, 2… for each time that an index comes within an epoch."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, dict[int, int]] = OrderedDict()
        self._floors: dict[int, int] = {}

    def next(self, epoch: int, index: int) -> int:
        """Return the number of this visit."""
        return self.next_all(epoch, [index])[0]

    def next_all(self, epoch: int, indices: Sequence[int]) -> list[int]:
        """Return the numbers of these visits."""
        counts = self._open.get(epoch)
        if counts is None:
            counts = self._begin(epoch)
        floor, numbers = self._floors.get(epoch, 0), list[int]()
        first = dict.fromkeys(indices, floor + 1)
        if len(first) == len(indices) and counts.keys().isdisjoint(first):
            counts.update(first)
            return [floor] * len(first)
        for index in indices:
            number = counts.get(index, floor)
            counts[index] = number + 1
            numbers.append(number)
        return numbers

    @property
    def entries(self) -> int:
        """How many counts are held."""
        return sum(len(counts) for counts in self._open.values())

    def _begin(self, epoch: int) -> dict[int, int]:
        while len(self._open) >= _OPEN:
            closed, counts = self._open.popitem(last=False)
            self._floors[closed] = max(counts.values(), default=self._floors.get(closed, 0))
        self._open[epoch] = {}
        return self._open[epoch]
