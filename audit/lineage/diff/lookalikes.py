"""Samples of two runs that show the same picture though neither bytes nor pixels agree: stored again, and often renamed.

Compares the stored previews of the loaded pictures, of those samples alone that nothing exact has matched. Two are a pair only if
each is by far the nearest to the other: pictures that look alike without being the same stay unmatched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from audit.sources.decode import open_picture
from audit.store.read.scratch import Scratch

Array = np.ndarray[Any, Any]
#: A visit as (index, visit).
Visit = tuple[int, int]

_SIDE = 16
#: More unmatched samples than this on one side are another dataset, and are not compared.
_MOST = 4_000
#: The least correlation of two grey thumbnails, and how far it is ahead of that with any other picture.
_ALIKE, _AHEAD = 0.98, 0.03

_PREVIEWS = """
    SELECT index, visit, any_value(data) FROM {rows} JOIN (
        SELECT index, visit, data FROM payloads
        WHERE {run} AND stage = 0 AND form = 'preview' AND encoding LIKE 'image/%'
    ) USING (index, visit) GROUP BY index, visit ORDER BY index, visit
"""


def find_lookalikes(scratch: Scratch, gone: tuple[str, str], come: tuple[str, str]) -> list[tuple[Visit, Visit]]:
    """Return the visits of two tables that show the same picture; each table comes with the condition of its run's rows."""
    counts = [scratch.row(f"SELECT count(*) FROM {rows}")[0] for rows, _ in (gone, come)]
    if not min(counts) > 0 or max(counts) > _MOST:
        return []
    (keys_a, ours), (keys_b, theirs) = (_thumbnails(scratch, *side) for side in (gone, come))
    return [(keys_a[a], keys_b[b]) for a, b in match_thumbnails(ours, theirs)]


def match_thumbnails(ours: Array, theirs: Array) -> list[tuple[int, int]]:
    """Return the places of pictures (n, pixels) that are each other's nearest, far ahead of any other."""
    if not len(ours) or not len(theirs):
        return []
    alike = _standardised(ours) @ _standardised(theirs).T
    pairs = []
    for a, b in enumerate(alike.argmax(axis=1).tolist()):
        others = np.concatenate([np.delete(alike[a], b), np.delete(alike[:, b], a)])
        if alike[a, b] >= _ALIKE and (not len(others) or alike[a, b] - others.max() >= _AHEAD):
            pairs.append((a, b))
    return pairs


def _standardised(pictures: Array) -> Array:
    """Return each picture with mean 0 and length 1; one that is all of one grey is 0, and like nothing."""
    centred = pictures - pictures.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(np.where(lengths > 1.0, centred / np.maximum(lengths, 1.0), 0.0))


def _thumbnails(scratch: Scratch, rows: str, run: str) -> tuple[list[Visit], Array]:
    keys: list[Visit] = []
    found: list[Array] = []
    for index, visit, data in scratch.rows(_PREVIEWS.format(rows=rows, run=run)):
        try:
            with open_picture(data) as opened:
                small = opened.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
        except (OSError, ValueError, Image.DecompressionBombError):
            continue
        keys.append((index, visit))
        found.append(np.asarray(small, np.float32).ravel())
    return keys, np.array(found, np.float32).reshape(len(keys), _SIDE * _SIDE)
