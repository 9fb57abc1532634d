"""What a report shows of a baseline: the stage at which the runs part, and flips with pictures of that stage in both."""

from __future__ import annotations

from typing import TypedDict

from audit.errors import NotFound
from audit.lineage.diff.diff import Diff, diff
from audit.lineage.diff.flips import FlippedPrediction
from audit.lineage.trace import Trace, trace
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.page_data import run_view
from audit.report.html.previews import data_address, difference, encode
from audit.store.read.reader import Reader

#: Flips of each kind that are listed, and of those how many come with pictures.
_LISTED, _PICTURED = 200, 20
_SIDE = 160


def compare_with_baseline(reader: Reader, baseline: str, run: Run) -> JsonObject:
    """Return the comparison with a baseline, as plain data."""
    found = diff(reader, baseline, run.run_id, rows=_LISTED, derive=False)
    shown = found.as_json()
    shown["totals"] = {kind: found.flips.total(kind) for kind in found.flips.counts}
    shown["same"] = found.same
    shown["baseline"] = run_view(found.a.run)
    shown["flips"] = [
        {"kind": kind, **flip, **(_find_divergent_stage(reader, found, flip) if number < _PICTURED else _NO_STAGE)}
        for kind in ("regressions", "fixes")
        for number, flip in enumerate(found.flips.lists[kind])
    ]
    return shown


class DivergentStage(TypedDict):
    """The first stage whose outputs differ, with pictures of it: before, now, and the difference."""

    stage: str | None
    pictures: list[str]


_NO_STAGE: DivergentStage = {"stage": None, "pictures": []}


def _find_divergent_stage(reader: Reader, found: Diff, flip: FlippedPrediction) -> DivergentStage:
    """Return the first stage whose output differs: in the first run, in the second, and the difference."""
    try:
        ours = trace(reader, found.a.run.run_id, index=flip["index_a"], epoch=found.a.epoch, visit=flip["visit_a"])
        theirs = trace(reader, found.b.run.run_id, index=flip["index_b"], epoch=found.b.epoch, visit=flip["visit_b"])
    except NotFound:
        return _NO_STAGE
    at_a, at_b = _digests(ours), _digests(theirs)
    for step in found.steps:
        if step.at_a is None or step.at_b is None or at_a.get(step.at_a) == at_b.get(step.at_b):
            continue
        x, y = ours.preview(step.at_a), theirs.preview(step.at_b)
        pictures = [data_address(made) for made in (encode(x, _SIDE), encode(y, _SIDE), difference(x, y, _SIDE))]
        return {"stage": step.name, "pictures": pictures if all(pictures) else []}
    return _NO_STAGE


def _digests(found: Trace) -> dict[int, str | None]:
    return {row["stage"]: row["digest"] for row in found.stages}
