"""Compare: two runs, the first stage at which they differ, and the predictions that flipped."""

from __future__ import annotations

from typing import Any, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from audit.errors import UsageError
from audit.lineage.diff.diff import Diff, diff
from audit.lineage.queries.browsing import previews
from audit.lineage.trace import trace
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.page_data import run_view
from audit.report.html.previews import difference
from audit.store.read.reader import Reader
from audit.web.app_state import PATIENCE, AppState
from audit.web.pages.trace import trace_of
from audit.web.pages.trace_request import send
from audit.web.respond import Page, url, wants_json, whole_number

_MOST_LISTED = 60


def compare(state: AppState, request: Request) -> Page:
    """Return the page: with the comparison if it is known, else with a part that loads it."""
    store = state.store
    a, b = _two_runs(store, request)
    data: dict[str, Any] = {
        "a": run_view(a),
        "b": run_view(b),
        "diff": None,
        "runs": [run_view(r) for r in reversed(store.runs())],
    }
    found = _diff(state, store, a, b, None if wants_json(request) else PATIENCE)
    if found is not None:
        data["diff"] = _diff_json(found)
    return Page("compare.html", data)


def result(state: AppState, request: Request) -> Page:
    """Return the comparison itself; wait until it is ready."""
    store = state.store
    a, b = _two_runs(store, request)
    found = _diff(state, store, a, b, None)
    assert found is not None
    return Page("compare_result.html", {"a": run_view(a), "b": run_view(b), "diff": _diff_json(found)})


def stages(state: AppState, request: Request) -> Page:
    """Return one sample in both runs, stage by stage, with where they differ."""
    store = state.store
    a, b = _two_runs(store, request)
    ours, theirs = (trace_of(_trace(store, run, request, side)) for run, side in ((a, "a"), (b, "b")))
    at_a, at_b = ({row["stage"]: row for row in view["stages"]} for view in (ours, theirs))
    found = _diff(state, store, a, b, PATIENCE)
    pairs = [(step.at_a, step.at_b) for step in found.steps] if found and found.steps else []
    pairs = pairs or [(stage, stage) for stage in sorted({*at_a, *at_b})]
    rows = [
        _pair(a, b, ours, theirs, at_a.get(x), at_b.get(y))
        for x, y in ((x if x is not None else -1, y if y is not None else -1) for x, y in pairs)
        if x in at_a or y in at_b
    ]
    return Page(
        "compare_stages.html", {"a": run_view(a), "b": run_view(b), "ours": ours, "theirs": theirs, "stages": rows}
    )


class StagePair(TypedDict):
    """One stage in both runs, and the address of a picture of the difference."""

    name: str
    a: JsonObject | None
    b: JsonObject | None
    same: bool | None
    difference: str | None
    pair: str


def _pair(
    a: Run, b: Run, ours: JsonObject, theirs: JsonObject, x: JsonObject | None, y: JsonObject | None
) -> StagePair:
    """Return one stage in both runs, with the address of a picture of the difference if there is one."""
    named = x or y
    assert named is not None
    pair = f"{x['stage'] if x else ''}-{y['stage'] if y else ''}"
    row: StagePair = {"name": named["name"], "a": x, "b": y, "same": None, "difference": None, "pair": pair}
    for run, stage in ((a, x), (b, y)):
        if stage:
            stage |= {"pair": pair, "shown_as": f"{stage['name']} · {run.name or run.run_id}"}
    if x and y:
        row["same"] = x["digest"] == y["digest"]
        if not row["same"] and x["shows"] == y["shows"] == "picture":
            asked = {"a": a.run_id, "b": b.run_id, "stage_a": x["stage"], "stage_b": y["stage"]}
            for side, view in (("a", ours), ("b", theirs)):
                asked |= {f"{name}_{side}": view[name] for name in ("index", "epoch", "visit")}
            row["difference"] = url("compare", "picture", **asked)
    return row


def picture(state: AppState, request: Request) -> Response:
    """Return a picture of where one stage's output differs between the two runs."""
    store = state.store
    a, b = _two_runs(store, request)
    keys, looks = [], []
    for run, side in ((a, "a"), (b, "b")):
        index, stage = whole_number(request, f"index_{side}", 0) or 0, whole_number(request, f"stage_{side}", 0) or 0
        epoch = whole_number(request, f"epoch_{side}")
        key = (
            state.epoch(store, run) if epoch is None else epoch,
            index,
            whole_number(request, f"visit_{side}", 0) or 0,
        )
        keys.append((run.run_id, *key, stage))
        looks.append((run, key, stage))

    def make() -> Any:
        first, second = (previews(store, run, [key], stage).get(key) for run, key, stage in looks)
        return difference(first, second)

    return send(state.pictures.get(("difference", *keys), make))


def _two_runs(store: Reader, request: Request) -> tuple[Run, Run]:
    a, b = request.query_params.get("a"), request.query_params.get("b")
    if not a or not b:
        raise UsageError("A comparison needs two runs.", hint="Choose two runs in the list of runs.")
    return store.run(a), store.run(b)


def _trace(store: Reader, run: Run, request: Request, side: str) -> Any:
    return trace(
        store, run.run_id, index=whole_number(request, f"index_{side}", 0), visit=whole_number(request, f"visit_{side}")
    )


def _diff(state: AppState, store: Reader, a: Run, b: Run, wait: float | None) -> Diff | None:
    commits = (store.manifest(a.run_id).commit, store.manifest(b.run_id).commit)
    question = ("diff", a.run_id, b.run_id, *commits)
    return state.answers.ask_within(
        wait, question, lambda: diff(store, a.run_id, b.run_id, rows=_MOST_LISTED, derive=False)
    )


def _diff_json(found: Diff) -> JsonObject:
    shown = found.as_json()
    shown["same"] = found.same
    shown["totals"] = {kind: found.flips.total(kind) for kind in found.flips.counts}
    return shown
