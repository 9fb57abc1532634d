"""`audit report`: one run as one HTML file that needs nothing else.

Pictures are inside as data, the style sheet too, and there is no script: it opens from disk, from a ticket or
from a mail, and its own policy forbids it to load anything. It is kept under a size by showing fewer film strips.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from audit.errors import NotFound, UsageError
from audit.lineage import overview
from audit.lineage.browsing import worst
from audit.lineage.trace import Trace, trace
from audit.records import Run
from audit.report.html import render, style
from audit.report.previews import encode
from audit.report.views import counts_view, run_view, trace_view
from audit.store.reader import Reader

MISTAKES = 200
#: The promise is 15 MB for the file; the text around the pictures needs some of it.
_LARGEST = 14_000_000


def report(reader: Reader, run: str | None = None, *, baseline: str | None = None, mistakes: int = MISTAKES) -> str:
    """The report on one run as HTML; with a baseline, what differs from it too."""
    row = reader.run(run)
    if mistakes < 0:
        raise UsageError(f"A report cannot show {mistakes} mistakes.", hint="Give a whole number from 0 up.")
    epoch = overview.last_epoch(reader, row)
    counts = counts_view(overview.counts(reader, row, epoch))
    data: dict[str, Any] = {
        "run": run_view(row),
        "epoch": epoch,
        "counts": counts,
        "timings": overview.timings(reader, row, epoch),
        "failures": overview.failures(reader, row),
        "findings": overview.findings(reader, row),
        "diff": _diff(reader, baseline, row) if baseline else None,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "style": style(),
    }
    data["style_hash"] = base64.b64encode(hashlib.sha256(data["style"].encode()).digest()).decode()
    data["traces"] = _traces(reader, row, epoch, mistakes)
    return render("report.html", **data)


def write_report(
    reader: Reader, path: str, run: str | None = None, *, baseline: str | None = None, mistakes: int = MISTAKES
) -> int:
    """Write the report to a file, which appears only when it is whole; gives its size."""
    data = report(reader, run, baseline=baseline, mistakes=mistakes).encode("utf-8", "backslashreplace")
    part = f"{path}.part"
    try:
        with open(part, "wb") as out:
            out.write(data)
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"{path} could not be written: {error.strerror}.", hint="Choose another with -o.") from error
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return len(data)


def _traces(reader: Reader, run: Run, epoch: int, most: int) -> list[dict[str, Any]]:
    """The worst mistakes with their film strips, for as long as they fit."""
    shown: list[dict[str, Any]] = []
    used = 0
    for index, visit in worst(reader, run, epoch, most):
        try:
            found = trace(reader, run.run_id, index=index, epoch=epoch, visit=visit)
        except NotFound:
            continue
        view = trace_view(found, picture=embed(found))
        used += sum(len(stage["picture"] or "") for stage in view["stages"]) + 3_000
        if used > _LARGEST:
            break
        shown.append(view)
    return shown


def embed(found: Trace) -> Callable[[int], str]:
    """Gives a stage's preview as a data address; the same picture is decoded and written anew first."""

    def address(stage: int) -> str:
        made = encode(found.preview(stage))
        return f"data:{made[0]};base64,{base64.b64encode(made[1]).decode()}" if made else ""

    return address


def _diff(reader: Reader, baseline: str, run: Run) -> dict[str, Any]:
    from audit.lineage.diff import diff

    found = diff(reader, baseline, run.run_id, rows=200, derive=False)
    shown = found.as_json()
    shown["totals"] = {kind: found.flips.total(kind) for kind in found.flips.counts}
    shown["same"] = found.same
    shown["baseline"] = run_view(found.a.run)
    return shown
