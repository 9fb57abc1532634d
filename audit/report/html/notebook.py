"""A trace and a run as HTML in a notebook cell: the film strip, with its style and pictures inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from audit.errors import MissingExtra
from audit.report.html.environment import render, style
from audit.report.html.page_data import run_view, trace_view

if TYPE_CHECKING:
    from audit.lineage.trace import Trace
    from audit.records import Run


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
