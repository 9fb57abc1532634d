"""What lies over a picture: boxes and masks over a tile of the gallery, heat maps over what the model saw."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

from audit.errors import NotFound
from audit.lineage.heat_maps import HeatMap, heat_maps
from audit.lineage.trace import Trace
from audit.plainjson import JsonObject
from audit.report.html.environment import environment
from audit.report.html.exact_values import pack
from audit.report.html.page_data import overlay_view
from audit.report.html.previews import EncodedPicture
from audit.web.app_state import AppState
from audit.web.pages.trace_request import find_requested_trace, send, visit_key
from audit.web.respond import TEMPLATES, url

#: Dark blue, violet, red, orange, yellow: brighter with each step, so that they can be distinguished without colours too.
_RAMP = np.array([(8, 6, 60), (106, 23, 110), (200, 60, 70), (248, 149, 34), (252, 255, 164)], np.float32)
_SIDE = 384


def overlay(state: AppState, request: Request) -> Response:
    """Return the boxes and masks of one stage as an SVG picture, to lie over the picture of that stage."""
    found = find_requested_trace(state.store, request)
    stage = request.path_params["stage"]

    def make() -> EncodedPicture:
        layer = next((one for one in found.overlays if one.stage == stage), None)
        text = environment(TEMPLATES).get_template("overlay.svg").render(o=overlay_view(layer))
        return "image/svg+xml", text.encode("utf-8", "backslashreplace")

    return send(state.pictures.get((*visit_key(found), stage, "overlay"), make))


def heat(state: AppState, request: Request) -> Response:
    """Return one heat map: its numbers for the viewer, or with `picture` a picture to lie over what the model saw."""
    found = find_requested_trace(state.store, request)
    number = request.path_params["number"]
    maps = heat_maps(found)
    if number >= len(maps):
        raise NotFound(f"This visit has {len(maps)} heat maps.")
    if not request.query_params.get("picture"):
        return Response(pack(maps[number].values[..., None]), media_type="application/octet-stream")
    return send(
        state.pictures.get((*visit_key(found), number, "heat"), lambda: _paint(maps[number], _size_under(found)))
    )


def heat_views(found: Trace, stages: list[Any]) -> list[JsonObject]:
    """Return the heat maps of a visit as a page shows them: over the last stage that has a picture."""
    under = next((stage for stage in reversed(stages) if stage["shows"] == "picture"), None)
    sample = found.sample
    place = ("run", found.run.run_id, "heat", sample["index"])
    exactly = {"epoch": sample["epoch"], "visit": sample["visit"]}
    return [
        {
            "name": one.name,
            "meaning": one.meaning,
            "shape": list(one.values.shape),
            "low": float(one.values.min()),
            "high": float(one.values.max()),
            "exact": url(*place, number, **exactly),
            "picture": url(*place, number, **exactly, picture=1),
            "under": under["picture"] if under else None,
            "over": under["exact"] if under else None,
        }
        for number, one in enumerate(heat_maps(found))
    ]


def _size_under(found: Trace) -> tuple[int, int] | None:
    """Return height and width of the last stage that gives a picture: the heat map gets its proportions."""
    for row in reversed(found.stages):
        shape = [length for length in row["shape"] or [] if length > 4]
        if len(shape) == 2 and found.preview(row["stage"]) is not None:
            return shape[0], shape[1]
    return None


def _paint(one: HeatMap, size: tuple[int, int] | None) -> EncodedPicture:
    """Return the numbers from least to greatest as colours, enlarged smoothly."""
    low, high = float(one.values.min()), float(one.values.max())
    share = (one.values - low) / (high - low) if high > low else np.zeros_like(one.values)
    height, width = size or one.values.shape
    shrink = max(1.0, max(height, width) / _SIDE)
    grown = Image.fromarray(share.astype(np.float32)).resize(
        (max(1, round(width / shrink)), max(1, round(height / shrink))), Image.Resampling.BILINEAR
    )
    place = np.clip(np.asarray(grown), 0, 1) * (len(_RAMP) - 1)
    below = np.minimum(place.astype(int), len(_RAMP) - 2)
    part = (place - below)[..., None]
    colours = _RAMP[below] * (1 - part) + _RAMP[below + 1] * part
    out = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(out, "PNG")
    return "image/png", out.getvalue()
