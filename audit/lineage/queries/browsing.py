"""What pages show of single samples: sources, tags, history, neighbours and small pictures, with no SQL from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from audit.lineage.queries.overview import of_split
from audit.records import Run
from audit.store.read.items import is_tagged
from audit.store.read.reader import Reader
from audit.tables import SampleRow, StageOutputRow
from audit.texts import enumerate_some
from audit.values import Preview

Key = tuple[int, int, int]


class VisitPlace(TypedDict):
    """The visit of a run that a page can lead to."""

    epoch: int
    index: int
    visit: int


def sources(reader: Reader, run: Run, keys: Iterable[Key]) -> dict[Key, str | None]:
    """Return the source of each visit (epoch, index, visit)."""
    wanted = set(keys)
    if not wanted:
        return {}
    indices = ", ".join(str(int(index)) for index in sorted({key[1] for key in wanted}))
    rows = reader.sql(
        f"SELECT epoch, index, visit, source FROM samples WHERE run_id = ? AND index IN ({indices})",
        parameters=[run.run_id],
    ).fetchall()
    return {(row[0], row[1], row[2]): row[3] for row in rows if (row[0], row[1], row[2]) in wanted}


def summaries(reader: Reader, run: Run, keys: Iterable[Key]) -> dict[Key, str]:
    """Return what a model said of each visit, in a few words, for tasks whose predictions are not one class."""
    wanted = set(keys)
    queries = {
        "detection": "SELECT epoch, index, visit, concat_ws(', ', count(*) FILTER (kind = 'target') || ' wanted', "
        "nullif(count(*) FILTER (outcome = 'fn'), 0) || ' missed', nullif(count(*) FILTER (outcome = 'fp'), 0) || ' false') "
        "FROM boxes WHERE run_id = ? AND coalesce(call, 0) = 0 AND index IN ({}) GROUP BY ALL",
        "regression": "SELECT epoch, index, visit, concat_ws(' → ', format('{{:.4g}}', target[1]::DOUBLE), "
        "format('{{:.4g}}', output[1]::DOUBLE)) FROM graded_predictions WHERE run_id = ? AND index IN ({}) "
        "AND len(output) = 1",
        "multilabel": "SELECT epoch, index, visit, target, probabilities FROM graded_predictions "
        "WHERE run_id = ? AND index IN ({})",
        "segmentation": "SELECT epoch, index, visit, format('mean IoU {{:.1f}}%', 100 * avg(iou)) FROM mask_scores "
        "WHERE run_id = ? AND coalesce(call, 0) = 0 AND index IN ({}) GROUP BY ALL",
        "tokens": "SELECT epoch, index, visit, format('{{}} of {{}} tokens right', count(*) FILTER (correct), count(correct)) "
        "FROM tokens WHERE run_id = ? AND coalesce(call, 0) = 0 AND index IN ({}) GROUP BY ALL",
    }
    if not wanted or run.task not in queries:
        return {}
    indices = ", ".join(str(int(index)) for index in sorted({key[1] for key in wanted}))
    rows = reader.sql(queries[run.task].format(indices), parameters=[run.run_id]).fetchall()
    if run.task == "multilabel":
        rows = [(*row[:3], _labels(run, row[3], row[4])) for row in rows]
    return {(row[0], row[1], row[2]): row[3] for row in rows if (row[0], row[1], row[2]) in wanted}


def _labels(run: Run, target: Sequence[float] | None, scores: Sequence[float] | None) -> str:
    """Return the wanted labels and those with a score above 0.5, as the view `label_scores` takes them."""
    names = dict(enumerate(run.classes or ()))

    def name_labels(values: Sequence[float]) -> str:
        found = [names.get(n, str(n)) for n, value in enumerate(values) if value > 0.5]
        return enumerate_some(found, _MOST_LABELS) or "none"

    return " → ".join(name_labels(values) for values in (target, scores) if values is not None)


_MOST_LABELS = 6


class HistoryRow(VisitPlace):
    """What a model said of one sample at one visit."""

    predicted: int | None
    predicted_name: str | None
    confidence: float | None
    correct: bool | None
    loss: float | None


def history(reader: Reader, run: Run, sample: SampleRow, most: int = 60) -> list[HistoryRow]:
    """Return the visits of a sample over the epochs, with its predictions; the last ones where there are many."""
    query = (
        "SELECT epoch, index, visit, predicted, predicted_name, confidence, correct, loss FROM graded_predictions "
        "WHERE run_id = ? AND index = ? ORDER BY epoch, visit"
    )
    visits = {(place["epoch"], place["visit"]) for place in _visits(reader, run, sample)}
    found = reader.sql(query, parameters=[run.run_id, sample["index"]]).rows(HistoryRow)
    return [row for row in found if (row["epoch"], row["visit"]) in visits][-most:]


def tags(reader: Reader, run: Run, keys: Iterable[Key]) -> dict[Key, list[str]]:
    """Return the tags of each visit (epoch, index, visit) whose sample has any."""
    wanted = set(keys)
    if not wanted or not reader.sql("FROM tags WHERE run_id = ? LIMIT 1", parameters=[run.run_id]).fetchall():
        return {}
    listed = ", ".join(str(int(index)) for index in sorted({key[1] for key in wanted}))
    query = (
        f"SELECT s.epoch, s.index, s.visit, list_sort(list(tag)) FROM (FROM samples WHERE run_id = ? AND index IN ({listed})) s "
        f"JOIN (FROM tags WHERE run_id = ?) t ON {is_tagged('t', 's')} GROUP BY ALL"
    )
    rows = reader.sql(query, parameters=[run.run_id, run.run_id]).fetchall()
    return {(epoch, index, visit): found for epoch, index, visit, found in rows if (epoch, index, visit) in wanted}


def tag_names(reader: Reader, run: Run) -> dict[str, int]:
    """Return the tags that samples of a run have, with how many have each."""
    query = "SELECT tag, count(*) FROM tags WHERE run_id = ? GROUP BY tag ORDER BY tag"
    return dict(reader.sql(query, parameters=[run.run_id]).fetchall())


def worst_predictions(
    reader: Reader, run: Run, epoch: int, limit: int, split: str | None = None
) -> list[tuple[int, int]]:
    """Return index and visit of the wrong predictions of an epoch, or of one split of it, with the largest loss."""
    rows = reader.sql(
        f"SELECT index, visit FROM graded_predictions WHERE run_id = ? AND epoch = ?{of_split(run, epoch, split)} AND NOT correct "
        "ORDER BY isfinite(loss) DESC, loss DESC NULLS LAST, index, visit LIMIT ?",
        parameters=[run.run_id, epoch, limit],
    ).fetchall()
    return [(row[0], row[1]) for row in rows]


def find_neighbouring_visits(
    reader: Reader, run: Run, sample: SampleRow
) -> tuple[VisitPlace | None, VisitPlace | None]:
    """Return the visits of the same sample before and after this one."""
    places = _visits(reader, run, sample)
    here = places.index(_place(sample))
    return places[here - 1] if here else None, places[here + 1] if here + 1 < len(places) else None


def _visits(reader: Reader, run: Run, sample: SampleRow) -> list[VisitPlace]:
    """Return the visits of a sample, in order. Another loader's sample may have the same index."""
    rows = reader.rows(SampleRow, run.run_id, index=sample["index"], order="epoch, visit")
    item = (sample["split"], sample["root"], sample["source"])
    return [_place(row) for row in rows if (row["split"], row["root"], row["source"]) == item]


def _place(row: SampleRow) -> VisitPlace:
    return {"epoch": row["epoch"], "index": row["index"], "visit": row["visit"]}


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
    shared = _find_shared_previews(reader, run, missing, stage, query) if missing and stage else {}
    return {key: found.get((*key, stage)) or shared[key] for key in wanted if (*key, stage) in found or key in shared}


def stage_output(reader: Reader, run: Run, key: Key, stage: int) -> StageOutputRow | None:
    """Return what was recorded of one stage's output for a visit (epoch, index, visit)."""
    where = f"epoch = {int(key[0])} AND visit = {int(key[2])} AND stage = {int(stage)}"
    return next(iter(reader.rows(StageOutputRow, run.run_id, index=key[1], where=where)), None)


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


def _find_shared_previews(reader: Reader, run: Run, keys: set[Key], stage: int, query: str) -> dict[Key, Preview]:
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
