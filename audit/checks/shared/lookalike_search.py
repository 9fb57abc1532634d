"""Find pairs of pictures that may be copies of each other, few enough to be aligned one by one.

All pairs of 8×8 thumbnails are correlated. Among the pairs that correlate, a linear fit (the picture and how it changes
when it is moved or scaled) keeps the best few of each picture. A limit for all pictures together would not do: among
handwritten digits, different ones would take all places.
"""

from __future__ import annotations

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_alignment import COMPARED
from audit.checks.shared.picture_grids import pool, spans, unit_vectors

#: The side of the thumbnails that are correlated.
_SEARCH_SIDE = 8
#: The least correlation (of copies of which 3 % were cropped, 1 in 1,000 has less), and the share that the linear fit may leave unexplained, at 8×8 and at 16×16.
_CORRELATION, _LEFT_SEARCHED, _LEFT_COMPARED = 0.9, 0.1, 0.13
#: The best pairs of each picture that go on to the second fit, and to the alignment.
_MOST_FITTED, _MOST_ALIGNED = 32, 2
#: The most pairs that are aligned, as they are and mirrored: of handwritten digits, all that leave less than 8 % unexplained.
_MOST_PAIRS = 3_000
#: Pairs that leave less than this unexplained go on in any case: a picture may have many copies.
_SURE = 0.01
#: First pictures that are fitted together, and that are correlated with all others at a time: a table that the cache holds.
_ROWS, _TABLE = 500, 50
#: Pairs that are fitted together: their pictures fit into the cache too.
_PAIRS_AT_ONCE = 1_024


