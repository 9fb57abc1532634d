"""Runs: every run of the store, newest first; choose two to compare."""

from __future__ import annotations

from starlette.requests import Request

from audit.report.html.page_data import run_view
from audit.web.pages.run import foresee
from audit.web.respond import Page
from audit.web.state import AppState


def runs(desk: AppState, request: Request) -> Page:
    """Return the first page."""
    store = desk.store
    listed = store.runs()
    foresee(desk, store)
    return Page(
        "runs.html",
        {
            "store": store.location,
            "runs": [run_view(run) for run in reversed(listed)],
            "accuracies": [run.accuracy for run in listed if run.accuracy is not None],
            "damaged": [str(error) for error in store.damaged],
            "running": any(run.status == "running" for run in listed),
        },
    )
