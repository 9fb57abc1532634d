"""Value: the exact numbers of one stage's picture, for the viewer: as stored, else recomputed on request."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from audit import plainjson
from audit.errors import AuditError
from audit.lineage.trace import Trace
from audit.report.html.exact_values import NotAPicture, Values, pack, picture_values
from audit.sources.builder import can_be_rebuilt
from audit.web.app_state import AppState
from audit.web.pages.trace_request import find_requested_trace, visit_key

_A_WHILE = "private, max-age=3600"


def value(state: AppState, request: Request) -> Response:
    """Return the stored values; 404 with the reason, and whether they can be recomputed, where there are none."""
    found = find_requested_trace(state.store, request)
    stage = request.path_params["stage"]
    if state.derivations is not None and (known := state.derivations.kept_values(visit_key(found), stage)) is not None:
        return _send(known)
    if not found.is_stored(stage):
        return _respond_without_value(*_why_not_stored(state, found))
    try:
        return _send(picture_values(found.value(stage, numpy_only=True)))
    except NotAPicture as error:
        return _respond_without_value(error.message, False)


def derive(state: AppState, request: Request) -> Response:
    """Recompute the stages of this visit from its source, in another process, and return the values of one."""
    found = find_requested_trace(state.store, request)
    why, can_derive = _why_not_stored(state, found)
    if state.derivations is None or not can_derive:
        return _respond_without_value(why, False)
    try:
        stages = state.derivations.derive(visit_key(found))
    except AuditError as error:
        return _respond_without_value(" ".join(part for part in (error.message, error.hint) if part), False)
    values = stages.get(request.path_params["stage"])
    return (
        _respond_without_value("The output of this stage is not a picture.", False) if values is None else _send(values)
    )


def _why_not_stored(state: AppState, found: Trace) -> tuple[str, bool]:
    """Return a sentence, and whether the values can be recomputed here."""
    stored = "The exact values of this stage were not stored"
    if state.derivations is None:
        return f"{stored}, and this server does not run pipelines. To allow it, start `audit ui --replay`.", False
    if not can_be_rebuilt(found.run.recipe):
        return f"{stored}, and the run was recorded in a user's own loop without a builder.", False
    return f"{stored}.", True


def _send(values: Values) -> Response:
    return Response(pack(values), media_type="application/octet-stream", headers={"cache-control": _A_WHILE})


def _respond_without_value(why: str, can_derive: bool) -> Response:
    return Response(plainjson.dumps({"error": why, "derive": can_derive}), 404, media_type="application/json")
