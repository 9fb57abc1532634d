"""Where matched samples first part on their way through two pipelines, and what explains it.

The explanation is decided by what was recorded: the stage's own description first, then the random draw, then the
versions of the libraries. When none of them differs, that is said too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypedDict

from audit.lineage.diff.magnitude import Magnitude, is_stored, measure
from audit.lineage.diff.matching import Side
from audit.lineage.diff.stage_alignment import AlignmentStep, ParameterChange, parameter_changes
from audit.lineage.trace import Trace, trace
from audit.plainjson import JsonObject
from audit.store.read.reader import Reader
from audit.store.read.scratch import Scratch, TempTable

_EXAMPLES = 3
#: Values of only so many kinds of divergence are derived again: each takes a pass through the pipeline.
_MOST_DERIVED = 4

#: At each stage so many different errors have a group each; rarer ones share one.
_ERRORS = 10

_GROUPS = f"""
    WITH grouped AS (
        SELECT step, CASE WHEN missing IS NOT NULL THEN 'fails in ' || missing
                          WHEN source_changed AND step = 0 THEN 'source changed' ELSE '' END AS why,
               error, count(*) AS count,
               arg_min({{{{'index_a': index_a, 'visit_a': visit_a, 'index_b': index_b, 'visit_b': visit_b, 'source': source,
                         'source_b': coalesce(renamed_to, source)}}}}, index_b, {_EXAMPLES}) AS examples
        FROM {{compared}} WHERE step IS NOT NULL GROUP BY step, why, error
    ), ranked AS (
        SELECT *, least(row_number() OVER (PARTITION BY step, why ORDER BY count DESC, error), {_ERRORS} + 1) AS rank
        FROM grouped
    )
    SELECT step, why, sum(count)::BIGINT AS count, arg_max(examples, count) AS examples, count(*) AS errors
    FROM ranked GROUP BY step, why, rank ORDER BY step, why, rank
