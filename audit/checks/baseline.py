"""A run to compare with: in the store, or as a small JSON file that can be committed, so that CI needs no old store.

The file holds, for each source, the beginning of its digest, its label and what was predicted; the pipeline's stages;
class counts; and quantiles of what each stage gave. It holds no pixels, no absolute paths and no host names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypedDict

from audit.errors import NotFound, UsageError
from audit.output_file import write_text
from audit.plainjson import JsonObject
from audit.records import Run, Stage
from audit.store.read.reader import Reader
from audit.store.read.rows import field_names
from audit.store.sql_literal import literal

FORMAT = "audit-baseline"
VERSION = 1
#: How many quantiles describe a distribution; the distance of two distributions is then exact to 1 %.
QUANTILES = 101
#: Stored characters of a digest: 64 bits are enough to distinguish one dataset's files.
SHORT = 16


class Item(NamedTuple):
    """One source in a baseline."""

    source: str
    digest: str | None
    label: int | None
    predicted: int | None
    #: Whether every visit of the last epoch failed; a baseline file does not store it.
    failed: bool = False


class Distribution(TypedDict):
    """Quantiles of a statistic of one stage's outputs, or of the model's confidence (`stage` is None)."""

    stage: int | None
    name: str
    statistic: str
    samples: int
    quantiles: list[float]


@dataclass
class Baseline:
    """The reference of a comparison. `reader` is set when it is a run of a store."""

    name: str
    run_id: str
    accuracy: float | None
    classes: list[str] | None
    stages: list[Stage]
    counts: dict[str, dict[str, int]]
    distributions: list[Distribution]
    items: list[Item] = field(default_factory=list)
    #: SHA-256 of each file of the user's own code, by module.
    code: dict[str, str] = field(default_factory=dict)
    reader: Reader | None = None

    def sources(self) -> Iterator[Item]:
        """Return every source, sorted by name; a run's are streamed, so that a million take no memory."""
        if self.reader is None:
            return iter(self.items)
        return items_of(self.reader, self.run_id)

    def as_json(self) -> JsonObject:
        """Return the content of a baseline file."""
        return {
            "format": {"name": FORMAT, "version": VERSION},
            "name": self.name,
            "run_id": self.run_id,
            "accuracy": self.accuracy,
            "classes": self.classes,
            "stages": [asdict(stage) for stage in self.stages],
            "code": self.code,
            "counts": self.counts,
            "distributions": self.distributions,
            "sources": [[item.source, item.digest, item.label, item.predicted] for item in self.sources()],
        }


def open_baseline(reader: Reader, wanted: str | os.PathLike[str]) -> Baseline:
    """Return the baseline in a file, or else a run of the store as a baseline."""
    text = os.fspath(wanted)
    if text.endswith(".json") or os.path.isfile(text):
        return read_baseline(text)
    return of_run(reader, text)


def of_run(reader: Reader, reference: str | None = None) -> Baseline:
    """Return a run of the store as a baseline."""
    run = reader.run(reference)
    return Baseline(
        name=run.name or run.run_id,
        run_id=run.run_id,
        accuracy=run.accuracy,
        classes=run.classes,
        stages=reader.rows(Stage, run.run_id, order="stage"),
        counts={what: counts_of(reader, run.run_id, what) for what in ("label", "predicted")},
        distributions=distributions_of(reader, run.run_id),
        code=code_of(run),
        reader=reader,
    )


def code_of(run: Run) -> dict[str, str]:
    """Return the digests of the user's own code files that a run executed, by module."""
    found = run.recipe.get("code")
    return {str(one["module"]): str(one["sha256"]) for one in found} if isinstance(found, list) else {}


def export_baseline(reader: Reader, reference: str | None, path: str | os.PathLike[str]) -> Baseline:
    """Write a run as a baseline file; the same run gives the same bytes."""
    baseline = of_run(reader, reference)
    text = (
        "{\n"
        + ",\n".join(f" {json.dumps(key)}: {_lines(value)}" for key, value in baseline.as_json().items())
        + "\n}\n"
    )
    write_text(path, text)
    return baseline


