"""A run with epochs, over time: loss per step, which samples were learned, forgotten or never learned.

The words of dataset cartography: confidence is the mean probability of the label over epochs, variability
its standard deviation, correctness how often it was right. Steps are thinned to what a chart can show;
the largest of each bin stays, because a spike is what one looks for.
"""

from __future__ import annotations

from typing import Any

from audit.records import Run
from audit.store.reader import Reader

MOST_POINTS = 1_000
_SPIKE = 4.0


def loss_steps(reader: Reader, run: Run) -> list[dict[str, Any]]:
    """Loss over steps: mean and largest of each bin, with the sample that had the largest."""
    return reader.sql(
        """
        WITH numbered AS (
            SELECT epoch, coalesce(step, batch) AS step, loss, index, visit FROM predictions
            WHERE run_id = ? AND isfinite(loss) AND coalesce(step, batch) IS NOT NULL
        ), bounds AS (SELECT greatest(1, ceil((max(step) + 1) / ?)) AS width FROM numbered)
        SELECT epoch, (floor(step / width) * width)::BIGINT AS step, avg(loss) AS mean, max(loss) AS max,
               arg_max(index, loss) AS index, arg_max(visit, loss) AS visit
        FROM numbered, bounds GROUP BY ALL ORDER BY epoch, step
        """,
        parameters=[run.run_id, MOST_POINTS],
    ).dicts()


def spikes(steps: list[dict[str, Any]], most: int = 20) -> list[dict[str, Any]]:
    """The steps whose mean loss stands out of those around them, most striking first."""
    found = []
    for place, step in enumerate(steps):
        around = sorted(row["mean"] for row in steps[max(0, place - 15) : place + 16])
        middle = around[len(around) // 2]
        spread = sorted(abs(value - middle) for value in around)[len(around) // 2]
        if spread > 0 and (step["mean"] - middle) / spread > _SPIKE and step["mean"] > 1.3 * middle:
            found.append({**step, "times": step["mean"] / middle if middle else None})
    return sorted(found, key=lambda row: -(row["times"] or 0))[:most]


_MAP = """
    SELECT index, min(label_name) AS label_name, min(label) AS label, avg(exp(-loss)) AS confidence,
           stddev_pop(exp(-loss)) AS variability, avg(correct::INT) AS correctness, count(*) AS epochs
    FROM predictions WHERE run_id = ? AND isfinite(loss) AND correct IS NOT NULL GROUP BY index HAVING count(*) > 1
"""


def cartography(reader: Reader, run: Run, most: int = 4_000) -> list[dict[str, Any]]:
    """Each sample's confidence, variability and correctness over epochs; the most variable ones when there are many."""
    return reader.sql(
        f"SELECT * FROM ({_MAP}) ORDER BY variability DESC, index LIMIT ?", parameters=[run.run_id, most]
    ).dicts()


def forgotten(reader: Reader, run: Run, most: int = 100) -> list[dict[str, Any]]:
    """Samples that were right and then wrong, with how often; and those never right."""
    return reader.sql(
        """
        WITH ordered AS (
            SELECT index, epoch, visit, label_name, label, correct, loss,
                   lag(correct) OVER (PARTITION BY index ORDER BY epoch, visit) AS before
            FROM predictions WHERE run_id = ? AND correct IS NOT NULL
        )
        SELECT o.index, min(label_name) AS label_name, min(label) AS label, count(*) AS epochs,
               count(*) FILTER (before AND NOT correct) AS forgotten, count(*) FILTER (correct) AS right,
               min(epoch) FILTER (correct) AS learned, arg_max(loss, (epoch, visit)) AS last_loss
        FROM ordered o GROUP BY o.index HAVING count(*) > 1 AND (forgotten > 0 OR "right" = 0)
        ORDER BY forgotten DESC, last_loss DESC, o.index LIMIT ?
        """,
        parameters=[run.run_id, most],
    ).dicts()


def layers(reader: Reader, run: Run) -> list[dict[str, Any]]:
    """Layer statistics over steps, batch and sample rows taken together, thinned."""
    return reader.sql(
        """
        WITH bounds AS (SELECT greatest(1, ceil((max(step) + 1) / 200)) AS width FROM activations WHERE run_id = ?)
        SELECT layer, any_value(layer_type) AS layer_type, direction, port,
               (floor(step / width) * width)::BIGINT AS step,
               avg(mean) FILTER (isfinite(mean)) AS mean, avg(std) FILTER (isfinite(std)) AS std,
               avg(zero_fraction) FILTER (isfinite(zero_fraction)) AS zero_fraction, sum(nonfinite) AS nonfinite
        FROM activations, bounds WHERE run_id = ? AND step IS NOT NULL
        GROUP BY ALL ORDER BY layer, direction, port, step
        """,
        parameters=[run.run_id, run.run_id],
    ).dicts()
