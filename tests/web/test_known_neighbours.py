"""Going through a gallery asks the store once for many samples, and meets the same neighbours as asking for each."""

from __future__ import annotations

from audit.lineage.queries.browsing import VisitPlace
from audit.web.neighbours import MANY, KnownNeighbours


def place(index: int) -> VisitPlace:
    return {"epoch": 0, "index": index, "visit": 0}


def around(index: int, count: int) -> tuple[list[VisitPlace], list[VisitPlace]]:
    """The samples before and after one in a gallery of so many, as a scan finds them."""
    before = [place(n) for n in range(index - 1, max(-1, index - 1 - MANY), -1)]
    return before, [place(n) for n in range(index + 1, min(count, index + 1 + MANY))]


def test_a_walk_from_the_first_to_the_last() -> None:
    count, known, scans = 5 * MANY, KnownNeighbours(), 0
    for index in range(count):
        found = known.find("gallery", (0, index, 0))
        if found is None:
            scans += 1
            before, after = around(index, count)
            found = known.add("gallery", before, (0, index, 0), after)
        assert found == (place(index - 1) if index else None, place(index + 1) if index < count - 1 else None)
    assert scans <= 6
    assert known.find("another", (0, 1, 0)) is None


def test_a_gallery_of_few() -> None:
    known = KnownNeighbours()
    assert known.add("gallery", [], (0, 7, 0), []) == (None, None)
    assert known.add("pair", [], (0, 0, 0), [place(1)]) == (None, place(1))
    assert known.find("pair", (0, 1, 0)) == (place(0), None)
