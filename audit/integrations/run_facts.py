"""Facts about a run that several tools use: parameters, metrics over time, samples with their predictions.

Only queries are here; each tool's own file writes the answers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from audit.records import Run, Stage
from audit.store.read.condition import require_condition
from audit.store.read.items import LISTED_ITEMS, SampleIdentity, as_parameters, is_tagged, same_item
from audit.store.read.reader import Reader

_PARAMETERS = ("dataset", "dataset_digest", "model", "model_digest", "arch", "pipeline_digest", "seed", "capture")
#: Series longer than this are thinned by taking every Nth step.
MOST_POINTS = 20_000


def parameters(reader: Reader, run: Run) -> dict[str, str]:
    """Return the parameters of the run: data, model, seed, stages, versions."""
    found = {name: str(getattr(run, name)) for name in _PARAMETERS if getattr(run, name) is not None}
    stages = reader.rows(Stage, run.run_id, order="stage")
    found["stages"] = " → ".join(stage.name for stage in stages)
    return found | {f"version.{name}": version for name, version in sorted(run.versions.items())}


def totals(run: Run) -> dict[str, float]:
    """Return the numbers of the whole run."""
    found = {"samples": run.samples, "failed": run.failed, "graded": run.graded, "wrong": run.wrong}
    named: dict[str, float | None] = {**found, "accuracy": run.accuracy, "seconds": run.seconds}
    return {name: float(value) for name, value in named.items() if value is not None}


def steps(reader: Reader, run: Run) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Yield (step, phase, values) of the recorded steps; of very many steps, every Nth."""
    rows = reader.sql(
        """
        WITH counted AS (SELECT greatest(1, ceil(count(*) / ?)) AS width FROM steps WHERE run_id = ?)
        SELECT step, coalesce(phase, 'step') AS phase, loss, learning_rate, gradient_norm FROM steps, counted
        WHERE run_id = ? AND (step % width = 0 OR NOT isfinite(loss)) ORDER BY step
        """,
        run=run.run_id,
        parameters=[MOST_POINTS, run.run_id, run.run_id],
    )
    for row in rows.dicts():
        named = {name: row[name] for name in ("loss", "learning_rate", "gradient_norm") if row[name] is not None}
        yield row["step"], row["phase"], named


def epochs(reader: Reader, run: Run) -> list[dict[str, Any]]:
    """Return accuracy, mean loss and counts of each epoch and split."""
    return reader.sql(
        """
        SELECT p.epoch, coalesce(s.split, 'all') AS split, count(*) AS samples, avg(p.correct::INT) AS accuracy,
               avg(p.loss) FILTER (isfinite(p.loss)) AS loss, avg(p.confidence) AS confidence
        FROM graded_predictions p LEFT JOIN samples s USING (run_id, epoch, index, visit)
        WHERE p.run_id = ? GROUP BY ALL ORDER BY ALL
        """,
        run=run.run_id,
        parameters=[run.run_id],
    ).dicts()


def layers(reader: Reader, run: Run) -> list[dict[str, Any]]:
    """Layer statistics of each step, the samples of a step taken together."""
    return reader.sql(
        """
        SELECT layer, direction, port, step, avg(mean) AS mean, avg(std) AS std, avg(zero_fraction) AS zero_fraction,
               avg(norm) AS norm, sum(nonfinite) AS nonfinite
        FROM activations WHERE run_id = ? AND step IS NOT NULL GROUP BY ALL ORDER BY ALL
        """,
        run=run.run_id,
        parameters=[run.run_id],
    ).dicts()


#: The shares of a layer's elements that lie below the least one, its recorded percentiles, and the greatest one.
SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


@dataclass(frozen=True)
class Percentiles:
    """What is known of the distribution of one recorded activation or gradient."""

    limits: tuple[float, ...]
    elements: int
    mean: float
    std: float


def layer_percentiles(reader: Reader, run: Run) -> Iterator[tuple[str, int, list[Percentiles]]]:
    """Yield (tag, step, percentiles of each row) of every layer and step whose percentiles were recorded."""
    rows = reader.sql(
        """
        SELECT layer, direction, port, step, [min, p01, p25, p50, p75, p99, max] AS limits,
               list_product(list_append(shape, 1))::BIGINT - coalesce(nonfinite, 0) AS elements, mean, std
        FROM activations WHERE run_id = ? AND step IS NOT NULL AND p50 IS NOT NULL AND mean IS NOT NULL
        ORDER BY ALL
        """,
        run=run.run_id,
        parameters=[run.run_id],
    ).fetchall()
    for (layer, direction, port, step), group in groupby(rows, key=lambda row: row[:4]):
        kinds = {"forward": "activations", "backward": "gradients"}
        found = [Percentiles(tuple(row[4]), row[5], row[6], row[7]) for row in group]
        yield f"{kinds[direction]}/{layer}/{port}", step, found


