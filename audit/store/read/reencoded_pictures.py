"""Samples of two runs that show the same picture though neither bytes nor pixels agree: stored again, and often renamed.

Compares the stored previews of the loaded pictures, of those samples alone that nothing exact has matched. Two are a pair only if
each is by far the nearest to the other: pictures that look alike without being the same stay unmatched. The SQL of
`store.comparison` calls `FUNCTION`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from audit.picture_formats import open_picture

if TYPE_CHECKING:
    import duckdb

Array = np.ndarray[Any, Any]
FUNCTION = "match_pictures"

_SIDE = 16
#: The least correlation of two grey thumbnails, and how far it is ahead of that with any other picture.
_ALIKE, _AHEAD = 0.98, 0.03
_KEYS = "STRUCT(run_id VARCHAR, epoch BIGINT, index BIGINT, visit BIGINT)[]"
_PAIRS = "STRUCT(index_a BIGINT, visit_a BIGINT, index_b BIGINT, visit_b BIGINT)[]"
_PREVIEWS = """
    SELECT index, visit, any_value(data) FROM payloads
    WHERE run_id = ? AND epoch = ? AND index IN ({indices}) AND stage = 0 AND form = 'preview' AND encoding LIKE 'image/%'
    GROUP BY index, visit ORDER BY index, visit
"""


class VisitKey(TypedDict):
    """A visit; all those of one list are of one run and epoch."""

    run_id: str
    epoch: int
    index: int
    visit: int


class PairOfVisits(TypedDict):
    """Two visits that show the same picture."""

    index_a: int
    visit_a: int
    index_b: int
    visit_b: int


#: Runs a query with parameters over the same store.
Ask = Callable[[str, list[Any]], list[tuple[Any, ...]]]


def register(connection: duckdb.DuckDBPyConnection, ask: Ask) -> None:
    """Let queries of this connection call `match_pictures(visits of A, visits of B)`."""

    def match_pictures(ours: Sequence[VisitKey], theirs: Sequence[VisitKey]) -> list[PairOfVisits]:
        if not ours or not theirs:
            return []
        (keys_a, small_a), (keys_b, small_b) = _thumbnails(ask, ours), _thumbnails(ask, theirs)
        return [
            {"index_a": a[0], "visit_a": a[1], "index_b": b[0], "visit_b": b[1]}
            for a, b in ((keys_a[a], keys_b[b]) for a, b in match_thumbnails(small_a, small_b))
        ]

    connection.create_function(FUNCTION, match_pictures, [_KEYS, _KEYS], _PAIRS)


def match_thumbnails(ours: Array, theirs: Array) -> list[tuple[int, int]]:
    """Return the places of pictures (n, pixels) that are each other's nearest, far ahead of any other."""
    if not len(ours) or not len(theirs):
        return []
    alike = _standardise(ours) @ _standardise(theirs).T
    pairs = []
    for a, b in enumerate(alike.argmax(axis=1).tolist()):
        others = np.concatenate([np.delete(alike[a], b), np.delete(alike[:, b], a)])
        if alike[a, b] >= _ALIKE and (not len(others) or alike[a, b] - others.max() >= _AHEAD):
            pairs.append((a, b))
    return pairs


def _standardise(pictures: Array) -> Array:
    """Return each picture with mean 0 and length 1; one that is all of one grey is 0, and like nothing."""
    centred = pictures - pictures.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(np.where(lengths > 1.0, centred / np.maximum(lengths, 1.0), 0.0))


def _thumbnails(ask: Ask, visits: Sequence[VisitKey]) -> tuple[list[tuple[int, int]], Array]:
    """Return the visits, as (index, visit), whose previews can be decoded, and their grey thumbnails."""
    from PIL import Image

    wanted = {(key["index"], key["visit"]) for key in visits}
    query = _PREVIEWS.format(indices=", ".join(str(index) for index in sorted({index for index, _ in wanted})))
    keys: list[tuple[int, int]] = []
    found: list[Array] = []
    for index, visit, data in ask(query, [visits[0]["run_id"], visits[0]["epoch"]]):
        if (index, visit) not in wanted:
            continue
        try:
            with open_picture(data) as opened:
                small = opened.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
        keys.append((index, visit))
        found.append(np.asarray(small, np.float32).ravel())
    return keys, np.array(found, np.float32).reshape(len(keys), _SIDE * _SIDE)
