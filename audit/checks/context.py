"""The input of a check: one run's rows as SQL, its options, and query results that several checks share.

Queries name the run, so that the same text is evidence that `audit sql` can run. Work is pushed into DuckDB: only
offending rows are fetched, and no more of them than can be reported.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from audit.config import Settings
from audit.errors import AuditError, UsageError
from audit.lineage.source_state import SourceFields, read_source
from audit.records import Run, Stage
from audit.store.bucket.location import is_remote
from audit.store.read.reader import Reader
from audit.store.read.rows import QueryRow, Row
from audit.store.sql_literal import literal

if TYPE_CHECKING:
    from audit.checks.baseline import Baseline

#: At most this many offending rows of one kind are fetched; the rest is counted.
MOST_FETCHED = 2_000
#: The same limit for a check with an allow-list: allowed rows must not hide the others.
MOST_WITH_EXCUSES = 100_000
#: Kinds of stage outputs that are numbers in a grid.
GRIDS = "('image', 'tensor', 'array')"
#: Names of splits that a model is evaluated on.
EVALUATION = ("test", "val", "valid", "validation", "eval", "evaluation", "dev", "holdout")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The samples, stages and runs that one check looks at; empty means all."""

    splits: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    #: File names or patterns: the check judges only runs of these pipelines and datasets.
    pipelines: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


class SplitEpochs(TypedDict):
    """The epochs of one split: the first and the last, the last visit, the number of labels, one sample with a file."""

    split: str | None
    first: int
    last: int
    visits: int
    labels: int
    file: SourceFields | None


class OutputProfile(TypedDict):
    """Statistics of one stage's outputs of one kind, dtype and mode."""

    stage: int
    name: str
    kind: str
    dtype: str | None
    mode: str | None
    visits: int
    nonfinite: int
    constant: int
    low: float | None
    high: float | None
    mean: float | None
    std: float | None
    middle_max: float | None
    middle_min: float | None


class NamedVisit(TypedDict):
    """A visit, and the source of its sample."""

    epoch: int
    index: int
    visit: int
    source: str | None


@dataclass
class RunFacts:
    """Facts about a run, queried once and shared by its checks."""

    reader: Reader
    run: Run
    baseline: Baseline | None = None
    cache: dict[Any, Any] = field(default_factory=dict)
    #: Whether code that the store names may run, even if another machine recorded it.
    trust: bool = False
    #: Whether checks may run the pipeline and the model on a few hundred samples.
    probe: bool = False

    def query(self, query: str, *, runs: Sequence[str] = (), parameters: Sequence[Any] = ()) -> list[QueryRow]:
        """Return the rows of a query over this run (and others that are named)."""
        return self.reader.sql(query, run=[self.run.run_id, *runs], parameters=parameters).dicts()

    @cached_property
    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table, from the manifest."""
        counts: dict[str, int] = {}
        for part in self.reader.manifest(self.run.run_id).parts:
            counts[part.table] = counts.get(part.table, 0) + part.rows
        return counts

    @cached_property
    def stages(self) -> list[Stage]:
        """Return the stages in order."""
        return self.reader.rows(Stage, self.run.run_id, order="stage")

    def typed_rows(self, row: type[Row], query: str, *, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query over this run as a TypedDict or dataclass that has exactly its columns."""
        return self.reader.sql(query, run=[self.run.run_id], parameters=parameters).rows(row)

    @cached_property
    def epochs(self) -> list[SplitEpochs]:
        """Return each split's first and last epoch, last visit, number of labels, and one sample with a file."""
        return self.typed_rows(
            SplitEpochs,
            "SELECT split, min(epoch) AS first, max(epoch) AS last, max(visit) AS visits, count(label) AS labels, "
            "any_value({root: root, source: source, source_raw: source_raw}) FILTER (root IS NOT NULL) AS file "
            f"FROM samples WHERE run_id = {literal(self.run.run_id)} GROUP BY split ORDER BY split",
        )

    @cached_property
    def regression(self) -> bool:
        """Return whether the model's output is not a class but a measured value or a vector."""
        if self.run.task is not None:
            return self.run.task not in ("classification", "multilabel")
        predictions = f"(FROM graded_predictions WHERE run_id = {literal(self.run.run_id)})"
        outputs = self.query(f"SELECT len(logits) AS outputs FROM {predictions} LIMIT 1")
        if not outputs or outputs[0]["outputs"] != 1:
            return False
        return bool(self.query(f"SELECT avg((label NOT IN (0, 1))::INT) > 0.5 AS so FROM {predictions}")[0]["so"])

    @cached_property
    def once(self) -> bool:
        """Return whether every row of `samples` is a different item: one epoch, no repeated draw, one loader."""
        return not any(row["last"] != row["first"] or row["visits"] for row in self.epochs)

    @cached_property
    def root(self) -> str | None:
        """Return where the sources are, if they are files that are still there, or a bucket that can be read."""
        files = [row["file"] for row in self.epochs if row["file"] is not None]
        roots = {file["root"]: file for file in files if file["root"] is not None}
        return next((root for root in sorted(roots) if _is_here(roots[root])), None)


