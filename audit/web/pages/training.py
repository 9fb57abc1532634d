"""Training: a run over its epochs. Loss per step, cartography, forgotten samples, layer statistics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from audit.lineage.queries import training as questions
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.page_data import run_view
from audit.store.read.reader import Reader
from audit.web.app_state import AppState
from audit.web.respond import Page, wants_json


def training_page(state: AppState, request: Request) -> Page:
    """Return the page; its charts fetch their numbers from `series`."""
    store = state.store
    run = store.run(request.path_params["run"])
    data: dict[str, Any] = {"run": run_view(run), "last_epoch": state.epoch(store, run)}
    if wants_json(request):
        data |= _series(state, store, run)
    return Page("training.html", data)


def series(state: AppState, request: Request) -> Page:
    """Return what the charts and tables show."""
    store = state.store
    run = store.run(request.path_params["run"])
    return Page("training_series.html", {"run": run_view(run), **_series(state, store, run)})


def _series(state: AppState, store: Reader, run: Run) -> JsonObject:
    found = state.ask_about(store, run, "training", lambda: _ask_questions(store, run), wait=None)
    assert found is not None
    return found


def _ask_questions(store: Reader, run: Run) -> JsonObject:
    epochs = questions.epochs(store, run)
    # With one epoch nothing can vary or be forgotten, and the queries would take seconds on a million samples.
    several = len({row["epoch"] for row in epochs}) > 1
    return {
        "epochs": epochs,
        "steps": questions.loss_steps(store, run),
        "spikes": questions.spikes(store, run),
        "cartography": questions.cartography(store, run) if several else [],
        "forgotten": questions.find_forgotten_samples(store, run) if several else [],
        "layers": questions.layers(store, run),
    }
