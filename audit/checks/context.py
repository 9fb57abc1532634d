"""What a check is given: one run's rows as SQL, its options, and what several checks would otherwise ask twice.

Queries name the run, so that the same text is evidence that `audit sql` can run. Work is pushed into DuckDB: only
offenders are fetched, and no more of them than can be told.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from audit.errors import AuditError, UsageError
from audit.lineage.source_state import read_source
from audit.records import Run
from audit.store.bucket.location import is_remote
from audit.store.read.reader import Reader

if TYPE_CHECKING:
    from audit.checks.baseline import Baseline

#: More offenders of one kind than this are counted, not fetched.
MOST_FETCHED = 2_000
#: The same where there is an allow-list: what it excuses must not hide what it does not.
MOST_WITH_EXCUSES = 100_000
#: Kinds of stage outputs that are numbers in a grid.
GRIDS = "('image', 'tensor', 'array')"


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Which samples and stages one check looks at; empty means all."""

    splits: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()


@dataclass
class RunFacts:
    """What is known of a run, asked once and shared by its checks."""

    reader: Reader
    run: Run
    baseline: Baseline | None = None
    cache: dict[Any, Any] = field(default_factory=dict)
    #: Whether code that the store names may run, whoever recorded it.
    trust: bool = False

    def query(self, query: str, *, runs: Sequence[str] = (), parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query over this run (and others that are named)."""
        return self.reader.sql(query, run=[self.run.run_id, *runs], parameters=parameters).dicts()

    @cached_property
    def counts(self) -> dict[str, int]:
        """Rows of each table, from the manifest."""
        counts: dict[str, int] = {}
        for part in self.reader.manifest(self.run.run_id).parts:
            counts[part.table] = counts.get(part.table, 0) + part.rows
        return counts

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """The stages in order."""
        return self.reader.rows("stages", self.run.run_id, order="stage")

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """For each split the first and last epoch, the last visit, the number of labels, and one sample with a file."""
        return self.query(
            "SELECT split, min(epoch) AS first, max(epoch) AS last, max(visit) AS visits, count(label) AS labels, "
            "any_value({root: root, source: source, source_raw: source_raw}) FILTER (root IS NOT NULL) AS file "
            f"FROM samples WHERE run_id = {literal(self.run.run_id)} GROUP BY split ORDER BY split"
        )

    @cached_property
    def regression(self) -> bool:
        """Whether what the model gives is no class: a measured value, or a vector."""
        if self.run.task is not None:
            return self.run.task not in ("classification", "multilabel")
        predictions = f"(FROM graded_predictions WHERE run_id = {literal(self.run.run_id)})"
        outputs = self.query(f"SELECT len(logits) AS outputs FROM {predictions} LIMIT 1")
        if not outputs or outputs[0]["outputs"] != 1:
            return False
        return bool(self.query(f"SELECT avg((label NOT IN (0, 1))::INT) > 0.5 AS so FROM {predictions}")[0]["so"])

    @cached_property
    def once(self) -> bool:
        """Whether every row of `samples` is an item of its own: one epoch, nothing drawn twice, one loader."""
        return not any(row["last"] != row["first"] or row["visits"] for row in self.epochs)

    @cached_property
    def root(self) -> str | None:
        """Where the sources are, if they are files that are still there, or a bucket that can be read."""
        files = {row["file"]["root"]: row["file"] for row in self.epochs if row["file"] is not None}
        return next((root for root in sorted(files) if _is_here(files[root])), None)


class Context:
    """One check's view of one run."""

    def __init__(self, facts: RunFacts, options: Mapping[str, Any], narrowing: Narrowing | None = None) -> None:
        self.facts = facts
        self.reader = facts.reader
        self.run = facts.run
        self.options = options
        self.narrowing = narrowing or Narrowing()
        #: Said beside the outcome: what was left out, what was measured.
        self.notes: list[str] = []
        #: Offenders that were counted but not fetched.
        self.unlisted = 0
        #: How many offenders of one kind are fetched.
        self.most = MOST_FETCHED

        self._require_known()

    def _require_known(self) -> None:
        """A class that is not there is a typing mistake, and would turn the check off without a word."""
        classes = self.run.classes or []
        for wanted in self.narrowing.classes if classes else ():
            if wanted not in classes and not wanted.lstrip("-").isdecimal():
                raise _unknown("class", wanted, classes, self.run.run_id)

    def unmet_split(self) -> str | None:
        """Why none of the splits that the configuration names can be looked at, or None."""
        wanted = self.narrowing.splits
        if not wanted:
            return None
        splits = [str(row["split"]) for row in self.facts.epochs if row["split"] is not None]
        if set(wanted) & set(splits):
            return None
        if any(difflib.get_close_matches(name, splits, n=1, cutoff=0.75) for name in wanted):
            raise _unknown("split", wanted[0], splits, self.run.run_id)
        return f"the run has no sample of the split {' or '.join(wanted)}"

    # -- asking --------------------------------------------------------------------------------------

    def rows(self, query: str, *, runs: Sequence[str] = ()) -> list[dict[str, Any]]:
        """All rows of a query."""
        return self.facts.query(query, runs=runs)

    def value(self, query: str) -> Any:
        """The one value of a query."""
        rows = self.facts.query(query)
        return next(iter(rows[0].values())) if rows else None

    def offenders(self, query: str, order: str = "index", *, runs: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The rows of a query that should have none; those beyond `most` are counted in `unlisted`.

        Rows with an index and without a source are given theirs: looking up a few is cheaper than joining millions.
        """
        rows = self.facts.query(f"FROM ({query}) ORDER BY {order} LIMIT {self.most}", runs=runs)
        if len(rows) == self.most:
            # Counting them in the same query would hold them all.
            total = self.facts.query(f"SELECT count(*) AS total FROM ({query})", runs=runs)[0]["total"]
            self.unlisted += total - len(rows)
        if rows and "index" in rows[0] and "source" not in rows[0]:
            self.name(rows)
        return rows

    def name(self, rows: Sequence[dict[str, Any]]) -> None:
        """Give rows with an index, and where several loaders share it an epoch and a visit, their source."""
        listed = ", ".join(str(index) for index in sorted({row["index"] for row in rows})) or "NULL"
        known = self.rows(
            "SELECT DISTINCT epoch, index, visit, source FROM samples "
            f"WHERE run_id = {self.run_literal} AND index IN ({listed}) ORDER BY ALL"
        )
        by_visit = {(row["epoch"], row["index"], row["visit"]): row["source"] for row in known}
        by_index = {row["index"]: row["source"] for row in reversed(known)}
        for row in rows:
            key = (row.get("epoch"), row["index"], row.get("visit"))
            row["source"] = by_visit.get(key, by_index.get(row["index"]))

    def cached(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query that several checks ask."""
        if query not in self.facts.cache:
            self.facts.cache[query] = self.rows(query)
        found: list[dict[str, Any]] = self.facts.cache[query]
        return found

    def note(self, text: str) -> None:
        """Say something beside the outcome."""
        self.notes.append(text)

    # -- this run's rows, as SQL ---------------------------------------------------------------------

    @cached_property
    def run_literal(self) -> str:
        """The run id as SQL text."""
        return literal(self.run.run_id)

    @cached_property
    def samples(self) -> str:
        """The samples that this check looks at."""
        return f"(SELECT * FROM samples WHERE {self._sample_condition})"

    @cached_property
    def items(self) -> str:
        """One row for each item of the dataset: the first visit of each.

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
        everything = stages == [row["stage"] for row in self.facts.stages]
        where = "" if everything or not stages else f" AND stage IN ({', '.join(map(str, stages))})"
        return self._belonging("stage_outputs", where)

    @cached_property
    def sources_decoded(self) -> str:
        """Stage 0 of each item of the dataset, once."""
        return f"(SELECT * FROM {self.outputs} WHERE stage = 0{self.of_items})"

    @cached_property
    def of_items(self) -> str:
        """A condition on rows of any table about visits: the first visit of each item."""
        return (
            "" if self.facts.once else f" AND (epoch, index, visit) IN (SELECT (epoch, index, visit) FROM {self.items})"
        )

    @cached_property
    def predictions(self) -> str:
        """The predictions of the last complete epoch, which `runs.accuracy` is of; of the newest where none is."""
        newest = max((row["last"] for row in self.facts.epochs), default=0)
        last = newest if self.run.last_epoch is None else self.run.last_epoch
        several = any(row["first"] != last or row["last"] != last for row in self.facts.epochs)
        return self._belonging("graded_predictions", f" AND epoch = {last}" if several else "")

    @cached_property
    def all_predictions(self) -> str:
        """The predictions of every epoch."""
        return self._belonging("graded_predictions")

    @cached_property
    def activations(self) -> str:
        """What hooked layers saw and produced."""
        return f"(SELECT * FROM activations WHERE run_id = {self.run_literal})"

    def _belonging(self, table: str, where: str = "") -> str:
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
        """The stages that this check looks at: on the way to the model, and chosen if any are."""
        inputs = [row for row in self.facts.stages if not row["path"].startswith("target")]
        if not self.narrowing.stages:
            return {row["stage"] for row in inputs}
        return {row["stage"] for wanted in self.narrowing.stages for row in self.stages_called(wanted)}

    def stages_called(self, wanted: str) -> list[dict[str, Any]]:
        """The stages that a name, a path or a number means; a UsageError names the nearest."""
        stages = self.facts.stages
        # A path first: with nested stages the number 3 is another stage than the path 3.
        found = [row for row in stages if wanted == row["path"]] or [
            row for row in stages if wanted in (row["name"], str(row["stage"]))
        ]
        if not found:
            raise _unknown("stage", wanted, [row["name"] for row in stages], self.run.run_id)
        return found

    def stage_name(self, number: int | None) -> str:
        """The name of a stage, for messages."""
        return next((str(row["name"]) for row in self.facts.stages if row["stage"] == number), f"stage {number}")

    @cached_property
    def pipelines(self) -> list[list[dict[str, Any]]]:
        """The stages on the way to the model, for each recorded loader: their paths begin anew, but share `load`."""
        found: list[list[dict[str, Any]]] = []
        seen: set[str] = set()
        for row in self.facts.stages:
            if row["path"].startswith("target"):
                continue
            if row["path"] in seen or not found:
                found.append([found[0][0]] if found and row["stage"] else [])
                seen = set()
            seen.add(row["path"])
            found[-1].append(row)
        return found

    @cached_property
    def last_stages(self) -> list[int]:
        """The stages whose outputs the model is given, one for each pipeline."""
        return [pipeline[-1]["stage"] for pipeline in self.pipelines]

    @cached_property
    def profile(self) -> list[dict[str, Any]]:
        """What each stage gave over the whole run, by kind, dtype and mode: one pass that many checks share."""
        return self.cached(
            "SELECT stage, any_value(name) AS name, kind, dtype, mode, count(*) AS visits, "
            "count(*) FILTER (nonfinite > 0) AS nonfinite, count(*) FILTER (min = max) AS constant, "
            "min(min) AS low, max(max) AS high, avg(mean) AS mean, avg(std) AS std, "
            "approx_quantile(max, 0.5) AS middle_max, approx_quantile(min, 0.5) AS middle_min "
            f"FROM {self.outputs} GROUP BY stage, kind, dtype, mode ORDER BY stage, visits DESC"
        )

    def evidence(self, table: str, index: int, where: str = "") -> str:
        """A query that shows one sample's rows."""
        return f"FROM {table} WHERE run_id = {self.run_literal} AND index = {index}" + (
            f" AND {where}" if where else ""
        )


def _unknown(noun: str, wanted: str, names: Sequence[str], run_id: str) -> UsageError:
    near = difflib.get_close_matches(wanted, names, n=2)
    return UsageError(
        f"The configuration names the {noun} {wanted!r}, which the run {run_id} does not have.",
        hint=f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(names[:20])}.",
    )


def _is_here(file: Mapping[str, Any]) -> bool:
    """Whether there is anything to read: a bucket answers, even if this object is gone from it."""
    if not is_remote(file["root"]):
        return os.path.isdir(file["root"])
    try:
        read_source(file)
    except FileNotFoundError:
        return True
    except (OSError, AuditError):
        return False
    return True


def literal(value: object) -> str:
    """A value as SQL text."""
    if value is None:
        return "NULL"
    if isinstance(value, (bool, int, float)):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
