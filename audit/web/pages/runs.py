"""Runs: every run of the store, grouped by dataset, model and task; search, filter, sort, and choose two to compare."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

from starlette.requests import Request

from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.page_data import run_view
from audit.web.app_state import AppState
from audit.web.pages.run import DataOfRun, compute_ahead, data_of
from audit.web.respond import Page

SORTS = {"newest": "newest first", "accuracy": "most accurate first", "name": "by name", "samples": "largest first"}
_STATUSES = ("running", "complete", "interrupted", "failed")


def runs(state: AppState, request: Request) -> Page:
    """Return the first page."""
    store = state.store
    listed = store.runs()
    compute_ahead(state, store)
    asked = {name: request.query_params.get(name, "") for name in ("q", "status", "tag", "sort")}
    asked["sort"] = asked["sort"] if asked["sort"] in SORTS else "newest"
    shown = [run for run in reversed(listed) if _matches(run, asked)]
    groups = _groups(shown, asked["sort"])
    return Page(
        "runs.html",
        {
            "store": store.location,
            "runs": [run_view(run) for run in shown],
            "groups": groups,
            "total": len(listed),
            **asked,
            **_preselect(shown),
            "damaged": [str(error) for error in store.damaged],
            "running": any(run.status == "running" for run in listed),
        },
        extra={
            "sorts": SORTS,
            "statuses": [status for status in _STATUSES if any(run.status == status for run in listed)],
            "tags": sorted({f"{key}={value}" for run in listed for key, value in run.tags.items()}),
        },
    )


def _matches(run: Run, asked: dict[str, str]) -> bool:
    if asked["status"] and run.status != asked["status"]:
        return False
    tags = [f"{key}={value}" for key, value in run.tags.items()]
    if asked["tag"] and asked["tag"] not in tags:
        return False
    searched = " ".join(str(text) for text in (run.run_id, run.name, run.dataset, run.model, run.arch, *tags) if text)
    return all(word in searched.lower() for word in asked["q"].lower().split())


class RunGroup(TypedDict):
    """The runs of one dataset, with the same classes, of one model and one task."""

    dataset: str
    model: str
    task: str
    #: Where another group has the same names: how many classes, and the folders; else nothing.
    classes: int | None
    roots: list[str]
    accuracies: list[float]
    runs: list[JsonObject]


def _groups(shown: list[Run], sort: str) -> list[RunGroup]:
    """Return the runs of each dataset, model and task together (classes of the same names); the group of the newest run first."""
    gathered: dict[tuple[DataOfRun, str], list[Run]] = {}
    for run in shown:
        gathered.setdefault(_group_of(run), []).append(run)
    names = Counter((data.dataset, data.task, model) for data, model in gathered)
    return [
        {
            "dataset": data.dataset,
            "model": model,
            "task": data.task,
            "classes": len(data.classes) if data.classes and names[data.dataset, data.task, model] > 1 else None,
            "roots": list(data.roots) if names[data.dataset, data.task, model] > 1 else [],
            # Oldest first, as a chart over time needs them; a run that did not end says nothing about the model.
            "accuracies": [
                run.accuracy for run in reversed(many) if run.accuracy is not None and run.status == "complete"
            ],
            "runs": [run_view(run) for run in _sort(many, sort)],
        }
        for (data, model), many in gathered.items()
    ]


def _sort(many: list[Run], sort: str) -> list[Run]:
    if sort == "accuracy":
        return sorted(many, key=lambda run: -(run.accuracy if run.accuracy is not None else -1.0))
    if sort == "name":
        return sorted(many, key=lambda run: (run.name or run.run_id).lower())
    if sort == "samples":
        return sorted(many, key=lambda run: -(run.samples or 0))
    return many


def _preselect(shown: list[Run]) -> dict[str, str | None]:
    """Return the two newest runs of one group as A and B; of one dataset and task where no group has two."""
    by_model: dict[tuple[DataOfRun, str], list[Run]] = {}
    by_data: dict[DataOfRun, list[Run]] = {}
    for run in shown:
        if run.dataset:  # runs of unknown data need not have anything in common
            by_model.setdefault(_group_of(run), []).append(run)
            by_data.setdefault(data_of(run), []).append(run)
    for many in (*by_model.values(), *by_data.values()):
        if len(many) > 1:
            newest = sorted(many, key=lambda run: -run.sequence)
            return {"a": newest[1].run_id, "b": newest[0].run_id}
    return {"a": None, "b": None}


def _group_of(run: Run) -> tuple[DataOfRun, str]:
    """Return what the runs of a group have in common: data, task and model."""
    return data_of(run), run.arch or run.model or ""
