"""Find pairs of pictures that may be copies of each other, few enough to be aligned one by one.

All pairs of 8×8 thumbnails are correlated. Among the pairs that correlate, a linear fit (the picture and how it changes
when it is moved or scaled) keeps the best few of each picture. A limit for all pictures together would not do: among
handwritten digits, different ones would take all places.
"""

from __future__ import annotations

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_alignment import COMPARED
from audit.checks.shared.picture_grids import pooled, spans, unit_vectors

#: The side of the thumbnails that are correlated.
_SEARCHED = 8
#: The least correlation, and the share that the linear fit may leave unexplained, at 8×8 and at 16×16.
_CORRELATION, _LEFT_SEARCHED, _LEFT_COMPARED = 0.85, 0.1, 0.13
#: The best pairs of each picture that go on to the second fit, and to the alignment.
_MOST_FITTED, _MOST_ALIGNED = 64, 2
#: Pairs that leave less than this unexplained go on in any case: a picture may have many copies.
_SURE = 0.01
#: First pictures that are fitted together, and that are correlated with all others at a time: a table that the cache holds.
_ROWS, _TABLE = 500, 50


def candidate_pairs(thumbnails: Array) -> tuple[Array, Array]:
    """Return the pairs (i < j) that may be copies, and those of which one may be a mirrored copy of the other."""
    pictures = thumbnails.astype(np.float32)
    search = _LookalikeSearch(pooled(pictures, COMPARED), unit_vectors(pooled(pictures, _SEARCHED)))
    found: tuple[list[Array], list[Array]] = ([], [])
    half = search.small.reshape(len(pictures), _SEARCHED, _SEARCHED)
    left, right = half[:, :, : _SEARCHED // 2], half[:, :, : _SEARCHED // 2 - 1 : -1]
    # The correlation with a picture is that of the even parts plus that of the odd parts; with its mirror image, less.
    even = np.ascontiguousarray((left + right).reshape(len(pictures), -1) / np.sqrt(np.float32(2)))
    odd = np.ascontiguousarray((left - right).reshape(len(pictures), -1) / np.sqrt(np.float32(2)))
    for start in range(0, len(pictures), _ROWS):
        pairs = [_correlated(even, odd, n) for n in range(start, min(start + _ROWS, len(pictures)), _TABLE)]
        for mirrored in (False, True):
            i, j = (np.concatenate(parts) for parts in zip(*(pair[mirrored] for pair in pairs), strict=True))
            found[mirrored].append(search.best(i, j, mirrored))
    return np.concatenate(found[False]), np.concatenate(found[True])


def _correlated(even: Array, odd: Array, start: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the pairs (i < j) of a few first pictures that correlate, as they are and with one mirrored; i is sorted."""
    rows = slice(start, start + _TABLE)
    one, two = even[rows] @ even[start:].T, odd[rows] @ odd[start:].T
    places = [np.divmod(np.flatnonzero(table >= _CORRELATION), table.shape[1]) for table in (one + two, one - two)]
    plain, mirrored = ((i[j > i] + start, j[j > i] + start) for i, j in places)
    return plain, mirrored


class _LookalikeSearch:
    """The pictures of one search, at the sides that are compared."""

    def __init__(self, middle: Array, small: Array) -> None:
        self.middle, self.small = middle, small
        side = middle.shape[1]
        units = unit_vectors(middle)
        flipped = units.reshape(-1, side, side)[:, :, ::-1].reshape(units.shape)
        tiny = small.reshape(-1, _SEARCHED, _SEARCHED)[:, :, ::-1].reshape(small.shape)
        #: The vectors of the second pictures: (small, middle), as they are and mirrored.
        self.others = ((small, units), (np.ascontiguousarray(tiny), np.ascontiguousarray(flipped)))

    def best(self, i: Array, j: Array, mirrored: bool) -> Array:
        """Return the best pairs of each first picture; `i` is sorted."""
        found: list[tuple[int, int]] = []
        firsts, starts = np.unique(i, return_index=True)
        if len(firsts):
            middle = self.middle[firsts]
            small_spans = spans(pooled(middle, _SEARCHED))
            middle_spans = spans(middle)
            for place, candidates in enumerate(np.split(j, starts[1:])):
                kept = self._best_of(small_spans[place], middle_spans[place], candidates, mirrored)
                found += [(int(firsts[place]), int(other)) for other in kept]
        return np.array(found, np.int64).reshape(-1, 2)

    def _best_of(self, small: Array, middle: Array, candidates: Array, mirrored: bool) -> Array:
        tiny, units = self.others[mirrored]
        if len(candidates) > _MOST_ALIGNED:
            candidates = _fitted(small, tiny, candidates, _LEFT_SEARCHED, _MOST_FITTED)
        return _fitted(middle, units, candidates, _LEFT_COMPARED, _MOST_ALIGNED)


def _fitted(span: Array, others: Array, candidates: Array, most_left: float, count: int) -> Array:
    """Return at most `count` candidates that the span explains best, and all that it explains almost completely."""
    left = 1 - ((span @ others[candidates].T) ** 2).sum(axis=0)
    good = left <= most_left
    if good.sum() > count:
        good &= left <= max(np.partition(left, count - 1)[count - 1], _SURE)
    kept: Array = candidates[good]
    return kept
