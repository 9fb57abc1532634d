"""Trace: one file's journey from its source through every stage to the prediction, and its replay."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from audit.errors import AuditError, UsageError
from audit.lineage.queries.browsing import Key, find_neighbouring_visits, history, previews, stage_output
from audit.lineage.trace import Trace
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.exact_values import as_levels, picture_values
from audit.report.html.page_data import trace_view, true_picture
from audit.report.html.previews import EncodedPicture, encode, encode_picture
from audit.sources.builder import can_be_rebuilt
from audit.store.read.reader import Reader
from audit.values import Preview
from audit.values.thumbnail import as_picture
from audit.web.app_state import AppState
from audit.web.pages import gallery_selection
from audit.web.pages.overlay import heat_views
from audit.web.pages.trace_request import find_requested_trace, send, visit_key
from audit.web.picture_cache import source_picture
from audit.web.respond import Page, error_page, url, wants_json, whole_number


def trace(state: AppState, request: Request) -> Page:
    """Return the page."""
    store = state.store
    found = find_requested_trace(store, request)
    for row in found.stages:
        _stage_picture(state, found, row["stage"])
    view = _view(state, store, found)
    view["selection"] = None
    view["from_gallery"] = "order" in request.query_params
    if view["from_gallery"]:
        view["selection"] = gallery_selection.selection(state, store, found.run, request).as_dict()["selection"]
    elif not (found.run.graded and found.run.wrong):  # there are no mistakes to go through
        view["selection"] = urlencode({"where": "", "order": "index", "of": found.sample["epoch"]})
    return Page("trace.html", view)


def steps(state: AppState, request: Request) -> Page:
    """Return the links to the samples before and after this one: mistakes, or those of the gallery that it was opened from."""
    store = state.store
    row = store.run(request.path_params["run"])
    index = request.path_params["index"]
    key = (whole_number(request, "epoch", 0) or 0, index, whole_number(request, "visit", 0) or 0)
    if request.query_params.get("mistakes"):
        mistakes = state.mistakes(store, row, key[0], wait=None)
        earlier, later = mistakes.find_neighbours(index, key[2]) if mistakes else (None, None)
        found = {"run_id": row.run_id, "epoch": key[0], "previous_mistake": earlier, "next_mistake": later}
        return Page("trace_mistakes.html", found)
    chosen = gallery_selection.selection(state, store, row, request)
    before, after = gallery_selection.neighbours(state, chosen, key)
    data = {"run_id": row.run_id, "previous": before, "next": after, "selection": urlencode(chosen.as_query())}
    return Page("trace_steps.html", data)


def replay(state: AppState, request: Request) -> Page:
    """Recompute every stage in another process, and compare the outputs with the recorded ones."""
    if state.replays is None:
        raise UsageError(
            "Replay is disabled on this server.",
            hint="It runs the recorded pipeline. To allow it, start `audit ui --replay`.",
        )
    store = state.store
    found = find_requested_trace(store, request)
    sample = found.sample
    try:
        verdict, derived = state.replays.replay(found.run.run_id, sample["index"], sample["epoch"], sample["visit"])
    except AuditError as error:
        if wants_json(request):
            return error_page(error)
        return Page("replay.html", {"verdict": None, "error": error.message, "hint": error.hint, "stages": []})
    key = visit_key(found)
    for stage, preview in derived.items():
        state.pictures.put((*key, stage, "derived"), encode(preview))
    shown = [
        {"stage": row["stage"], "name": row["name"], "picture": _derived_address(found, row["stage"])}
        for row in found.stages
        if row["stage"] in derived and found.preview(row["stage"]) is None and _is_picture(derived[row["stage"]])
    ]
    return Page("replay.html", {"verdict": verdict, "error": None, "hint": None, "stages": shown})


def picture(state: AppState, request: Request) -> Response:
    """Return the small picture of one stage, by run, index and stage."""
    store = state.store
    run = store.run(request.path_params["run"])
    index, stage = request.path_params["index"], request.path_params["stage"]
    key = (whole_number(request, "epoch", 0) or 0, index, whole_number(request, "visit", 0) or 0)
    place: tuple[object, ...] = (run.run_id, *key, stage)
    if request.query_params.get("whole"):
        return send(_stage_picture(state, find_requested_trace(store, request), stage))
    if request.query_params.get("derived"):
        return send(state.pictures.get((*place, "derived"), lambda: None))
    return send(state.pictures.get(place, lambda: _small_picture(store, run, key, stage)))


def _small_picture(store: Reader, run: Run, key: Key, stage: int) -> EncodedPicture | None:
    """Return the preview of a stage, as bright as its values are where that is known."""
    preview = previews(store, run, [key], stage).get(key)
    row = stage_output(store, run, key, stage) if preview is not None and stage else None
    shown = true_picture(row, preview) if row is not None else None
    return encode_picture(shown) if shown is not None else encode(preview)


def source(state: AppState, request: Request) -> Response:
    """Return the source file, if it is a picture and still is what was recorded."""
    found = find_requested_trace(state.store, request)
    return send(state.pictures.get((*visit_key(found), "source"), lambda: source_picture(found)))


def trace_of(found: Trace) -> JsonObject:
    """Return a trace whose pictures have addresses here."""
    run_id, index = found.run.run_id, found.sample["index"]
    exactly = {"epoch": found.sample["epoch"], "visit": found.sample["visit"]}
    view = trace_view(found, picture=lambda stage: url("run", run_id, "picture", index, stage, **exactly, whole=1))
    for stage in view["stages"]:
        # A stage without a preview may be a picture all the same: its values can be recomputed.
        looks = stage["shows"] == "picture" or (stage["shows"] == "nothing" and _looks_like_picture(stage))
        stage["exact"] = url("run", run_id, "value", index, stage["stage"], **exactly) if looks else None
    return view


def _stage_picture(state: AppState, found: Trace, stage: int) -> EncodedPicture | None:
    """Return a stage's picture from its exact values where they are stored, else from the small preview."""

    def make() -> EncodedPicture | None:
        if found.is_stored(stage):
            try:
                exact = as_picture(as_levels(picture_values(found.value(stage, numpy_only=True))))
            except AuditError:
                exact = None
            if exact is not None:
                return encode_picture(exact)
        row = next((row for row in found.stages if row["stage"] == stage), None)
        shown = true_picture(row, found.preview(stage)) if row is not None else None
        return encode_picture(shown) if shown is not None else encode(found.preview(stage))

    return state.pictures.get((*visit_key(found), stage, "whole"), make)


