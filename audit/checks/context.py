"""The input of a check: one run's rows as SQL, its options, and query results that several checks share.

Queries name the run, so that the same text is evidence that `audit sql` can run. Work is pushed into DuckDB: only
offending rows are fetched, and no more of them than can be reported.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypedDict

from audit.checks.narrowing import Narrowing, dataset_name, pipeline_name
from audit.checks.recorded_pipelines import recorded_pipelines
from audit.checks.shared_facts import RunFacts
from audit.config import Settings
from audit.errors import UsageError
from audit.records import Stage
from audit.store.read.rows import QueryRow, Row, as_rows
from audit.store.sql_literal import literal

#: At most this many offending rows of one kind are fetched; the rest is counted.
MOST_FETCHED = 2_000
#: The same limit for a check with an allow-list: allowed rows must not hide the others.
MOST_WITH_ALLOW_LIST = 100_000
#: More findings than this, on half of all samples or more, have one cause: they are one finding with a count.
_MANY = 20
#: Kinds of stage outputs that are numbers in a grid.
GRIDS = "('image', 'tensor', 'array')"


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

    def typed_rows(self, row: type[Row], query: str, *, runs: Sequence[str] = ()) -> list[Row]:
        """Return all rows of a query, as a TypedDict or dataclass that has exactly its columns."""
        return self.facts.typed_rows(row, query, runs=runs)

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
            sources = self.sources_of([(row.get("epoch"), row["index"], row.get("visit")) for row in rows])
            for row, source in zip(rows, sources, strict=True):
                row["source"] = source
        return rows

    def typed_offenders(self, row: type[Row], query: str, order: str = "index") -> list[Row]:
        """Return what `offenders` does, as a TypedDict or dataclass that has exactly its columns."""
        found = self.offenders(query, order)
        return as_rows(row, tuple(found[0]), (tuple(one.values()) for one in found)) if found else []

    def offenders_by_cause(self, query: str, cause: str = "stage", own: str = "stage = 0") -> list[QueryRow]:
        """Return offending rows as `offenders` does; if many have one cause, one row stands for them: `others` says for how many.

        `cause` is SQL for what made them so. Where `own` is true each sample has a cause of its own, unless half of all samples have it.
        Never if the configuration has an allow-list: it names samples.
        """
        counted = self.rows(f"SELECT {cause} AS cause, {own} AS own, count(*) AS found FROM ({query}) GROUP BY ALL")
        if not counted:
            return []
        half = self.run.samples / 2
        many = [
            row for row in counted
            if row["found"] > _MANY and (not row["own"] or row["found"] >= half) and self.most < MOST_WITH_ALLOW_LIST
        ]  # fmt: skip
        found = {row["cause"]: row["found"] for row in many}
        listed = ", ".join(map(literal, found)) or "NULL"
        rows = self.offenders(
            f"SELECT *, {cause} AS cause FROM ({query}) QUALIFY NOT coalesce(cause IN ({listed}), false) "
            "OR row_number() OVER (PARTITION BY cause ORDER BY index) = 1"
        )
        for row in rows:
            row["others"] = found.get(row["cause"], 1) - 1
        return rows

    def has_one_cause(self, found: int, total: int) -> bool:
        """Return whether so many of all samples are affected that they are reported as one finding.

        Never if the configuration has an allow-list: it names samples.
        """
        return found > _MANY and 2 * found >= total and self.most < MOST_WITH_ALLOW_LIST

    def sources_of(self, visits: Sequence[tuple[int | None, int, int | None]]) -> list[str | None]:
        """Return the source of each (epoch, index, visit); without an epoch or a visit, the one that the index has first."""
        listed = ", ".join(map(str, sorted({index for _, index, _ in visits}))) or "NULL"
        known = self.facts.typed_rows(
            NamedVisit,
            "SELECT DISTINCT epoch, index, visit, source FROM samples "
            f"WHERE run_id = {self.run_literal} AND index IN ({listed}) ORDER BY ALL",
        )
        by_visit: dict[tuple[int | None, int, int | None], str | None] = {
            (row["epoch"], row["index"], row["visit"]): row["source"] for row in known
        }
        by_index = {row["index"]: row["source"] for row in reversed(known)}
        return [by_visit[visit] if visit in by_visit else by_index.get(visit[1]) for visit in visits]

    def query_once(self, query: str) -> list[QueryRow]:
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
        """Return SQL for the rows of `samples` that this check looks at: one for each visit."""
        return f"(SELECT * FROM samples WHERE {self._sample_condition})"

    @cached_property
    def items(self) -> str:
        """Return SQL for one row of each item of the dataset: the row of its first visit.

        Two loaders of one run have the same indices, so that only split, index and source together name an item; and
        a sampler may leave out in the first epoch what it draws in another.
        """
        text = f"SELECT * FROM samples WHERE {self._sample_condition}"
        if not self.facts.has_single_visits:
            text += " QUALIFY row_number() OVER (PARTITION BY split, index, source ORDER BY epoch, visit) = 1"
        return f"({text})"

    @cached_property
    def in_several_datasets(self) -> str:
        """Return an SQL condition for samples of splits that several datasets are of, such as folds: one sample may have an index in each."""
        chosen = (f"split IS NOT DISTINCT FROM {literal(split)}" for split in self.facts.several_datasets)
        return f"({' OR '.join(chosen) or 'false'})"

    @cached_property
    def outputs(self) -> str:
        """Stage outputs on the way to the model, of the samples and stages that this check looks at."""
        stages = sorted(self.stage_numbers)
        everything = stages == [stage.stage for stage in self.facts.stages]
        where = "" if everything or not stages else f" AND stage IN ({', '.join(map(str, stages))})"
        return self._rows_of_run("stage_outputs", where)

    @cached_property
    def load_outputs(self) -> str:
        """Stage 0 of each item of the dataset, once."""
        return f"(SELECT * FROM {self.outputs} WHERE stage = 0{self.of_items})"

    @cached_property
    def of_items(self) -> str:
        """Return an SQL condition that keeps the first visit of each item."""
        return (
            ""
            if self.facts.has_single_visits
            else f" AND (epoch, index, visit) IN (SELECT (epoch, index, visit) FROM {self.items})"
        )

    @cached_property
    def predictions(self) -> str:
        """Return the predictions of the last complete epoch (as `runs.accuracy`), or else of the newest epoch."""
        newest = max((row["last"] for row in self.facts.epochs), default=0)
        last = newest if self.run.last_epoch is None else self.run.last_epoch
        several = any(row["first"] != last or row["last"] != last for row in self.facts.epochs)
        return self._rows_of_run("graded_predictions", f" AND epoch = {last}" if several else "")

    @property
    def judged_split(self) -> str | None:
        """Return the split that `runs.accuracy` is of, unless the configuration names others."""
        return None if self.narrowing.splits else self.run.accuracy_split

    @cached_property
    def judged_predictions(self) -> str:
        """Return the predictions that `runs.accuracy` is of, unless the configuration names other splits."""
        split = self.judged_split
        if split is None:
            return self.predictions
        chosen = f"run_id = {self.run_literal} AND split = {literal(split)}"
        keys = f"SELECT (epoch, index, visit) FROM samples WHERE {chosen}"
        return f"(SELECT * FROM {self.predictions} WHERE (epoch, index, visit) IN ({keys}))"

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
        """Return the stages that lead to the model, one list for each recorded pipeline."""
        stages = [stage for stage in self.facts.stages if not stage.is_target]
        if len({stage.path for stage in stages}) == len(stages):
            return [stages] if stages else []
        return recorded_pipelines(self.facts, stages)

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


def _unknown_name_error(noun: str, wanted: str, names: Sequence[str], run_id: str) -> UsageError:
    near = difflib.get_close_matches(wanted, names, n=2)
    return UsageError(
        f"The configuration names the {noun} {wanted!r}, which the run {run_id} does not have.",
        hint=f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(names[:20])}.",
    )
