"""The process that recomputes one visit for the viewer: a request as JSON in, a line of JSON and the arrays out."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import numpy as np

from audit import plainjson
from audit.api import open as open_store
from audit.errors import AuditError
from audit.web.exact_values import NotAPicture, Values, picture_values


def main() -> None:
    """Read a request, write an answer to standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the pipeline prints is not the answer
    body = io.BytesIO()
    answer: dict[str, Any] = {}
    try:
        np.savez(body, **{str(stage): values for stage, values in derive(**json.load(sys.stdin)).items()})  # type: ignore[arg-type]
    except AuditError as error:
        answer = {"error": error.message, "hint": error.hint}
    except Exception as error:
        answer = {"error": f"The sample could not be recomputed: {type(error).__name__}: {error}", "hint": None}
    out.write(plainjson.dumps(answer).encode() + b"\n" + body.getvalue())
    out.flush()


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


if __name__ == "__main__":
    main()
