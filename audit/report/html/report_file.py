"""`audit report`: one run as one HTML file that needs nothing else: its overview, its worst mistakes, what differs.

Pictures are inside as data, the style sheet too, and there is no script: it opens from disk, from a ticket or
from a mail, and its own policy forbids it to load anything. It is kept under a size by showing fewer film strips.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from audit.errors import NotFound, UsageError
from audit.lineage.queries import overview
from audit.lineage.queries.browsing import worst_predictions
from audit.lineage.queries.task_results import task_results
from audit.lineage.trace import Trace, trace
from audit.output_file import write_text
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.baseline import compare_with_baseline
from audit.report.html.environment import render, style
from audit.report.html.page_data import counts_view, run_view, trace_view
from audit.report.html.previews import data_address, encode
from audit.store.read.reader import Reader

#: Unless a number is given, as many mistakes as keep the file below 2 MB, and at most so many.
_MOST = 200
_SMALL = 1_950_000
#: With a number the file may have up to 15 MB.
_LARGEST = 14_500_000
_THUMB = 96


def report(reader: Reader, run: str | None = None, *, baseline: str | None = None, mistakes: int | None = None) -> str:
    """Return the report on one run as HTML; with a baseline, what differs from it too."""
    row = reader.run(run)
    if mistakes is not None and mistakes < 0:
        raise UsageError(
            f"The number of mistakes must not be negative, got {mistakes}.", hint="Give a whole number of at least 0."
        )
    epoch = overview.last_epoch(reader, row)
    counts = counts_view(overview.counts(reader, row, epoch), task=task_results(reader, row, epoch))
    data: dict[str, Any] = {
        "run": run_view(row),
        "epoch": epoch,
        "counts": counts,
        "timings": overview.timings(reader, row, epoch),
        "failures": overview.failures(reader, row),
        "findings": overview.findings(reader, row),
        "diff": compare_with_baseline(reader, baseline, row) if baseline else None,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "style": style(),
    }
    data["style_hash"] = base64.b64encode(hashlib.sha256(data["style"].encode()).digest()).decode()
    most, size = (_MOST, _SMALL) if mistakes is None else (mistakes, _LARGEST)
    rest = len(render("report.html", **data, traces=[]).encode())
    traces = _traces(reader, row, epoch, most, size - rest)
    shown = render("report.html", **data, traces=traces)
    while traces and len(shown.encode()) > size:  # the text around the pictures took more than was expected
        traces = traces[: len(traces) * 9 // 10]
        shown = render("report.html", **data, traces=traces)
    return shown


def write_report(
    reader: Reader, path: str, run: str | None = None, *, baseline: str | None = None, mistakes: int | None = None
) -> int:
    """Write the report to a file, which appears only when it is complete; return its size."""
    return write_text(path, report(reader, run, baseline=baseline, mistakes=mistakes))


def _traces(reader: Reader, run: Run, epoch: int, most: int, allowed_bytes: int) -> list[JsonObject]:
    """Return the worst mistakes with their film strips, for as long as they fit."""
    shown: list[dict[str, Any]] = []
    used = 0
    for index, visit in worst_predictions(reader, run, epoch, most):
        try:
            found = trace(reader, run.run_id, index=index, epoch=epoch, visit=visit)
        except NotFound:
            continue
        view = trace_view(found, picture=embed(found))
        view["thumb"] = data_address(encode(found.preview(0), _THUMB))
        used += sum(len(stage["picture"] or "") for stage in view["stages"]) + len(view["thumb"]) + 3_000
        if used > allowed_bytes:
            break
        shown.append(view)
    return shown


def embed(found: Trace) -> Callable[[int], str]:
    """Return a function that gives a stage's preview as a data address, decoded and encoded again."""

    def address(stage: int) -> str:
        return data_address(encode(found.preview(stage)))

    return address
