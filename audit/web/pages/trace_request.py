"""The visit that an address names, and a picture as an answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from audit.lineage.trace import Trace
from audit.lineage.trace import trace as trace_visit
from audit.report.html.previews import EncodedPicture
from audit.store.read.reader import Reader
from audit.web.derivations import Key
from audit.web.respond import whole_number

_A_WHILE = "private, max-age=86400"


def send(made: EncodedPicture | None) -> Response:
    """Return the response with a picture, or 404 if there is none."""
    if made is None:
        return Response(status_code=404, media_type="text/plain")
    return Response(made[1], media_type=made[0], headers={"cache-control": _A_WHILE})


def find_requested_trace(store: Reader, request: Request) -> Trace:
    """Return the trace of the visit that the address names."""
    return trace_visit(
        store,
        request.path_params["run"],
        index=request.path_params["index"],
        epoch=whole_number(request, "epoch"),
        visit=whole_number(request, "visit"),
    )


def visit_key(found: Trace) -> Key:
    """Return what identifies a visit: its run, epoch, index and visit."""
    sample = found.sample
    return found.run.run_id, sample["epoch"], sample["index"], sample["visit"]