def candidate_pairs(thumbnails: Array) -> tuple[Array, Array]:
    """Return the pairs (i < j) that may be copies, and those of which one may be a mirrored copy of the other."""
    if not len(thumbnails):
        return np.empty((0, 2), np.int64), np.empty((0, 2), np.int64)
    pictures = thumbnails.astype(np.float32)
    search = _LookalikeSearch(pool(pictures, COMPARED), unit_vectors(pool(pictures, _SEARCH_SIDE)))
    found: tuple[list[tuple[Array, Array]], list[tuple[Array, Array]]] = ([], [])
    half = search.small.reshape(len(pictures), _SEARCH_SIDE, _SEARCH_SIDE)
    left, right = half[:, :, : _SEARCH_SIDE // 2], half[:, :, : _SEARCH_SIDE // 2 - 1 : -1]
    # The correlation with a picture is that of the even parts plus that of the odd parts; with its mirror image, less.
    even = np.ascontiguousarray((left + right).reshape(len(pictures), -1) / np.sqrt(np.float32(2)))
    odd = np.ascontiguousarray((left - right).reshape(len(pictures), -1) / np.sqrt(np.float32(2)))
    for start in range(0, len(pictures), _ROWS):
        pairs = [_find_correlated(even, odd, n) for n in range(start, min(start + _ROWS, len(pictures)), _TABLE)]
        both = [tuple(map(np.concatenate, zip(*(pair[n] for pair in pairs), strict=True))) for n in (False, True)]
        firsts = np.union1d(both[False][0], both[True][0])
        fit = _Fit(search.middle[firsts])
        for mirrored, (i, j) in enumerate(both):
            found[mirrored].append(search.best(firsts, fit, i, j, bool(mirrored)))
    return _best_of_all(found[False]), _best_of_all(found[True])


def _best_of_all(found: list[tuple[Array, Array]]) -> Array:
    """Return the pairs that leave least unexplained: where many different pictures are alike, those that fit badly are different."""
    pairs, left = map(np.concatenate, zip(*found, strict=True))
    if len(pairs) > _MOST_PAIRS:
        pairs = pairs[left <= max(np.partition(left, _MOST_PAIRS - 1)[_MOST_PAIRS - 1], _SURE)]
    best: Array = pairs
    return best


def _find_correlated(even: Array, odd: Array, start: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the pairs (i < j) of a few first pictures that correlate, as they are and with one mirrored; i is sorted."""
    rows = slice(start, start + _TABLE)
    one, two = even[rows] @ even[start:].T, odd[rows] @ odd[start:].T
    # Few pairs correlate in either way, so that both are looked up only there.
    places = np.flatnonzero(one + np.abs(two) >= _CORRELATION)
    i, j = np.divmod(places, one.shape[1])
    later = j > i
    places, i, j = places[later], i[later] + start, j[later] + start
    even_part, odd_part = one.ravel()[places], two.ravel()[places]
    plain, mirrored = even_part + odd_part >= _CORRELATION, even_part - odd_part >= _CORRELATION
    return (i[plain], j[plain]), (i[mirrored], j[mirrored])


class _Fit:
    """The spans of a few first pictures, at both sides."""

    def __init__(self, middle: Array) -> None:
        self.small, self.middle = spans(pool(middle, _SEARCH_SIDE)), spans(middle)


class _LookalikeSearch:
    """The pictures of one search, at the sides that are compared."""

    def __init__(self, middle: Array, small: Array) -> None:
        self.middle, self.small = middle, small
        side = middle.shape[1]
        units = unit_vectors(middle)
        flipped = units.reshape(-1, side, side)[:, :, ::-1].reshape(units.shape)
        tiny = small.reshape(-1, _SEARCH_SIDE, _SEARCH_SIDE)[:, :, ::-1].reshape(small.shape)
        #: The vectors of the second pictures: (small, middle), as they are and mirrored.
        self.others = ((small, units), (np.ascontiguousarray(tiny), np.ascontiguousarray(flipped)))

    def best(self, firsts: Array, fit: _Fit, i: Array, j: Array, mirrored: bool) -> tuple[Array, Array]:
        """Return the best pairs (i, j) of each of the first pictures, and what they leave unexplained; `i` is sorted, and `fit` is made of the `firsts`."""
        tiny, units = self.others[mirrored]
        places = np.searchsorted(firsts, i)
        crowded = np.bincount(places, minlength=len(firsts))[places] > _MOST_FITTED
        kept = ~crowded
        small = _best_fits(fit.small, tiny, places[crowded], j[crowded], _LEFT_SEARCHED, _MOST_FITTED)
        kept[crowded] = np.isfinite(small)
        i, j, places = i[kept], j[kept], places[kept]
        left = _best_fits(fit.middle, units, places, j, _LEFT_COMPARED, _MOST_ALIGNED)
        kept = np.isfinite(left)
        return np.stack([i[kept], j[kept]], axis=1), left[kept]


def _best_fits(spans: Array, others: Array, firsts: Array, seconds: Array, most_left: float, count: int) -> Array:
    """Return what each pair leaves unexplained; infinite if it is neither among the `count` best of its first picture nor explained almost completely.

    `firsts` are sorted places among the `spans`. First pictures with about as many pairs are fitted together.
    """
    found = np.full(len(firsts), np.inf, np.float32)
    rows, starts, sizes = np.unique(firsts, return_index=True, return_counts=True)
    widths = 2 ** np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    for width in np.unique(widths).tolist():
        alike = np.flatnonzero(widths == width)
        for chosen in np.array_split(alike, -(-len(alike) * width // _PAIRS_AT_ONCE)):
            beyond = np.arange(width) >= sizes[chosen, None]
            places = starts[chosen, None] + np.where(beyond, 0, np.arange(width))
            parts = others[seconds[places]] @ spans[rows[chosen]].transpose(0, 2, 1)
            left = np.where(beyond, np.inf, 1 - np.einsum("nwd,nwd->nw", parts, parts))
            last = np.partition(left, count - 1, axis=1)[:, count - 1] if width > count else np.full(len(left), np.inf)
            kept = left <= np.minimum(most_left, np.maximum(last, _SURE))[:, None]
            found[places[kept]] = left[kept]
    return found
