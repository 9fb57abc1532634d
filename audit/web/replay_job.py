"""Replay one visit for the web app, in a child of the warm process: a request in, a verdict as JSON out.

The verdict is that of `lineage.replay`; what was not stored is derived once more, to be shown.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

from audit import plainjson, values
from audit.api import open as open_store
from audit.errors import AuditError
from audit.lineage.trace import Trace
from audit.plainjson import JsonObject


def answer(request: JsonObject) -> bytes:
    """Return the verdict, or the error, as JSON."""
    try:
        found = replay(**request)
    except AuditError as error:
        found = {"error": error.message, "hint": error.hint}
    except Exception as error:
        found = {"error": f"The replay failed: {type(error).__name__}: {error}", "hint": None}
    return plainjson.dumps(found).encode()


def replay(store: str, run: str, index: int, epoch: int, visit: int, trust: bool) -> JsonObject:
    """Return the verdict on one visit, with previews of the stages of which none is stored."""
    opened = open_store(store)
    try:
        trace = opened.trace(run, index=index, epoch=epoch, visit=visit, trust=trust)
        result = opened.replay(run, indices=[index], epoch=epoch, workers=0, trust=trust)
        ours = [asdict(d) for d in result.different if (d.epoch, d.index, d.visit) == (epoch, index, visit)]
        verdict: dict[str, Any] = {
            "identical": not ours and result.checked > 0,
            "stages": len(trace.stages),
            "source": trace.source_state,
            "difference": ours[0] if ours else None,
        }
        missing = any(trace.preview(row["stage"]) is None for row in trace.stages)
        return {**verdict, "previews": _derive_previews(trace) if missing and not ours else {}}
    finally:
        opened.close()


def _derive_previews(trace: Trace) -> dict[int, dict[str, str]]:
    numbers = [row["stage"] for row in trace.stages]
    return {number: shown for number in numbers if (shown := _preview(trace.value(number)))}


def _preview(value: Any) -> dict[str, str] | None:
    made = values.preview(value)
    return {"type": made.media_type, "data": base64.b64encode(made.data).decode()} if made else None
