"""Samples that are like one: the same file in other runs, and pictures of any run and split that look alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np

from audit.lineage.queries.browsing import Key, previews
from audit.lineage.queries.overview import last_epoch
from audit.lineage.small_pictures import Array, SmallPictures, distances, shrink, small_pictures
from audit.records import Run
from audit.store.read.reader import Reader
from audit.store.sql_literal import literal
from audit.tables import SampleRow, VisitRow

#: Of each run, and of how many runs, pictures are looked at: what takes a few seconds the first time.
MOST_PICTURES, MOST_RUNS = 20_000, 12


class AlikeSample(VisitRow):
    """A sample of any run that is like another."""

    source: str | None
    root: str | None
    source_digest: str | None
    split: str | None
    label: int | None
    label_name: str | None
    predicted: int | None
    predicted_name: str | None
    confidence: float | None
    correct: bool | None


class ComparedCounts(TypedDict):
    """How many pictures of how many runs were compared, and how many there are."""

    runs: int
    pictures: int
    total: int


_SHOWN_COLUMNS = ", ".join(AlikeSample.__annotations__)


def list_compared_runs(reader: Reader, run: Run) -> list[Run]:
    """Return the runs that samples are looked for in: this one, those of the same dataset, and others; the newest first."""
    others = [other for other in reversed(reader.runs()) if other.run_id != run.run_id]
    others.sort(key=lambda other: other.dataset != run.dataset)
    return [run, *others[: MOST_RUNS - 1]]


def same_file(reader: Reader, run: Run, source_digest: str | None, runs: Sequence[Run]) -> list[AlikeSample]:
    """Return the visits of a file with the same bytes in the last epochs of other runs."""
    found: list[AlikeSample] = []
    for other in runs if source_digest is not None else ():
        if other.run_id == run.run_id:
            continue
        # First the sample, then its prediction: a join of all samples would take ten times as long.
        query = (
            "SELECT index, visit FROM samples WHERE run_id = ? AND epoch = ? AND source_digest = ? ORDER BY ALL LIMIT 3"
        )
        parameters = [other.run_id, last_epoch(reader, other), source_digest]
        visits = reader.sql(query, run=[other.run_id], parameters=parameters).fetchall()
        if visits:
            listed = ", ".join(f"({index}, {visit})" for index, visit in visits)
            shown = (
                f"SELECT {_SHOWN_COLUMNS} FROM lineage WHERE run_id = ? AND epoch = ? AND (index, visit) IN ({listed})"
            )
            found += reader.sql(shown, run=[other.run_id], parameters=parameters[:2]).rows(AlikeSample)
    return found


def many_pictures(runs: Sequence[Run]) -> int:
    """Return how many pictures there are to look at, at most."""
    return sum(min(MOST_PICTURES, run.samples or 0) for run in runs)


def last_pictures(reader: Reader, run: Run) -> SmallPictures:
    """Return small pictures of a run's last epoch."""
    return small_pictures(reader, run, last_epoch(reader, run), MOST_PICTURES)


def look_alike(
    reader: Reader, run: Run, key: Key, runs: Sequence[Run], pictures: Callable[[Run], SmallPictures], most: int = 12
) -> tuple[list[tuple[float, AlikeSample]], ComparedCounts]:
    """Return the samples whose pictures are nearest to that of one, with their distances, each file once.

    `pictures` gives the small pictures of a run, which a server keeps.
    """
    own = _own_picture(reader, run, key)
    looked: ComparedCounts = {"runs": 0, "pictures": 0, "total": 0}
    if own is None:
        return [], looked
    nearest: list[tuple[float, str, Key]] = []
    for other in runs:
        found = pictures(other)
        looked["runs"] += bool(len(found.keys))
        looked["pictures"] += len(found.keys)
        looked["total"] += found.total
        apart = distances(found, own)
        for place in np.argsort(apart, kind="stable")[: 4 * most].tolist():
            epoch, index, visit = (int(number) for number in found.keys[place])
            is_itself = (other.run_id, index, visit) == (run.run_id, key[1], key[2])
            if np.isfinite(apart[place]) and not is_itself:
                nearest.append((float(apart[place]), other.run_id, (epoch, index, visit)))
    nearest.sort()
    rows = reader.rows(SampleRow, run.run_id, index=key[1], where=f"epoch = {key[0]} AND visit = {key[2]}")
    # The same file is listed for itself. Items without a file are not the same because their numbers are.
    itself = {_file(row) for row in rows if row["root"] is not None}
    return _describe_samples(reader, nearest[: 6 * most], most, itself), looked


def _own_picture(reader: Reader, run: Run, key: Key) -> Array | None:
    """Return the small picture of one visit's source; None where no preview of it is stored."""
    preview = previews(reader, run, [key], 0).get(key)
    return shrink(preview.data) if preview is not None and preview.media_type.startswith("image/") else None


def _describe_samples(
    reader: Reader, nearest: Sequence[tuple[float, str, Key]], most: int, seen: set[File]
) -> list[tuple[float, AlikeSample]]:
    """Return the samples with their files and predictions; a file that several runs have is listed once."""
    rows: dict[tuple[str, int, int, int], AlikeSample] = {}
    for run_id in {run_id for _, run_id, _ in nearest}:
        keys = [key for _, of, key in nearest if of == run_id]
        indices = ", ".join(str(key[1]) for key in keys)
        query = f"SELECT {_SHOWN_COLUMNS} FROM lineage WHERE run_id = {literal(run_id)} AND index IN ({indices})"
        for row in reader.sql(query, run=[run_id]).rows(AlikeSample):
            rows[run_id, row["epoch"], row["index"], row["visit"]] = row
    found: list[tuple[float, AlikeSample]] = []
    for apart, run_id, key in nearest:
        sample = rows.get((run_id, *key))
        if sample is None or _file(sample) in seen:
            continue
        seen.add(_file(sample))
        found.append((apart, sample))
    return found[:most]


#: Samples are listed as one if these are equal: the digest of the file's bytes, else its folder and name, else run and index.
File = tuple[str | int | None, ...]


def _file(sample: AlikeSample | SampleRow) -> File:
    if sample["source_digest"] is not None:
        return (sample["source_digest"],)
    if sample["source"] is not None:
        return sample["root"], sample["source"]
    return sample["run_id"], sample["index"]