class Context:
    """One check's view of one run."""

    def __init__(self, facts: RunFacts, options: Settings, narrowing: Narrowing | None = None) -> None:
        self.facts = facts
        self.reader = facts.reader
        self.run = facts.run
        self.options = options
        self.narrowing = narrowing or Narrowing()
        #: Notes shown with the outcome: what was left out, what was measured.
        self.notes: list[str] = []
        #: Offending rows that were counted but not fetched.
        self.unlisted = 0
        #: How many offending rows of one kind are fetched.
        self.most = MOST_FETCHED

        self._require_known()

    def _require_known(self) -> None:
        """Raise UsageError for a configured class that the run does not have: it would silently disable the check."""
        classes = self.run.classes or []
        for wanted in self.narrowing.classes if classes else ():
            if wanted not in classes and not wanted.lstrip("-").isdecimal():
                raise _unknown_name_error("class", wanted, classes, self.run.run_id)

    def unmet_run(self) -> str | None:
        """Return why this run is not one that the configuration names for the check, or None."""
        for noun, wanted, given in (
            ("pipeline", self.narrowing.pipelines, pipeline_name(self.run)),
            ("dataset", self.narrowing.datasets, dataset_name(self.run)),
        ):
            if wanted and not any(fnmatch.fnmatchcase(given or "", pattern) for pattern in wanted):
                return f"the configuration limits it to runs of the {noun} {' or '.join(wanted)}"
        return None

    def unmet_split(self) -> str | None:
        """Return why none of the splits that the configuration names can be looked at, or None."""
        wanted = self.narrowing.splits
        if not wanted:
            return None
        splits = [str(row["split"]) for row in self.facts.epochs if row["split"] is not None]
        if set(wanted) & set(splits):
            return None
        if any(difflib.get_close_matches(name, splits, n=1, cutoff=0.75) for name in wanted):
            raise _unknown_name_error("split", wanted[0], splits, self.run.run_id)
        return f"the run has no sample of the split {' or '.join(wanted)}"

    # -- queries -------------------------------------------------------------------------------------

    def rows(self, query: str, *, runs: Sequence[str] = ()) -> list[QueryRow]:
        """Return all rows of a query."""
        return self.facts.query(query, runs=runs)

    def value(self, query: str) -> Any:
        """Return the one value of a query."""
        rows = self.facts.query(query)
        return next(iter(rows[0].values())) if rows else None

    def offenders(self, query: str, order: str = "index", *, runs: Sequence[str] = ()) -> list[QueryRow]:
        """Return the rows of a query that should have none; those beyond `most` are counted in `unlisted`.

        Rows with an index and without a source get their source here: looking up a few is cheaper than joining millions.
        """
        rows = self.facts.query(f"FROM ({query}) ORDER BY {order} LIMIT {self.most}", runs=runs)
        if len(rows) == self.most:
            # Counting in the same query would keep all rows in memory.
            total = self.facts.query(f"SELECT count(*) AS total FROM ({query})", runs=runs)[0]["total"]
            self.unlisted += total - len(rows)
        if rows and "index" in rows[0] and "source" not in rows[0]:
            self.name(rows)
        return rows

    def name(self, rows: Sequence[QueryRow]) -> None:
        """Add the source to rows that have an index (and an epoch and a visit, if several loaders share the index)."""
        listed = ", ".join(str(index) for index in sorted({row["index"] for row in rows})) or "NULL"
        known = self.facts.typed_rows(
            NamedVisit,
            "SELECT DISTINCT epoch, index, visit, source FROM samples "
            f"WHERE run_id = {self.run_literal} AND index IN ({listed}) ORDER BY ALL",
        )
        by_visit = {(row["epoch"], row["index"], row["visit"]): row["source"] for row in known}
        by_index = {row["index"]: row["source"] for row in reversed(known)}
        for row in rows:
            visit = (row.get("epoch", -1), row["index"], row.get("visit", -1))
            row["source"] = by_visit[visit] if visit in by_visit else by_index.get(row["index"])

    def cached(self, query: str) -> list[QueryRow]:
        """Return the rows of a query that several checks run; it runs once."""
        if query not in self.facts.cache:
            self.facts.cache[query] = self.rows(query)
        found: list[dict[str, Any]] = self.facts.cache[query]
        return found

    def note(self, text: str) -> None:
        """Add a note that is shown with the outcome."""
        self.notes.append(text)

    # -- this run's rows, as SQL ---------------------------------------------------------------------

    @cached_property
    def run_literal(self) -> str:
        """Return the run id as SQL text."""
        return literal(self.run.run_id)

    @cached_property
    def samples(self) -> str:
        """Return the samples that this check looks at."""
        return f"(SELECT * FROM samples WHERE {self._sample_condition})"

    @cached_property
    def items(self) -> str:
        """Return one row for each item of the dataset: the first visit of each.

        Two loaders of one run have the same indices, so that only split, index and source together name an item; and
        a sampler may leave out in the first epoch what it draws in another.
        """
        text = f"SELECT * FROM samples WHERE {self._sample_condition}"
        if not self.facts.once:
            text += " QUALIFY row_number() OVER (PARTITION BY split, index, source ORDER BY epoch, visit) = 1"
        return f"({text})"

    @cached_property
    def outputs(self) -> str:
        """Stage outputs on the way to the model, of the samples and stages that this check looks at."""
        stages = sorted(self.stage_numbers)
        everything = stages == [stage.stage for stage in self.facts.stages]
        where = "" if everything or not stages else f" AND stage IN ({', '.join(map(str, stages))})"
        return self._rows_of_run("stage_outputs", where)

    @cached_property
    def sources_decoded(self) -> str:
        """Stage 0 of each item of the dataset, once."""
        return f"(SELECT * FROM {self.outputs} WHERE stage = 0{self.of_items})"

    @cached_property
    def of_items(self) -> str:
        """Return an SQL condition that keeps the first visit of each item."""
        return (
            "" if self.facts.once else f" AND (epoch, index, visit) IN (SELECT (epoch, index, visit) FROM {self.items})"
        )

    @cached_property
    def predictions(self) -> str:
        """Return the predictions of the last complete epoch (as `runs.accuracy`), or else of the newest epoch."""
        newest = max((row["last"] for row in self.facts.epochs), default=0)
        last = newest if self.run.last_epoch is None else self.run.last_epoch
        several = any(row["first"] != last or row["last"] != last for row in self.facts.epochs)
        return self._rows_of_run("graded_predictions", f" AND epoch = {last}" if several else "")

    @cached_property
    def all_predictions(self) -> str:
        """Return the predictions of every epoch."""
        return self._rows_of_run("graded_predictions")

    @cached_property
    def activations(self) -> str:
        """Return the recorded inputs and outputs of layers."""
        return f"(SELECT * FROM activations WHERE run_id = {self.run_literal})"

    def _rows_of_run(self, table: str, where: str = "") -> str:
        text = f"SELECT * FROM {table} WHERE run_id = {self.run_literal}{where}"
        if self.narrowing.splits or self.narrowing.classes:
            text += (
                f" AND (epoch, index, visit) IN (SELECT (epoch, index, visit) FROM samples "
                f"WHERE {self._sample_condition})"
            )
        return f"({text})"

    @property
    def _sample_condition(self) -> str:
        conditions = [f"run_id = {self.run_literal}"]
        if self.narrowing.splits:
            conditions.append(f"split IN ({', '.join(map(literal, self.narrowing.splits))})")
        if self.narrowing.classes:
            chosen = ", ".join(map(literal, self.narrowing.classes))
            conditions.append(f"(label_name IN ({chosen}) OR label::VARCHAR IN ({chosen}))")
        return " AND ".join(conditions)

    # -- stages --------------------------------------------------------------------------------------

    @cached_property
    def stage_numbers(self) -> set[int]:
        """Return the stages that this check looks at: those that lead to the model, or the configured ones among them."""
        if not self.narrowing.stages:
            return {stage.stage for stage in self.facts.stages if not stage.is_target}
        return {stage.stage for wanted in self.narrowing.stages for stage in self.stages_called(wanted)}

    def stages_called(self, wanted: str) -> list[Stage]:
        """Return the stages with this name, path or number; raise UsageError with the nearest names if there is none."""
        stages = self.facts.stages
        # A path first: with nested stages the number 3 is another stage than the path 3.
        found = [stage for stage in stages if wanted == stage.path] or [
            stage for stage in stages if wanted in (stage.name, str(stage.stage))
        ]
        if not found:
            raise _unknown_name_error("stage", wanted, [stage.name for stage in stages], self.run.run_id)
        return found

    def stage_name(self, number: int | None) -> str:
        """Return the name of a stage, for messages."""
        return next((stage.name for stage in self.facts.stages if stage.stage == number), f"stage {number}")

    @cached_property
    def pipelines(self) -> list[list[Stage]]:
        """Return the stages that lead to the model, one list for each recorded loader; the lists share `load`."""
        found: list[list[Stage]] = []
        seen: set[str] = set()
        for stage in self.facts.stages:
            if stage.is_target:
                continue
            if stage.path in seen or not found:
                found.append([found[0][0]] if found and stage.stage else [])
                seen = set()
            seen.add(stage.path)
            found[-1].append(stage)
        return found

    @cached_property
    def last_stages(self) -> list[int]:
        """Return the stages whose outputs are the model's input, one for each pipeline."""
        return [pipeline[-1].stage for pipeline in self.pipelines]

    @cached_property
    def profile(self) -> list[OutputProfile]:
        """Return statistics of each stage's outputs over the run, by kind, dtype and mode; one query that checks share."""
        query = (
            "SELECT stage, any_value(name) AS name, kind, dtype, mode, count(*) AS visits, "
            "count(*) FILTER (nonfinite > 0) AS nonfinite, count(*) FILTER (min = max) AS constant, "
            "min(min) AS low, max(max) AS high, avg(mean) AS mean, avg(std) AS std, "
            "approx_quantile(max, 0.5) AS middle_max, approx_quantile(min, 0.5) AS middle_min "
            f"FROM {self.outputs} GROUP BY stage, kind, dtype, mode ORDER BY stage, visits DESC"
        )
        if query not in self.facts.cache:
            self.facts.cache[query] = self.facts.typed_rows(OutputProfile, query)
        found: list[OutputProfile] = self.facts.cache[query]
        return found

    def evidence(self, table: str, index: int, where: str = "") -> str:
        """Return a query that shows one sample's rows."""
        return f"FROM {table} WHERE run_id = {self.run_literal} AND index = {index}" + (
            f" AND {where}" if where else ""
        )


def pipeline_name(run: Run) -> str | None:
    """Return the name of the pipeline's file, as the configuration names it; None if the run has none."""
    pipeline = run.recipe.get("pipeline")
    if not isinstance(pipeline, str):
        return None
    file = pipeline.rpartition(":")[0] if pipeline.rpartition(":")[0].endswith(".py") else pipeline
    return os.path.basename(file)


def dataset_name(run: Run) -> str | None:
    """Return the dataset's last name, as the configuration names it; None if the run has none."""
    return os.path.basename(run.dataset.rstrip("/")) if run.dataset else None


def _unknown_name_error(noun: str, wanted: str, names: Sequence[str], run_id: str) -> UsageError:
    near = difflib.get_close_matches(wanted, names, n=2)
    return UsageError(
        f"The configuration names the {noun} {wanted!r}, which the run {run_id} does not have.",
        hint=f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(names[:20])}.",
    )


def _is_here(file: SourceFields) -> bool:
    """Return whether the sources can be read: the file exists, or its bucket answers."""
    root = file["root"]
    if root is None or not is_remote(root):
        return root is not None and os.path.isdir(root)
    try:
        read_source(file)
    except FileNotFoundError:
        return True
    except (OSError, AuditError):
        return False
    return True
