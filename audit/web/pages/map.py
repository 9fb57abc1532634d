"""Map: the samples of a run in two dimensions. A lasso leads to a gallery; similar samples are near."""

from __future__ import annotations

import json
import struct

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from audit.lineage.queries import maps
from audit.report.html.page_data import run_view
from audit.web.respond import Page, whole
from audit.web.state import AppState

_INTEGERS = ("epoch", "index", "visit", "label", "predicted", "correct")
_FLOATS = ("x", "y", "loss", "confidence")


def sample_map(state: AppState, request: Request) -> Page:
    """Return the page; the points come in a request of their own."""
    store = state.store
    row = store.run(request.path_params["run"])
    found = state.about(store, row, "map", lambda: (maps.sample_map(store, row),), wait=None)
    made = found[0] if found else None
    shown = {"layer": made.layer, "method": made.method, "samples": made.samples} if made else None
    return Page("map.html", {"run": run_view(row), "map": shown, "last_epoch": state.epoch(store, row)})


def points(state: AppState, request: Request) -> Response:
    """Return the points as bytes: the length of a JSON header, the header, then a column after the other."""
    store = state.store
    row = store.run(request.path_params["run"])
    body = state.about(store, row, "points", lambda: _packed(maps.points(store, row), row.classes or []), wait=None)
    return Response(body or b"", media_type="application/octet-stream")


def similar(state: AppState, request: Request) -> Page:
    """Return the samples that are nearest to one on the map."""
    store = state.store
    row = store.run(request.path_params["run"])
    index, visit = request.path_params["index"], whole(request, "visit", 0) or 0
    known = maps.sample_map(store, row)
    near = maps.similar(store, row, index, visit) if known else []
    data = {"run": run_view(row), "samples": near, "layer": known.layer if known else None, "several_epochs": False}
    return Page("similar.html", data)


def _packed(columns: maps.MapColumns, classes: list[str]) -> bytes:
    count = len(columns["index"])
    head = json.dumps({"count": count, "integers": _INTEGERS, "floats": _FLOATS, "classes": classes}).encode()
    head += b" " * (-(4 + len(head)) % 8)
    numbers = [np.ascontiguousarray(columns[name], "<i4").tobytes() for name in _INTEGERS]
    numbers += [np.ascontiguousarray(columns[name], "<f4").tobytes() for name in _FLOATS]
    return struct.pack("<I", len(head)) + head + b"".join(numbers)
