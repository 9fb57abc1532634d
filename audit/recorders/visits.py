"""How often an index was drawn within an epoch: what makes a visit's key unique.

Pure counting. Only the last few epochs are counted index by index, so memory does not grow with epochs; of an older epoch
only the largest number is kept, and whoever goes back to it counts on from there, so that no key is given out twice.
"""

from __future__ import annotations

from collections import OrderedDict

#: Epochs counted index by index: the current one, and those whose items may still be on their way.
_OPEN = 3


class VisitCounter:
    """Gives 0, 1, 2… for each time that an index comes within an epoch."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, dict[int, int]] = OrderedDict()
        self._floors: dict[int, int] = {}

    def next(self, epoch: int, index: int) -> int:
        """The number of this visit."""
        counts = self._open.get(epoch)
        if counts is None:
            counts = self._begin(epoch)
        number = counts.get(index, self._floors.get(epoch, 0))
        counts[index] = number + 1
        return number

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
