"""Facts about a run that several checks need: each is queried once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from audit.errors import AuditError
from audit.lineage.source_state import SourceFields, read_source
from audit.records import Run, Stage
from audit.sources.contact import allow_sources, may_contact
from audit.store.bucket.location import is_remote
from audit.store.read.reader import Reader
from audit.store.read.rows import QueryRow, Row
from audit.store.sql_literal import literal

if TYPE_CHECKING:
    from audit.checks.baseline import Baseline


class SplitEpochs(TypedDict):
    """The epochs of one split: the first and the last, the last visit, the number of labels, one sample with a file."""

    split: str | None
    first: int
    last: int
    visits: int
    labels: int
    file: SourceFields | None


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

    def typed_rows(
        self, row: type[Row], query: str, *, runs: Sequence[str] = (), parameters: Sequence[Any] = ()
    ) -> list[Row]:
        """Return the rows of a query over this run (and others that are named) as a TypedDict or dataclass that has exactly its columns."""
        return self.reader.sql(query, run=[self.run.run_id, *runs], parameters=parameters).rows(row)

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
    def has_single_visits(self) -> bool:
        """Return whether every row of `samples` is a different item: one epoch, no repeated draw, one loader."""
        return not any(row["last"] != row["first"] or row["visits"] for row in self.epochs)

    @cached_property
    def streams(self) -> list[str | None]:
        """Return the splits whose datasets have no length: the place in a stream names no sample, as a later epoch may have another order."""
        loaders = self.run.recipe.get("loaders")
        listed = loaders if isinstance(loaders, list) else []
        return [one.get("split") for one in listed if isinstance(one, dict) and one.get("length") is None]

    @cached_property
    def several_datasets(self) -> dict[str | None, int]:
        """Return the splits that were recorded from several datasets, as the folds of a cross-validation are.

        The number is how many samples may be called `dataset://0`: those of parts of one dataset are one.
        """
        listed = self.run.recipe.get("several_datasets")
        found = [one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, dict)]
        return {one.get("split"): one["bases"] for one in found if type(one.get("bases")) is int}

    @cached_property
    def root(self) -> str | None:
        """Return where the sources are, if they are files that are still there, or a bucket that can be read."""
        files = [row["file"] for row in self.epochs if row["file"] is not None]
        for file in files:
            allow_sources(self.run, self.reader.location, trust=self.trust, root=file["root"])
        roots = {file["root"]: file for file in files if file["root"] is not None}
        return next((root for root in sorted(roots) if _is_here(roots[root])), None)


def _is_here(file: SourceFields) -> bool:
    """Return whether the sources can be read: the file exists, or its bucket answers."""
    root = file["root"]
    if root is None or not is_remote(root):
        return root is not None and os.path.isdir(root)
    if not may_contact(root):
        return False
    try:
        read_source(file)
    except FileNotFoundError:
        return True
    except (OSError, AuditError):
        return False
    return True
