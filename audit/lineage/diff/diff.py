"""Compares two runs, and says whether the data, the preprocessing or the model made them differ.

Samples of the two runs are matched in pairs, and the stages of their pipelines aligned. For each pair the first stage with
different outputs is found, and for each flipped prediction a cause. If a run has several epochs, its last is compared.
DuckDB does all counting; only the rows that are shown are fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from audit.display import PrintableView
from audit.errors import UsageError
from audit.lineage.diff.call_changes import call_changes
from audit.lineage.diff.first_divergence import Divergence, find_divergences, version_changes
from audit.lineage.diff.flip_measurement import measure_causes
from audit.lineage.diff.flips import Flips, find_flips
from audit.lineage.diff.matching import Side, match_visits, side_of
from audit.lineage.diff.pairs_table import compare_pairs
from audit.lineage.diff.stage_alignment import AlignmentStep, align
from audit.plainjson import JsonObject
from audit.records import Progress
from audit.store.read.reader import Reader
from audit.store.read.scratch import Scratch, TempTable

#: How many rows of each list are fetched by default. Counts are always of all rows.
DEFAULT_ROWS = 10_000

_CHANGED_ROWS = """
    SELECT source, coalesce(renamed_to, source) AS source_b, index_a, index_b, label_a, label_b, label_name_a, label_name_b
    FROM {compared} WHERE {condition} ORDER BY index_b, visit_b, index_a LIMIT {rows}