def _looks_like_picture(stage: JsonObject) -> bool:
    return stage["kind"] == "image" or (stage["kind"] in ("tensor", "array") and len(stage["shape"] or ()) in (2, 3))


def _last_picture(stages: list[Any]) -> int:
    """Return the last stage that has a preview picture: what the model saw, or nearly."""
    return max((int(stage["stage"]) for stage in stages if stage["shows"] == "picture"), default=0)


def _is_picture(preview: Preview) -> bool:
    return preview.media_type.startswith("image/")


def _place(found: Trace) -> dict[str, int | None]:
    return {"epoch": found.sample["epoch"] or None, "visit": found.sample["visit"] or None}


def _derived_address(found: Trace, stage: int) -> str:
    return url("run", found.run.run_id, "picture", found.sample["index"], stage, **_place(found), derived=1)


def _view(state: AppState, store: Reader, found: Trace) -> JsonObject:
    run, sample = found.run, found.sample
    view = trace_of(found)
    mistakes = state.mistakes(store, run, sample["epoch"])
    before, after = mistakes.find_neighbours(sample["index"], sample["visit"]) if mistakes else (None, None)
    view["previous_mistake"], view["next_mistake"] = before, after
    view["previous_visit"], view["next_visit"] = find_neighbouring_visits(store, run, sample)
    view["mistakes_known"] = mistakes is not None or not run.wrong
    view["source_picture"] = None
    if found.source_state == "unchanged" and found.stages[:1] and found.stages[0]["kind"] == "image":
        exactly = {"epoch": sample["epoch"], "visit": sample["visit"]}  # left out, they would mean the last ones
        view["source_picture"] = url("run", run.run_id, "source", sample["index"], **exactly)
    view["replay_is_off"] = state.replays is None
    view["can_replay"] = can_be_rebuilt(run.recipe)
    view["is_warm"] = state.process.is_warm
    view["last_epoch"] = state.epoch(store, run)
    view["location"] = store.location
    view["history"] = history(store, run, sample) if view["last_epoch"] else []
    view["last_stage"] = _last_picture(view["stages"])
    view["heat_maps"] = heat_views(found, view["stages"])
    return view
