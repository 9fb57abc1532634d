"""Recompute one visit for the viewer, in a child of the warm process: a request in, a line of JSON and the arrays out."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from audit import plainjson
from audit.api import open as open_store
from audit.errors import AuditError
from audit.plainjson import JsonObject
from audit.report.html.exact_values import NotAPicture, Values, picture_values


def answer(request: JsonObject) -> bytes:
    """Return a line of JSON, which has the error if there is one, and the arrays of all stages."""
    body = io.BytesIO()
    head: dict[str, Any] = {}
    try:
        np.savez(body, **{str(stage): values for stage, values in derive(**request).items()})  # type: ignore[arg-type]
    except AuditError as error:
        head = {"error": error.message, "hint": error.hint}
    except Exception as error:
        head = {"error": f"The sample could not be recomputed: {type(error).__name__}: {error}", "hint": None}
    return plainjson.dumps(head).encode() + b"\n" + body.getvalue()


def derive(store: str, run: str, index: int, epoch: int, visit: int, trust: bool) -> dict[int, Values]:
    """Return the values of every stage that is a picture."""
    found: dict[int, Values] = {}
    with open_store(store) as opened:
        trace = opened.trace(run, index=index, epoch=epoch, visit=visit, trust=trust)
        for row in trace.stages:
            value = trace.value(row["stage"])
            try:
                found[row["stage"]] = picture_values(value)
            except NotAPicture:
                continue
    return found