"""
_LISTS = {
    "source_changed": "source_changed",
    "label_changed": "label_changed",
    "renamed": "how = 'renamed'",
    "reencoded": "how IN ('reencoded', 'alike')",
    "newly_failed": "failed_b AND NOT failed_a",
    "no_longer_failed": "failed_a AND NOT failed_b",
    "failed_in_both": "failed_a AND failed_b",
}


class ChangedSample(TypedDict):
    """A matched sample whose content, label, file name or failure differs between the runs."""

    source: str
    source_b: str
    index_a: int
    index_b: int
    label_a: int | None
    label_b: int | None
    label_name_a: str | None
    label_name_b: str | None


class LoneSample(TypedDict):
    """A sample that only one of the runs has."""

    source: str
    index: int
    label: int | None
    label_name: str | None


@dataclass(slots=True)
class Diff(PrintableView):
    """What differs between two runs. Made by `Store.diff`."""

    a: Side
    b: Side
    #: How many pairs of samples there are, how many of them have a stage with different outputs, and how many failed
    #: in both runs at the same stage with the same error.
    matched: int
    divergent: int
    same_failure: int
    #: How many entries each list below has in all, by its name; a list may be shorter.
    counts: dict[str, int]
    lists: dict[str, list[ChangedSample]]
    #: Samples that only `b` has, and those that only `a` has.
    added: list[LoneSample]
    removed: list[LoneSample]
    #: The stages of both pipelines, aligned.
    steps: list[AlignmentStep]
    divergences: list[Divergence]
    flips: Flips
    notes: list[str] = field(default_factory=list)
    versions: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    #: How many samples have outputs that could not be compared, and none that differs, by the name of the first such stage.
    not_compared: dict[str, int] = field(default_factory=dict)
    #: What differs in how the models were called: mode, device, batch size.
    calls: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def regressions(self) -> int:
        """How many samples are right in `a`, and wrong or failed in `b`."""
        return self.flips.total("regressions")

    @property
    def fixes(self) -> int:
        """How many samples are wrong or failed in `a`, and right in `b`."""
        return self.flips.total("fixes")

    @property
    def same(self) -> bool:
        """Whether at least one sample was compared, and no sample, output or prediction differs."""
        changes = (count for name, count in self.counts.items() if name != "failed_in_both")
        return self.matched > 0 and not self.divergent and not any(changes)

    @property
    def identical(self) -> int:
        """How many matched samples have equal outputs at every stage, and did not fail."""
        return self.matched - self.divergent - self.same_failure - sum(self.not_compared.values())

    @property
    def first_divergent_stage(self) -> dict[str, int]:
        """How many samples first differ at each stage, by its name, in the order of the pipeline."""
        found: dict[str, int] = {}
        for group in self.divergences:
            found[group.step.name] = found.get(group.step.name, 0) + group.count
        return found

    def exceeded_limits(self, *, max_regressions: int | None = None, max_divergent: int | None = None) -> list[str]:
        """Return one sentence for each limit that is exceeded, and one if no sample was compared, even without limits."""
        broken = []
        if not self.matched:
            broken.append("no sample of one run is in the other, so nothing was compared")
        if max_regressions is not None:
            for side, predictions in ((self.a, self.flips.predictions_a), (self.b, self.flips.predictions_b)):
                if not predictions and side.run.samples > side.run.failed:
                    raise UsageError(
                        f"The run {side.run.run_id} has no predictions, so regressions cannot be counted.",
                        hint="Record it with a model, or use --max-divergent alone.",
                    )
            if self.regressions > max_regressions:
                broken.append(f"{self.regressions:,} regressions, more than the {max_regressions:,} allowed")
        if max_divergent is not None and self.divergent > max_divergent:
            broken.append(f"{self.divergent:,} divergent samples, more than the {max_divergent:,} allowed")
        return broken

    def as_json(self) -> JsonObject:
        """Return the diff as `audit diff --json` prints it."""
        flips = self.flips
        return {
            "a": self.a.run.run_id,
            "b": self.b.run.run_id,
            "name_a": self.a.run.name,
            "name_b": self.b.run.name,
            "epoch_a": self.a.epoch,
            "epoch_b": self.b.epoch,
            "matched": self.matched,
            "divergent": self.divergent,
            "identical": self.identical,
            "counts": self.counts,
            "added": self.added,
            "removed": self.removed,
            **self.lists,
            "first_divergent_stage": self.first_divergent_stage,
            "not_compared": self.not_compared,
            "divergences": [group.as_json() for group in self.divergences],
            "stages": [step.as_json() for step in self.steps],
            **flips.lists,
            "causes": flips.counts,
            "accuracy_a": flips.accuracy_a,
            "accuracy_b": flips.accuracy_b,
            "accuracy_split": flips.accuracy_split,
            "run_accuracy_a": flips.run_accuracy_a,
            "run_accuracy_b": flips.run_accuracy_b,
            "mcnemar_p": flips.mcnemar_p,
            "per_class": flips.per_class,
            "calls": {name: list(pair) for name, pair in self.calls.items()},
            "versions": {name: list(pair) for name, pair in self.versions.items()},
            "notes": self.notes,
        }


def diff(
    reader: Reader,
    a: str | None = None,
    b: str | None = None,
    *,
    rows: int | None = DEFAULT_ROWS,
    derive: bool = True,
    trust: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Diff:
    """Compare run `a` (by default the second newest complete run) with run `b` (by default the newest).

    Lists hold at most `rows` entries (None: all). Outputs that were not stored are computed again, to measure how
    far they differ; `derive=False` skips this. `trust=True` also runs code that another machine recorded.
    """
    if rows is not None and rows < 0:
        raise UsageError(f"rows cannot be {rows}.", hint="Give a whole number of at least 0.")

    def report_progress(doing: str) -> None:
        if progress is not None:
            progress(Progress(doing=doing))

    runs = reader.run(a or "latest~1"), reader.run(b)
    with Scratch(reader, [run.run_id for run in runs]) as scratch:
        report_progress("matching samples")
        side_a, side_b = (side_of(scratch, run) for run in runs)
        steps = align(side_a.stages, side_b.stages) if side_a.stages and side_b.stages else []
        visits = match_visits(scratch, side_a, side_b)
        report_progress("comparing stages and predictions")
        compared = compare_pairs(scratch, visits.pairs, side_a, side_b, steps)
        for table in visits.pair_sources:
            scratch.drop(table)
        measured = measure_causes(reader, scratch, compared, side_a, side_b, trust=trust) if derive else None
        most = 2**62 if rows is None else rows
        counts = _count(scratch, compared, visits.alone)
        lists = _list_changed(scratch, compared, counts, most)
        added = _list_alone(scratch, visits.alone, "index_b", most)
        removed = _list_alone(scratch, visits.alone, "index_a", most)
        matched, divergent = counts.pop("matched"), counts.pop("divergent")
        same_failure, alike = counts.pop("same_failure"), counts.pop("alike")
        not_compared = _count_uncompared(scratch, compared, steps)
        flips = find_flips(scratch, compared, side_a, side_b, most)
        calls = call_changes(scratch, side_a, side_b)
        report_progress("measuring differences")
        divergences = find_divergences(reader, scratch, compared, side_a, side_b, steps, derive=derive, trust=trust)
    counts |= {kind: flips.total(kind) for kind in flips.counts}
    found = Diff(
        side_a, side_b, matched, divergent, same_failure, counts, lists, added, removed, steps, divergences, flips
    )
    found.versions = version_changes(side_a, side_b)
    found.calls = calls
    found.not_compared = not_compared
    seen = f"{alike:,} re-encoded samples were matched by their stored previews, which show the same picture."
    found.notes = [*_notes(found), *([seen] if alike else []), *([measured] if measured else [])]
    return found


def _count(scratch: Scratch, compared: TempTable, alone: TempTable) -> dict[str, int]:
    """Count the entries of each list, and the samples that are matched, divergent, or failed alike in both runs."""
    counts = {
        "matched": "count(*)",
        "divergent": "count(step)",
        "same_failure": "count(*) FILTER (failed_a AND failed_b AND step IS NULL)",
        "alike": "count(*) FILTER (how = 'alike')",
        **{name: f"count(*) FILTER ({condition})" for name, condition in _LISTS.items()},
    }
    found = scratch.row(f"SELECT {', '.join(counts.values())} FROM {compared}")
    added, removed = scratch.row(f"SELECT count(index_b), count(index_a) FROM {alone}")
    return {"added": added, "removed": removed, **dict(zip(counts, found, strict=True))}


def _count_uncompared(scratch: Scratch, compared: TempTable, steps: Sequence[AlignmentStep]) -> dict[str, int]:
    """Count the samples without a difference whose outputs could not all be compared, by the first such stage."""
    query = f"SELECT uncompared, count(*) FROM {compared} WHERE uncompared IS NOT NULL GROUP BY 1 ORDER BY 1"
    names = {step.number: step.name for step in steps}
    found: dict[str, int] = {}
    for number, count in scratch.rows(query):
        found[names[number]] = found.get(names[number], 0) + count
    return found


def _list_changed(
    scratch: Scratch, compared: TempTable, counts: dict[str, int], rows: int
) -> dict[str, list[ChangedSample]]:
    return {
        name: scratch.typed_rows(ChangedSample, _CHANGED_ROWS.format(compared=compared, condition=condition, rows=rows))
        if counts[name]
        else []
        for name, condition in _LISTS.items()
    }


def _list_alone(scratch: Scratch, alone: TempTable, index: str, rows: int) -> list[LoneSample]:
    query = f"SELECT source, {index} AS index, label, label_name FROM {alone} WHERE {index} IS NOT NULL ORDER BY 2, 1"
    return scratch.typed_rows(LoneSample, f"{query} LIMIT {rows}")


def _notes(found: Diff) -> list[str]:
    """Return notes on what limits the comparison, such as a run that is not complete."""
    a, b = found.a, found.b
    notes = []
    if a.run.run_id == b.run.run_id:
        notes.append("Both are the same run.")
    notes += [
        f"The run {run.run_id} is {run.status}: only what it had recorded is compared."
        for run in (a.run, b.run)
        if run.status != "complete"
    ]
    if not found.matched:
        notes.append("No sample of one run is in the other, by source, content or name: nothing could be compared.")
    if found.not_compared:
        listed = ", ".join(f"{name} ({count:,})" for name, count in found.not_compared.items())
        notes.append(
            f"{sum(found.not_compared.values()):,} samples have outputs that could not be compared, first of: {listed}. "
            "They have no digest, or the runs follow different versions of the digest recipe."
        )
    if undetermined := sum(counts["undetermined"] for counts in found.flips.counts.values()):
        notes.append(
            f"{undetermined:,} flips have more than one possible cause: the model's input differs, and so may the "
            "model; or the data and the pipeline both do."
        )
    for side, count in ((a, found.flips.predictions_a), (b, found.flips.predictions_b)):
        # Two pipelines recorded without a model are the usual case, and need no remark.
        if not count and found.flips.predictions_a + found.flips.predictions_b:
            notes.append(f"The run {side.run.run_id} has no predictions, so no prediction can have flipped.")
        if not side.stages:
            notes.append(f"The run {side.run.run_id} recorded no stages, so no stage can be compared.")
        if side.epoch:
            notes.append(f"The last epoch ({side.epoch}) of the run {side.run.run_id} is compared.")
    if a.run.classes and b.run.classes and a.run.classes != b.run.classes:
        notes.append("The runs have different class lists: labels and predictions are compared by name.")
    same_model = a.run.model_digest is not None and a.run.model_digest == b.run.model_digest
    called = ", ".join(f"{name} {in_a} → {in_b}" for name, (in_a, in_b) in found.calls.items())
    if same_model and any(counts["model"] for counts in found.flips.counts.values()):
        how_called = f"; it was called differently: {called}" if called else ""
        notes.append(f"The model file is the same in both, yet it gave other logits for the same input{how_called}.")
    elif called and any(found.counts[kind] for kind in found.flips.counts):
        notes.append(f"The models were called differently: {called}.")
    return list(dict.fromkeys(notes))
