"""The samples that a condition picks, a block at a time, and their small pictures.

A block begins after the last sample of the block before it, not at an offset: the thousandth costs what
the first did. The condition is a user's SQL, so what is built here must run in `store.sandbox`; nothing
here runs it. Pictures are asked for by visit and stage, with no SQL from outside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from audit.errors import UsageError
from audit.records import Run
from audit.store.read.reader import Reader
from audit.tables import SampleRow
from audit.values import Preview

#: What a block can be sorted by: the expression, and whether the largest come first.
ORDERS: dict[str, tuple[str, bool]] = {
    "loss": ("loss", True),
    "-loss": ("loss", False),
    "confidence": ("confidence", True),
    "-confidence": ("confidence", False),
    "margin": ("margin", False),
    "entropy": ("entropy", True),
    "index": ("index", False),
}
_SHOWN = "epoch, index, visit, label, predicted, confidence, correct, loss"
_NAMES = "label_name, predicted_name"

Key = tuple[int, int, int]


class VisitPlace(TypedDict):
    """The visit of a run that a page can lead to."""

    epoch: int
    index: int
    visit: int


class GalleryRow(VisitPlace):
    """One sample of a gallery."""

    label: int | None
    predicted: int | None
    confidence: float | None
    correct: bool | None
    loss: float | None
    label_name: str | None
    predicted_name: str | None
    status: str
    sort_key: float


@dataclass(frozen=True, slots=True)
class GalleryBlock:
    """The queries of one block (try them in order: the first needs fewer columns) and their parameters."""

    queries: tuple[str, ...]
    parameters: list[Any]
    order: str

    def cursor(self, row: GalleryRow) -> str:
        """Return where the next block begins, given the last row of this one."""
        return json.dumps([row["sort_key"], row["epoch"], row["index"], row["visit"]], separators=(",", ":"))


def block(
    run: Run,
    condition: str,
    *,
    order: str = "loss",
    after: str | None = None,
    limit: int = 60,
    backwards: bool = False,
    including: bool = False,
) -> GalleryBlock:
    """The samples of a run that meet an SQL condition, after a cursor; `backwards`: those before it, nearest first.

    `including` begins with the sample at the cursor itself.
    """
    descending = _expression(order)[1] != backwards
    parameters: list[Any] = [run.run_id]
    beyond = ""
    if after is not None:
        beyond, given = _beyond(after, descending, backwards, including)
        parameters += given
    way, other = ("DESC" if descending else "ASC"), ("DESC" if backwards else "ASC")
    queries = tuple(
        f"SELECT * FROM ({inner}) {beyond} "
        f"ORDER BY sort_key {way}, index {other}, epoch {other}, visit {other} LIMIT {int(limit)}"
        for inner in _ordered_samples(run, condition, order)
    )
    return GalleryBlock(queries, parameters, order)


def place(run: Run, condition: str, key: Key, *, order: str) -> GalleryBlock:
    """The one sample that a key names, if it meets the condition: its cursor says where it is in the order."""
    queries = tuple(
        f"SELECT * FROM ({inner}) WHERE epoch = ? AND index = ? AND visit = ? LIMIT 1"
        for inner in _ordered_samples(run, condition, order)
    )
    return GalleryBlock(queries, [run.run_id, *key], order)


def earlier(run: Run, condition: str, cursor: str, *, order: str) -> GalleryBlock:
    """How many samples come before a cursor."""
    beyond, given = _beyond(cursor, not _expression(order)[1], True, False)
    queries = tuple(
        f"SELECT count(*) AS earlier FROM ({inner}) {beyond}" for inner in _ordered_samples(run, condition, order)
    )
    return GalleryBlock(queries, [run.run_id, *given], order)


def sources(reader: Reader, run: Run, keys: Iterable[Key]) -> dict[Key, str | None]:
    """The source of each visit (epoch, index, visit)."""
    wanted = set(keys)
    if not wanted:
        return {}
    indices = ", ".join(str(int(index)) for index in sorted({key[1] for key in wanted}))
    rows = reader.sql(
        f"SELECT epoch, index, visit, source FROM samples WHERE run_id = ? AND index IN ({indices})",
        parameters=[run.run_id],
    ).fetchall()
    return {(row[0], row[1], row[2]): row[3] for row in rows if (row[0], row[1], row[2]) in wanted}


class HistoryRow(VisitPlace):
    """What a model said of one sample at one visit."""

    predicted: int | None
    predicted_name: str | None
    confidence: float | None
    correct: bool | None
    loss: float | None


def history(reader: Reader, run: Run, index: int, most: int = 60) -> list[HistoryRow]:
    """The visits of a sample over the epochs, with its predictions; the last ones where there are many."""
    query = (
        "SELECT epoch, index, visit, predicted, predicted_name, confidence, correct, loss FROM graded_predictions "
        "WHERE run_id = ? AND index = ? ORDER BY epoch DESC, visit DESC LIMIT ?"
    )
    found = reader.sql(query, parameters=[run.run_id, index, most]).rows(HistoryRow)
    return list(reversed(found))


def tags(reader: Reader, run: Run, indices: Iterable[int]) -> dict[int, list[str]]:
    """The tags of each sample that has any."""
    listed = ", ".join(str(int(index)) for index in sorted(set(indices)))
    if not listed:
        return {}
    query = f"SELECT index, list_sort(list(tag)) FROM tags WHERE run_id = ? AND index IN ({listed}) GROUP BY index"
    return {row[0]: row[1] for row in reader.sql(query, parameters=[run.run_id]).fetchall()}


def tag_names(reader: Reader, run: Run) -> dict[str, int]:
    """The tags that samples of a run have, with how many have each."""
    query = "SELECT tag, count(*) FROM tags WHERE run_id = ? GROUP BY tag ORDER BY tag"
    return dict(reader.sql(query, parameters=[run.run_id]).fetchall())


def _expression(order: str) -> tuple[str, bool]:
    if order not in ORDERS:
        raise UsageError(f"Samples cannot be sorted by {order!r}.", hint=f"Choose one of {', '.join(ORDERS)}.")
    return ORDERS[order]


def _ordered_samples(run: Run, condition: str, order: str) -> tuple[str, ...]:
    """The samples with their sort key, as queries to be tried in order: the first needs fewer columns."""
    expression, descending = _expression(order)
    # A missing or non-finite value sorts last either way; one number makes comparisons total.
    last = "-1e308" if descending else "1e308"
    key = f"CASE WHEN isfinite(({expression})::DOUBLE) THEN ({expression})::DOUBLE ELSE {last} END"
    # Two columns of text cost more than all the rest: a run that lists its classes has the names already.
    names = "NULL AS label_name, NULL AS predicted_name" if run.classes else _NAMES
    queries = tuple(
        f"SELECT {_SHOWN}, {names}, {extra}, {key} AS sort_key FROM {table} "
        f"WHERE run_id = ? AND ({condition or 'true'}\n)"
        for table, extra in (("graded_predictions", "'ok' AS status"), ("lineage", "status"))
    )
    # Samples of a run without a graded prediction are only in the second.
    return queries if run.graded else queries[1:]


def _beyond(cursor: str, descending: bool, backwards: bool, including: bool) -> tuple[str, list[Any]]:
    value, epoch, index, visit = _cursor(cursor)
    compare, tie = ("<" if descending else ">"), ("<" if backwards else ">") + ("=" if including else "")
    text = f"WHERE sort_key {compare}= ? AND (sort_key <> ? OR (index, epoch, visit) {tie} (?, ?, ?))"
    return text, [value, value, index, epoch, visit]


def with_names(run: Run, samples: list[GalleryRow]) -> list[GalleryRow]:
    """Return the rows of a block with the names of their classes."""
    classes = run.classes or []
    for row in samples:
        label, predicted = row["label"], row["predicted"]
        if label is not None and 0 <= label < len(classes):
            row["label_name"] = classes[label]
        if predicted is not None and 0 <= predicted < len(classes):
            row["predicted_name"] = classes[predicted]
    return samples


def matching(run: Run, condition: str) -> tuple[tuple[str, ...], list[Any]]:
    """Return the queries that count what a condition picks."""
    tables = ("graded_predictions", "lineage") if run.graded else ("lineage",)
    return (
        tuple(f"SELECT count(*) FROM {table} WHERE run_id = ? AND ({condition or 'true'}\n)" for table in tables),
        [run.run_id],
    )


def worst(reader: Reader, run: Run, epoch: int, limit: int) -> list[tuple[int, int]]:
    """Return index and visit of the wrong predictions with the largest loss."""
    rows = reader.sql(
        "SELECT index, visit FROM graded_predictions WHERE run_id = ? AND epoch = ? AND NOT correct "
        "ORDER BY isfinite(loss) DESC, loss DESC NULLS LAST, index, visit LIMIT ?",
        parameters=[run.run_id, epoch, limit],
    ).fetchall()
    return [(row[0], row[1]) for row in rows]


def around(reader: Reader, run: Run, sample: SampleRow) -> tuple[VisitPlace | None, VisitPlace | None]:
    """Return the visits of the same sample before and after this one. Another loader's sample may have the same index."""
    rows = reader.rows(SampleRow, run.run_id, index=sample["index"], order="epoch, visit")
    item = (sample["split"], sample["root"], sample["source"])
    places = [_place(row) for row in rows if (row["split"], row["root"], row["source"]) == item]
    here = places.index(_place(sample))
    return places[here - 1] if here else None, places[here + 1] if here + 1 < len(places) else None


