"""Results as HTML in a notebook cell, with their style and pictures inside: a store, runs, a trace, rows, a diff, a replay, a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from audit.errors import AuditError, MissingExtra
from audit.lineage.queries import browsing
from audit.lineage.queries.overview import last_epoch
from audit.report.html.environment import render, style
from audit.report.html.page_data import run_view, trace_view
from audit.report.html.previews import data_address, encode

if TYPE_CHECKING:
    from audit.checks.report import Report
    from audit.lineage.diff.diff import Diff
    from audit.lineage.replay.result import Replay
    from audit.lineage.trace import Trace
    from audit.records import Run
    from audit.store.read.reader import HasReader, Reader
    from audit.store.read.relation import Relation

_ROWS, _RUNS, _SIDE = 20, 12, 64


def as_html(value: Any) -> str | None:
    """Return what `_repr_html_` of a value gives; None (the plain text instead) where jinja2 is not installed."""
    views: dict[str, Callable[[Any], str | None]] = {
        "Run": run_html,
        "RunList": runs_html,
        "Store": store_html,
        "Trace": trace_html,
        "Diff": diff_html,
        "Replay": replay_html,
        "Report": report_html,
    }
    show = views.get(type(value).__name__)
    return show(value) if show is not None else None


def trace_html(trace: Trace) -> str | None:
    """Return what `_repr_html_` of a trace gives; None (the plain text instead) where jinja2 is not installed."""
    from audit.report.html.report_file import embed

    try:
        return render("notebook_trace.html", t=trace_view(trace, picture=embed(trace)), style=style())
    except MissingExtra:
        return None


def run_html(run: Run) -> str | None:
    """Return what `_repr_html_` of a run gives."""
    try:
        return render("notebook_run.html", run=run_view(run), style=style())
    except MissingExtra:
        return None


def runs_html(runs: Sequence[Run]) -> str | None:
    """Return a table of runs, newest first."""
    return _cell(
        "notebook_runs.html", runs=[run_view(run) for run in reversed(runs)], title="Runs", store=None, damaged=[]
    )


def store_html(store: HasReader) -> str | None:
    """Return the store's place and its newest runs."""
    runs, damaged = store.reader.runs(), store.reader.damaged
    shown = [run_view(run) for run in list(reversed(runs))[:_RUNS]]
    return _cell(
        "notebook_runs.html",
        runs=shown,
        title=f"{len(runs)} runs" + (f", the newest {_RUNS}" if len(runs) > _RUNS else ""),
        store=store.reader.location,
        damaged=list(map(str, damaged)),
    )


def relation_html(reader: Reader, relation: Relation) -> str | None:
    """Return the first rows of an answer; with a small picture of each row that names a sample."""
    columns: list[str] = []
    rows: list[tuple[Any, ...]] = []
    for columns, piece in relation.batches(_ROWS + 1):  # noqa: B007 - the names come with each piece
        rows += piece
        if len(rows) > _ROWS:
            break
    return _cell(
        "notebook_rows.html",
        columns=columns,
        rows=rows[:_ROWS],
        more=len(rows) > _ROWS,
        pictures=_pictures(reader, relation.run_ids, columns, rows[:_ROWS]),
    )


def diff_html(found: Diff) -> str | None:
    """Return a comparison of two runs: the figures, the first divergent stages, the flips."""
    shown = found.as_json()
    shown["totals"] = {kind: found.flips.total(kind) for kind in found.flips.counts}
    return _cell("notebook_diff.html", diff=shown, same=found.same, a=run_view(found.a.run), b=run_view(found.b.run))


def replay_html(found: Replay) -> str | None:
    """Return the result of a replay."""
    return _cell("notebook_replay.html", r=found.as_json(), passed=found.passed)


def report_html(found: Report) -> str | None:
    """Return the outcomes of checks, worst first."""
    return _cell(
        "notebook_report.html", report=found, rows=[{"index": None, "value": None, **row} for row in found.rows()]
    )


def _cell(template: str, **data: Any) -> str | None:
    try:
        return render(template, style=style(), **data)
    except MissingExtra:
        return None


def _pictures(reader: Reader, run_ids: Sequence[str], columns: list[str], rows: list[tuple[Any, ...]]) -> list[str]:
    """Return the address of a picture for each row, empty where there is none; no list where no row names a sample."""
    # Without its run, an index names a sample only if the query sees one run.
    if "index" not in columns or ("run_id" not in columns and len(run_ids) != 1):
        return []
    at = {name: columns.index(name) if name in columns else None for name in ("run_id", "epoch", "index", "visit")}
    keys: list[tuple[str, browsing.Key] | None] = []
    for row in rows:
        named = {name: row[place] if place is not None else None for name, place in at.items()}
        run_id, index = named["run_id"] if at["run_id"] is not None else run_ids[0], named["index"]
        if not isinstance(run_id, str) or not isinstance(index, int):
            keys.append(None)
            continue
        try:
            run = reader.run(run_id)
        except AuditError:
            return []
        epoch = named["epoch"] if named["epoch"] is not None else last_epoch(reader, run)
        keys.append((run.run_id, (int(epoch), index, named["visit"] or 0)))
    found: dict[tuple[str, browsing.Key], str] = {}
    for run_id in {key[0] for key in keys if key}:
        wanted = [key[1] for key in keys if key and key[0] == run_id]
        for key, preview in browsing.previews(reader, reader.run(run_id), wanted, 0).items():
            found[run_id, key] = data_address(encode(preview, _SIDE))
    return [found.get(key, "") if key else "" for key in keys] if found else []
