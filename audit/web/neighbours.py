"""The samples before and after one in a gallery, found for many samples at a time.

Who goes through a gallery asks for the neighbours of one sample after the other, and each answer is a scan of all of them. So
one scan finds the samples around the one that is asked about, and the neighbours of those are known from then on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from audit.lineage.queries.browsing import Key, VisitPlace

#: How many samples one scan finds on either side.
MANY = 64
_MOST_GALLERIES, _MOST_SAMPLES = 32, 20_000

Neighbours = tuple[VisitPlace | None, VisitPlace | None]


class KnownNeighbours:
    """Neighbours by gallery and sample. A gallery is identified by its commit too, so that what is known stays true."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, dict[Key, Neighbours]] = OrderedDict()

    def find(self, gallery: Hashable, key: Key) -> Neighbours | None:
        """Return the samples before and after one; None if they are not known."""
        with self._lock:
            known = self._known.get(gallery)
            if known is None:
                return None
            self._known.move_to_end(gallery)
            return known.get(key)

    def add(self, gallery: Hashable, before: Sequence[VisitPlace], key: Key, after: Sequence[VisitPlace]) -> Neighbours:
        """Take in the samples around one, the nearest first on either side; return its neighbours."""
        epoch, index, visit = key
        here: VisitPlace = {"epoch": epoch, "index": index, "visit": visit}
        row: list[VisitPlace | None] = [*reversed(before), here, *after]
        # Fewer than were asked for: there the gallery begins or ends.
        row = [None, *row] if len(before) < MANY else row
        row = [*row, None] if len(after) < MANY else row
        found = {
            (one["epoch"], one["index"], one["visit"]): (row[place - 1], row[place + 1])
            for place, one in enumerate(row[1:-1], 1)
            if one is not None
        }
        with self._lock:
            known = self._known.setdefault(gallery, {})
            if len(known) > _MOST_SAMPLES:
                known.clear()
            known.update(found)
            while len(self._known) > _MOST_GALLERIES:
                self._known.popitem(last=False)
        return found[key]