def distributions(reader: Reader, run: Run) -> Iterator[tuple[str, int, list[float]]]:
    """Yield (column, epoch, finite values) of the predictions' statistics."""
    for (epoch,) in reader.sql(
        "SELECT DISTINCT epoch FROM graded_predictions ORDER BY epoch", run=run.run_id
    ).fetchall():
        for column in ("loss", "confidence", "margin", "entropy"):
            rows = reader.sql(
                f"SELECT {column} FROM graded_predictions WHERE epoch = ? AND isfinite({column})",
                run=run.run_id,
                parameters=[epoch],
            ).fetchall()
            if rows:
                yield column, epoch, [value for (value,) in rows]


class WrittenFiles(list[Path]):
    """The files that an export wrote, and the number of chosen samples that they leave out."""

    def __init__(self, files: Iterable[Path], *, left_out: int) -> None:
        super().__init__(files)
        self.left_out = left_out


def last_epoch_samples(
    reader: Reader,
    run: Run,
    *,
    where: str | None = None,
    tag: str | None = None,
    indices: Sequence[int] | None = None,
    items: Collection[SampleIdentity] | None = None,
) -> list[dict[str, Any]]:
    """Return the samples of each split's last epoch with their predictions, raw names, tags and notes.

    All of them, or those that meet an SQL condition over `lineage`, have a tag, and are among the indices or items.
    """
    if where:
        require_condition(reader, "lineage", where)
    conditions = [f"(\n{where or 'true'}\n)"]  # on lines of its own: it may end with a comment
    parameters: list[Any] = [run.run_id, run.run_id]
    if tag is not None:
        conditions.append(f"EXISTS (FROM tags g WHERE g.run_id = ? AND g.tag = ? AND {is_tagged('g', 'newest')})")
        parameters += [run.run_id, tag]
    if indices is not None:
        conditions.append(f"index IN ({', '.join(str(int(index)) for index in indices) or 'NULL'})")
    if items is not None:
        conditions.append(f"EXISTS (FROM ({LISTED_ITEMS}) w WHERE {same_item('w', 'newest')})")
        parameters += as_parameters(items)
    return reader.sql(
        f"""
        WITH tagged AS (
            SELECT s.epoch, s.index, s.visit, list(tag ORDER BY tag) AS tags,
                list(note ORDER BY tag) FILTER (note IS NOT NULL) AS notes
            FROM samples s JOIN (FROM tags WHERE run_id = ?) t ON {is_tagged("t", "s")} GROUP BY ALL
        ), newest AS (
            SELECT l.*, s.source_raw, t.tags, t.notes
            FROM lineage l JOIN samples s USING (run_id, epoch, index, visit) LEFT JOIN tagged t USING (epoch, index, visit)
            WHERE l.run_id = ? QUALIFY l.epoch = max(l.epoch) OVER (PARTITION BY l.split)
        )
        FROM newest WHERE {" AND ".join(conditions)} ORDER BY split, index, visit
        """,
        run=run.run_id,
        parameters=parameters,
    ).dicts()


def source_file(row: dict[str, Any]) -> str | None:
    """Return the path of a sample's source, if it is a file that exists and its name is UTF-8."""
    if row["source"] is None or row["root"] is None:
        return None
    name = bytes(row["source_raw"]) if row["source_raw"] else os.fsencode(row["source"])
    path = os.path.join(os.fsencode(os.path.abspath(row["root"])), name)
    try:
        return path.decode("utf-8") if os.path.isfile(path) else None
    except UnicodeDecodeError:
        return None


def mistakes(reader: Reader, run: Run, most: int) -> list[dict[str, Any]]:
    """Return the wrong predictions of the highest loss, each sample at its last visit that was wrong."""
    return reader.sql(
        """
        SELECT * FROM wrong_predictions WHERE run_id = ?
        QUALIFY row_number() OVER (PARTITION BY split, root, source, index ORDER BY epoch DESC, visit DESC) = 1
        ORDER BY CASE WHEN isfinite(loss) THEN loss END DESC NULLS LAST, index LIMIT ?
        """,
        run=run.run_id,
        parameters=[run.run_id, most],
    ).dicts()


def data_digest(reader: Reader, run: Run) -> str:
    """Return the recorded digest of the data, or else a digest over every source and its bytes."""
    if run.dataset_digest:
        return run.dataset_digest
    found = reader.sql(
        """
        SELECT md5(string_agg(DISTINCT coalesce(source, '') || '|' || coalesce(source_digest, ''), chr(10)
                              ORDER BY coalesce(source, '') || '|' || coalesce(source_digest, '')))
        FROM samples WHERE run_id = ?
        """,
        run=run.run_id,
        parameters=[run.run_id],
    ).fetchone()
    return str(found[0]) if found and found[0] else run.run_id


def finite_or_none(value: Any) -> float | None:
    """Return the number if it is finite, or else None."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