"""


class ExampleVisits(TypedDict):
    """A matched pair that shows a divergence."""

    index_a: int
    visit_a: int
    index_b: int
    visit_b: int
    source: str
    source_b: str


class DivergenceExample(ExampleVisits):
    """The same, with what a random stage drew on either side."""

    drawn_a: Any
    drawn_b: Any


class DivergenceGroup(TypedDict):
    """Pairs that first differ at the same step in the same way."""

    step: int
    why: str
    count: int
    examples: list[ExampleVisits]
    errors: int


@dataclass(slots=True)
class Divergence:
    """Samples that first differ at the same step for the same reason."""

    step: AlignmentStep
    count: int
    reason: str
    detail: str
    example: DivergenceExample
    parameters: list[ParameterChange] = field(default_factory=list)
    difference: Magnitude | None = None

    def as_json(self) -> JsonObject:
        """Return it as `--json` prints it."""
        step = self.step.as_json()
        return {
            "name": step["name"],
            "count": self.count,
            "reason": self.reason,
            "detail": self.detail,
            "change": step["change"],
            "a": step["a"],
            "b": step["b"],
            "parameters": self.parameters,
            "example": self.example,
            "difference": self.difference.as_json() if self.difference else None,
        }


def find_divergences(
    reader: Reader,
    scratch: Scratch,
    compared: TempTable,
    a: Side,
    b: Side,
    steps: list[AlignmentStep],
    *,
    derive: bool = True,
    trust: bool = False,
) -> list[Divergence]:
    """Group the pairs that were compared by where they part, in the order of the pipeline, each with a reason and an example."""
    found = []
    groups = scratch.typed_rows(DivergenceGroup, _GROUPS.format(compared=compared))
    for number, group in enumerate(groups):
        step, examples, errors = steps[group["step"]], group["examples"], group["errors"]
        traces = [_traces(reader, a, b, examples[0])]
        traces[0][0].trust = traces[0][1].trust = trust
        if step.is_random or is_stored(traces[0], step.at_a, step.at_b):
            # More of them tell more only where their draws or values were kept.
            traces += [_traces(reader, a, b, example) for example in examples[1:]]
        reason, detail = _explain(a, b, step, group["why"], traces)
        if errors > 1:
            detail = f"{errors:,} different errors, for example {detail}"
        parameters = parameter_changes(step.a, step.b) if step.a and step.b and reason == "parameters" else []
        size = measure(traces, step.at_a, step.at_b, derive=derive and number < _MOST_DERIVED)
        drawn = (
            [_drawn_parameters(traces[0][0], step.at_a), _drawn_parameters(traces[0][1], step.at_b)]
            if step.is_random
            else [None, None]
        )
        example = DivergenceExample(**examples[0], drawn_a=drawn[0], drawn_b=drawn[1])
        found.append(Divergence(step, group["count"], reason, detail, example, parameters, size))
    return found


def _traces(reader: Reader, a: Side, b: Side, example: ExampleVisits) -> tuple[Trace, Trace]:
    return (
        trace(reader, a.run.run_id, index=example["index_a"], epoch=a.epoch, visit=example["visit_a"]),
        trace(reader, b.run.run_id, index=example["index_b"], epoch=b.epoch, visit=example["visit_b"]),
    )


def _explain(a: Side, b: Side, step: AlignmentStep, why: str, traces: list[tuple[Trace, Trace]]) -> tuple[str, str]:
    """Return a reason from a fixed list, and a sentence with the evidence."""
    if why == "fails in both":
        errors = [found.sample["error"] for found in traces[0]]
        return why, f"with different errors: {errors[0]} → {errors[1]}"
    if why.startswith("fails in"):
        failed = traces[0][0 if why.endswith("a") else 1].sample
        return why, str(failed["error"])
    if why:
        return why, "the bytes of the source file changed, or, without a source file, the loaded value"
    if step.change == "removed":
        return "stage removed", "only in a"
    if step.change == "added":
        return "stage added", "only in b"
    if step.change == "moved":
        place = f"path {step.a.path} in a" if step.a else f"path {step.b.path} in b" if step.b else ""
        return "stage moved", f"both have it, in another order: {place}"
    assert step.a is not None
    assert step.b is not None
    if step.change == "replaced":
        return "stage replaced", f"{step.a.name} → {step.b.name}"
    return _same_stage(a, b, step, traces)


def _same_stage(a: Side, b: Side, step: AlignmentStep, traces: list[tuple[Trace, Trace]]) -> tuple[str, str]:
    assert step.a is not None
    assert step.b is not None
    changes = parameter_changes(step.a, step.b)
    if changes:
        change_text = "; ".join(
            f"{change['parameter']}: {shorten_setting(change['a'])} → {shorten_setting(change['b'])}"
            for change in changes
        )
        return "parameters", change_text
    if step.change == "changed":
        moved = f": {step.a.qualname} → {step.b.qualname}" if step.a.qualname != step.b.qualname else ""
        return "code changed", f"the source code of the stage differs{moved}"
    if step.is_random and not _draws_alike(step, traces):
        return "random draw", _why_drawn(a, b, traces)
    # A change of this package itself explains nothing: observing changes no value.
    changed = {name: pair for name, pair in version_changes(a, b).items() if name != "audit"}
    if changed:
        change_text = ", ".join(f"{name} {ours} → {theirs}" for name, (ours, theirs) in changed.items())
        return "library changed", f"the same stage and input, but {change_text}"
    if step.number == 0:
        return "load", "the same bytes were decoded to another value"
    unknown = "" if step.a.random is False else "; it may draw random numbers, which its class does not show"
    return "unexplained", f"the same stage, parameters, code, libraries and input, but another output{unknown}"


def _draws_alike(step: AlignmentStep, traces: list[tuple[Trace, Trace]]) -> bool:
    drawn = [(_drawn_parameters(ours, step.at_a), _drawn_parameters(theirs, step.at_b)) for ours, theirs in traces]
    return all(ours is not None and ours == theirs for ours, theirs in drawn)


def _drawn_parameters(found: Trace, stage: int | None) -> Any:
    params = next((row["params"] for row in found.stages if row["stage"] == stage), None)
    return json.loads(params) if params else None


def _why_drawn(a: Side, b: Side, traces: list[tuple[Trace, Trace]]) -> str:
    if a.run.seed != b.run.seed:
        return f"it drew other random numbers: seed {a.run.seed} → {b.run.seed}"
    moved = [(ours, theirs) for ours, theirs in traces if ours.sample["index"] != theirs.sample["index"]]
    if moved:
        ours, theirs = moved[0]
        return (
            "it drew other random numbers: each sample is seeded from its index, "
            f"which was {ours.sample['index']} and is {theirs.sample['index']}"
        )
    return "it drew other random numbers"


def version_changes(a: Side, b: Side) -> dict[str, tuple[str | None, str | None]]:
    """Return the libraries whose version differs between the runs."""
    ours, theirs = a.run.versions, b.run.versions
    names = sorted({*ours, *theirs}) if ours and theirs else []
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def shorten_setting(value: Any, most: int = 60) -> str:
    """Return a setting as one short text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 1] + "…"
