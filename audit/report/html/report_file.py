"""`audit report`: one run as one HTML file that needs nothing else: its overview, its worst mistakes, what differs.

Pictures are inside as data, the style sheet too: it opens from disk, from a ticket or from a mail, and its own policy forbids
it to load anything. There is no script, unless the viewer of exact values is asked for; then the policy allows that one script.
It is kept under a size by showing fewer film strips.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from audit.errors import AuditError, NotFound, UsageError
from audit.lineage.queries import overview
from audit.lineage.queries.browsing import worst_predictions
from audit.lineage.queries.task_results import task_results
from audit.lineage.trace import Trace, trace
from audit.output_file import write_text
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.baseline import compare_with_baseline
from audit.report.html.environment import read_shared, render, style
from audit.report.html.exact_values import pack, picture_values
from audit.report.html.page_data import counts_view, run_view, trace_view, true_picture
from audit.report.html.previews import data_address, encode, encode_picture
from audit.store.read.reader import Reader

#: Unless a number is given, as many mistakes as keep the file below 2 MB, and at most so many.
_MOST = 200
_SMALL = 1_950_000
#: With a number the file may have up to 15 MB.
_LARGEST = 14_500_000
_THUMB = 96
#: The share of the file that exact values may take, where they are asked for.
_EXACT = 0.6


def report(
    reader: Reader,
    run: str | None = None,
    *,
    baseline: str | None = None,
    mistakes: int | None = None,
    viewer: bool = False,
) -> str:
    """Return the report on one run as HTML; with a baseline, what differs from it too.

    With `viewer`, a click on a picture shows its values; the exact ones of the worst mistakes, as many as fit.
    """
    row = reader.run(run)
    if mistakes is not None and mistakes < 0:
        raise UsageError(
            f"The number of mistakes must not be negative, got {mistakes}.", hint="Give a whole number of at least 0."
        )
    epoch = overview.last_epoch(reader, row)
    counts = counts_view(overview.counts(reader, row, epoch, row.accuracy_split), task=task_results(reader, row, epoch))
    data: dict[str, Any] = {
        "run": run_view(row),
        "epoch": epoch,
        "counts": counts,
        "timings": overview.timings(reader, row, epoch),
        "failures": overview.failures(reader, row),
        "findings": overview.findings(reader, row),
        "diff": compare_with_baseline(reader, baseline, row) if baseline else None,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "style": style() + (read_shared("viewer.css") if viewer else ""),
        "script": read_shared("viewer.js") if viewer else None,
    }
    for part in ("style", "script"):
        data[f"{part}_hash"] = base64.b64encode(hashlib.sha256((data[part] or "").encode()).digest()).decode()
    most, size = (_MOST, _SMALL) if mistakes is None else (mistakes, _LARGEST)
    rest = len(render("report.html", **data, traces=[]).encode())
    traces = _traces(reader, row, epoch, most, size - rest, viewer)
    shown = render("report.html", **data, traces=traces)
    while traces and len(shown.encode()) > size:  # the text around the pictures took more than was expected
        traces = traces[: len(traces) * 9 // 10]
        shown = render("report.html", **data, traces=traces)
    return shown


def write_report(
    reader: Reader,
    path: str,
    run: str | None = None,
    *,
    baseline: str | None = None,
    mistakes: int | None = None,
    viewer: bool = False,
) -> int:
    """Write the report to a file, which appears only when it is complete; return its size."""
    return write_text(path, report(reader, run, baseline=baseline, mistakes=mistakes, viewer=viewer))


def _traces(
    reader: Reader, run: Run, epoch: int, most: int, allowed_bytes: int, viewer: bool = False
) -> list[JsonObject]:
    """Return the worst mistakes with their film strips, for as long as they fit."""
    shown: list[dict[str, Any]] = []
    used, exact = 0, int(_EXACT * allowed_bytes)
    for index, visit in worst_predictions(reader, run, epoch, most, run.accuracy_split):
        try:
            found = trace(reader, run.run_id, index=index, epoch=epoch, visit=visit)
        except NotFound:
            continue
        view = trace_view(found, picture=embed(found))
        view["thumb"] = data_address(encode(found.preview(0), _THUMB))
        if viewer:
            taken = _add_values(found, view, exact)
            exact = exact - taken if taken else 0  # once they do not fit, later mistakes are not tried
        pictures = sum(len(stage["picture"] or "") + len(stage.get("packed", "")) for stage in view["stages"])
        used += pictures + len(view["thumb"]) + 3_000
        if used > allowed_bytes:
            break
        shown.append(view)
    return shown


def _add_values(found: Trace, view: JsonObject, allowed_bytes: int) -> int:
    """Give each stage the exact values of its picture, packed; nothing if those of all stages do not fit. Return their size."""
    packed = {}
    for stage in view["stages"]:
        stage |= {"packed": "", "viewed_as": f"{found.sample['index']}-{found.sample['visit']}-{stage['stage']}"}
        if allowed_bytes > 0 and stage["shows"] == "picture" and found.is_stored(stage["stage"]):
            try:
                values = picture_values(found.value(stage["stage"], numpy_only=True))
            except AuditError:
                continue
            packed[stage["stage"]] = base64.b64encode(zlib.compress(pack(values), 9)).decode()
    size = sum(map(len, packed.values()))
    if size > allowed_bytes:
        return 0
    for stage in view["stages"]:
        stage["packed"] = packed.get(stage["stage"], "")
    return size


def embed(found: Trace) -> Callable[[int], str]:
    """Return a function that gives a stage's preview as a data address, decoded and encoded again."""

    rows = {row["stage"]: row for row in found.stages}

    def address(stage: int) -> str:
        preview = found.preview(stage)
        shown = true_picture(rows[stage], preview)  # as bright as it is, as in the web app
        return data_address(encode(preview) if shown is None else encode_picture(shown))

    return address