def _place(row: SampleRow) -> VisitPlace:
    return {"epoch": row["epoch"], "index": row["index"], "visit": row["visit"]}


def _cursor(text: str) -> tuple[float, int, int, int]:
    try:
        value, epoch, index, visit = json.loads(text)
        return float(value), int(epoch), int(index), int(visit)
    except (ValueError, TypeError) as error:
        raise UsageError(
            "The address does not name a position in this gallery.", hint="Open the gallery again."
        ) from error


def previews(reader: Reader, run: Run, keys: Iterable[Key], stage: int) -> dict[Key, Preview]:
    """Return the stored preview of one stage for each visit (epoch, index, visit) that has one."""
    wanted = set(keys)
    if not wanted:
        return {}
    indices = ", ".join(str(int(index)) for index in sorted({key[1] for key in wanted}))
    query = (
        "SELECT epoch, index, visit, stage, encoding, data FROM payloads "
        f"WHERE run_id = ? AND form = 'preview' AND stage {{}} ? AND index IN ({indices})"
    )
    found = _previews(reader.sql(query.format("="), parameters=[run.run_id, stage]).fetchall())
    missing = {key for key in wanted if (*key, stage) not in found}
    shared = _shared_previews(reader, run, missing, stage, query) if missing and stage else {}
    return {key: found.get((*key, stage)) or shared[key] for key in wanted if (*key, stage) in found or key in shared}