def _lines(value: Any) -> str:
    """Return JSON with one line for each row, so that a change of the dataset is easy to read in a diff."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return "[\n  " + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n ]"


def read_baseline(path: str) -> Baseline:
    """Read a baseline file."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        stamp = content["format"]
        if stamp["name"] != FORMAT:
            raise ValueError(f"its format is {stamp['name']!r}")
        if stamp["version"] > VERSION:
            raise ValueError(
                f"its version is {stamp['version']}, but this version of audit reads versions up to {VERSION}"
            )
        known = ("name", "run_id", "accuracy", "classes", "counts", "distributions")
        items = [Item(*item) for item in content["sources"]]
        stages = [Stage(**{name: stage[name] for name in field_names(Stage)}) for stage in content["stages"]]
        facts = {key: content[key] for key in known}
        return Baseline(**facts, stages=stages, items=items, code=content.get("code", {}))
    except FileNotFoundError:
        hint = f"Write one with: audit baseline export -o {path}"
        raise NotFound(f"There is no baseline file {path}.", hint=hint).as_usage() from None
    except OSError as error:
        raise UsageError(f"The baseline {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not a baseline file: {error}.", hint=f"Write one with: audit baseline export -o {path}"
        ) from error


def items_of(reader: Reader, run_id: str) -> Iterator[Item]:
    """Yield every source of a run, sorted by name: its first visit's digest and label, its last epoch's prediction."""
    query = f"""
        WITH first AS (
            SELECT source, min(left(source_digest, {SHORT})) AS digest, min(label) AS label,
                   arg_max(status = 'failed', (epoch, status = 'failed')) AS failed FROM samples
            WHERE run_id = {literal(run_id)} AND source IS NOT NULL GROUP BY source),
        last AS (
            SELECT source, arg_max(predicted, p.epoch) AS predicted FROM samples s
            JOIN graded_predictions p USING (run_id, epoch, index, visit) WHERE run_id = {literal(run_id)} GROUP BY source)
        SELECT source, digest, label, predicted, failed AND predicted IS NULL FROM first LEFT JOIN last USING (source) ORDER BY encode(source)
    """
    for _, rows in reader.sql(query, run=[run_id]).batches():
        for row in rows:
            yield Item(*row)


def counts_of(reader: Reader, run_id: str, what: str) -> dict[str, int]:
    """Return how often each label, or each predicted class, occurs."""
    table = "samples" if what == "label" else "graded_predictions"
    rows = reader.sql(
        f"SELECT {what}, count(*) FROM {table} WHERE run_id = {literal(run_id)} AND {what} IS NOT NULL "
        f"GROUP BY {what} ORDER BY {what}",
        run=[run_id],
    ).fetchall()
    return {str(number): count for number, count in rows}


def distributions_of(reader: Reader, run_id: str) -> list[Distribution]:
    """Return quantiles of each stage output's mean and standard deviation, and of the model's confidence."""
    points = "[" + ", ".join(f"{n / (QUANTILES - 1):.4f}" for n in range(QUANTILES)) + "]"
    where = f"run_id = {literal(run_id)}"
    # Tens of thousands of rows give a distribution to within 1 %; reading millions would cost seconds for no gain.
    thin = f"hash(index) % greatest(1, (SELECT count(*) // 50000 FROM samples WHERE {where})) = 0"
    query = " UNION ALL ".join(
        f"SELECT stage, any_value(name) AS name, '{what}' AS statistic, count(*) AS samples, "
        f"quantile_cont({what}, {points}) AS quantiles FROM stage_outputs "
        f"WHERE {where} AND {what} IS NOT NULL AND isfinite({what}) AND {thin} GROUP BY stage"
        for what in ("mean", "std")
    )
    query += (
        f" UNION ALL SELECT NULL, 'prediction', 'confidence', count(*), quantile_cont(confidence, {points}) "
        f"FROM graded_predictions WHERE {where} AND confidence IS NOT NULL AND {thin} HAVING count(*) > 0"
    )
    rows = reader.sql(f"{query} ORDER BY stage NULLS LAST, statistic", run=[run_id]).rows(Distribution)
    for row in rows:
        row["quantiles"] = [float(f"{value:.7g}") for value in row["quantiles"]]
    return rows
