"""The map of a run's samples: its points with what they can be coloured by, and the samples that are near one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audit.records import Run
from audit.store.read.reader import Reader
from audit.tables import VisitRow

if TYPE_CHECKING:
    import numpy as np

_POINTS = """
    WITH names AS (SELECT row_number() OVER (ORDER BY split) - 1 AS number, split FROM (
        SELECT DISTINCT split FROM samples WHERE run_id = $run AND split IS NOT NULL
    ))
    SELECT e.epoch, e.index, e.visit, e.x, e.y, coalesce(p.label, -1) AS label, coalesce(p.predicted, -1) AS predicted,
           coalesce(p.correct::TINYINT, -1) AS correct, coalesce(p.loss, 'nan'::FLOAT) AS loss,
           coalesce(p.confidence, 'nan'::FLOAT) AS confidence, coalesce(n.number, -1) AS split
    FROM embeddings e LEFT JOIN (FROM graded_predictions WHERE run_id = $run) p USING (run_id, epoch, index, visit)
    LEFT JOIN (FROM samples WHERE run_id = $run) s USING (run_id, epoch, index, visit) LEFT JOIN names n ON n.split = s.split
    WHERE e.run_id = $run ORDER BY e.epoch, e.index, e.visit
"""


@dataclass(frozen=True, slots=True)
class SampleMap:
    """What a map was made from, and how many points it has."""

    layer: str
    method: str
    samples: int
    splits: int
    epochs: int


#: By name, the columns of a map's points.
MapColumns = Mapping[str, "np.ndarray[Any, Any]"]


class SimilarSample(VisitRow):
    """A sample whose vector is near to that of another."""

    distance: float
    source: str | None
    split: str | None
    label: int | None
    label_name: str | None
    predicted: int | None
    predicted_name: str | None
    correct: bool | None


def sample_map(reader: Reader, run: Run) -> SampleMap | None:
    """Return what the run's map was made from; None where it has none."""
    query = (
        "SELECT any_value(layer), any_value(method), count(*), count(DISTINCT epoch) FROM embeddings WHERE run_id = ?"
    )
    row = reader.sql(query, parameters=[run.run_id]).fetchone()
    return SampleMap(row[0], row[1], row[2], len(_splits(reader, run)), row[3]) if row and row[2] else None


def points(reader: Reader, run: Run) -> tuple[MapColumns, list[str]]:
    """Return the columns of the map's points as numpy arrays, and the names of the splits that one of them numbers."""
    table = reader.sql(_POINTS.replace("$run", "?"), parameters=[run.run_id] * _POINTS.count("$run")).arrow()
    return {name: table.column(name).to_numpy() for name in table.column_names}, _splits(reader, run)


def _splits(reader: Reader, run: Run) -> list[str]:
    query = "SELECT DISTINCT split FROM samples WHERE run_id = ? AND split IS NOT NULL ORDER BY split"
    return [str(name) for (name,) in reader.sql(query, parameters=[run.run_id]).fetchall()]


def find_similar(reader: Reader, run: Run, key: tuple[int, int, int], most: int = 12) -> list[SimilarSample]:
    """Return the samples whose vectors are nearest to that of one (epoch, index, visit), of all splits of the run.

    All vectors are of one epoch, its own or the map's last: a sample's points in other epochs are not other samples.
    """
    epoch, index, visit = key
    return reader.sql(
        """
        WITH own AS (
            SELECT vector, layer, run_id, epoch, index, visit FROM embeddings
            WHERE run_id = ? AND index = ? AND visit = ? ORDER BY epoch = ? DESC, epoch DESC LIMIT 1
        ), near AS (
            SELECT e.run_id, e.epoch, e.index, e.visit, list_distance(e.vector, own.vector) AS distance
            FROM embeddings e, own
            WHERE e.layer = own.layer AND len(e.vector) = len(own.vector) AND e.run_id = own.run_id
              AND e.epoch = own.epoch AND (e.index, e.visit) <> (own.index, own.visit)
            ORDER BY distance, e.index LIMIT ?
        )
        SELECT near.*, s.source, s.split, s.label, s.label_name, s.predicted, s.predicted_name, s.correct
        FROM near JOIN (FROM lineage WHERE run_id = ?) s USING (run_id, epoch, index, visit) ORDER BY distance, near.index
        """,
        parameters=[run.run_id, index, visit, epoch, most, run.run_id],
    ).rows(SimilarSample)
