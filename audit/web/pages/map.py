"""Map: the samples of a run in two dimensions. A lasso leads to a gallery; similar samples are near."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from audit.lineage.queries import maps, similar_samples
from audit.lineage.small_pictures import SmallPictures
from audit.records import Run
from audit.report.html.page_data import run_view
from audit.web.app_state import AppState
from audit.web.pages.trace_request import find_requested_trace
from audit.web.respond import Page

_INTEGERS = ("epoch", "index", "visit", "label", "predicted", "correct", "split")
_FLOATS = ("x", "y", "loss", "confidence")
#: More pictures than this are looked at only on request.
_MOST_UNASKED = 4_000


def sample_map(state: AppState, request: Request) -> Page:
    """Return the page; the points come in a request of their own."""
    store = state.store
    row = store.run(request.path_params["run"])
    found = state.ask_about(store, row, "map", lambda: (maps.sample_map(store, row),), wait=None)
    made = found[0] if found else None
    shown = asdict(made) if made else None
    data = {"run": run_view(row), "map": shown, "last_epoch": state.epoch(store, row), "location": store.location}
    return Page("map.html", data)


def points(state: AppState, request: Request) -> Response:
    """Return the points as bytes: the length of a JSON header, the header, then a column after the other."""
    store = state.store
    row = store.run(request.path_params["run"])
    body = state.ask_about(store, row, "points", lambda: _pack(*maps.points(store, row), row.classes or []), wait=None)
    return Response(body or b"", media_type="application/octet-stream")


def similar_page(state: AppState, request: Request) -> Page:
    """Return samples like one: near it on the map, the same file in other runs, and pictures of any run that look alike."""
    store = state.store
    row = store.run(request.path_params["run"])
    found = find_requested_trace(store, request)
    sample = found.sample
    known = maps.sample_map(store, row)
    key = (sample["epoch"], sample["index"], sample["visit"])
    near = maps.find_similar(store, row, key) if known else []
    runs = similar_samples.list_compared_runs(store, row)

    def pictures(other: Run) -> SmallPictures:
        made = state.ask_about(
            store, other, "small pictures", lambda: similar_samples.last_pictures(store, other), wait=None
        )
        assert made is not None
        return made

    many = similar_samples.many_pictures(runs)
    alike: list[tuple[float, similar_samples.AlikeSample]] = []
    looked: similar_samples.ComparedCounts | None = None
    if many <= _MOST_UNASKED or request.query_params.get("all"):
        alike, looked = similar_samples.look_alike(store, row, key, runs, pictures)
    data = {
        "index": sample["index"],
        "epoch": sample["epoch"],
        "visit": sample["visit"],
        "many": many,
        "run": run_view(row),
        "samples": near,
        "layer": known.layer if known else None,
        "same_file": similar_samples.same_file(store, row, sample["source_digest"], runs),
        "alike": [{"distance": apart, **one} for apart, one in alike],
        "looked": looked,
        "names": {run.run_id: run.name or run.run_id for run in runs},
    }
    return Page("similar.html", data)


def _pack(columns: maps.MapColumns, splits: list[str], classes: list[str]) -> bytes:
    named = {"count": len(columns["index"]), "integers": _INTEGERS, "floats": _FLOATS}
    head = json.dumps({**named, "splits": splits, "classes": classes}).encode()
    head += b" " * (-(4 + len(head)) % 8)
    numbers = [np.ascontiguousarray(columns[name], "<i4").tobytes() for name in _INTEGERS]
    numbers += [np.ascontiguousarray(columns[name], "<f4").tobytes() for name in _FLOATS]
    return struct.pack("<I", len(head)) + head + b"".join(numbers)