def shows(reader: Reader, run: Run, stage: int) -> str:
    """Return what previews of a stage are in this run: `picture`, `text`, or `nothing` where none was stored."""
    query = "SELECT encoding FROM payloads WHERE run_id = ? AND form = 'preview' AND stage {} ? LIMIT 1"
    for compare in ("=", "<"):  # a stage that changed nothing shows what one before it shows
        found = reader.sql(query.format(compare), parameters=[run.run_id, stage]).fetchone()
        if found:
            return "picture" if str(found[0]).startswith("image/") else "text"
    return "nothing"


def _previews(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[int, int, int, int], Preview]:
    return {(row[0], row[1], row[2], row[3]): Preview(row[4], bytes(row[5])) for row in rows}


def _shared_previews(reader: Reader, run: Run, keys: set[Key], stage: int, query: str) -> dict[Key, Preview]:
    """Return a stage that changed nothing shows what the stage before it shows: the one with the same digest."""
    earlier = _previews(reader.sql(query.format("<"), parameters=[run.run_id, stage]).fetchall())
    if not earlier:
        return {}
    indices = ", ".join(str(int(key[1])) for key in keys)
    outputs = reader.sql(
        "SELECT epoch, index, visit, stage, digest FROM stage_outputs "
        f"WHERE run_id = ? AND stage <= ? AND index IN ({indices})",
        parameters=[run.run_id, stage],
    ).fetchall()
    digests = {(row[0], row[1], row[2], row[3]): row[4] for row in outputs}
    shared = {}
    for key in keys:
        for before in range(stage - 1, -1, -1):
            place = (*key, before)
            if place in earlier and digests.get(place) == digests.get((*key, stage)):
                shared[key] = earlier[place]
                break
    return shared
