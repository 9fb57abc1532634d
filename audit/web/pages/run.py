"""Run: its results, its mistakes, the time of each stage, and the failures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from audit.errors import NotFound
from audit.lineage.queries import overview
from audit.lineage.queries.browsing import tag_names
from audit.lineage.queries.filters import split_filter
from audit.lineage.queries.task_results import TaskResults, task_results
from audit.records import Run
from audit.report.html.confusion import ORDERS, ClassOrder
from audit.report.html.page_data import counts_view, run_view
from audit.store.read.reader import Reader
from audit.web.app_state import PATIENCE, AppState
from audit.web.respond import Page, url, wants_json, whole_number

PANELS = ("counts", "timings")


def run(state: AppState, request: Request) -> Page | Response:
    """Return the page; it loads slow panels afterwards. JSON waits for them."""
    store = state.store
    asked = request.path_params["run"]
    row = store.run(asked)
    if asked != row.run_id:
        return RedirectResponse(url("run", row.run_id) + (f"?{request.url.query}" if request.url.query else ""))
    epoch = whole_number(request, "epoch")
    epoch = state.epoch(store, row) if epoch is None else epoch
    wait = None if wants_json(request) else PATIENCE
    classes = _classes(request)
    split = read_asked_split(request, row)
    begin(state, store, row, epoch, split)
    return Page(
        "run.html",
        {
            "run": run_view(row),
            "epoch": epoch,
            "last_epoch": state.epoch(store, row),
            **_split_view(request, split),
            "splits": state.ask_about(
                store, row, ("splits", epoch), lambda: overview.splits(store, row, epoch), wait=None
            ),
            "classes": classes,
            "counts": _panel(state, store, row, epoch, "counts", wait, split, classes),
            "timings": _panel(state, store, row, epoch, "timings", wait, split),
            "stages": [asdict(stage) for stage in overview.stages(store, row)],
            "failures": overview.failures(store, row),
            "findings": overview.findings(store, row),
            "tagged": tag_names(store, row),
            "write": state.write,
            "others": [run_view(other) | {"is_alike": _is_alike(row, other)} for other in _comparable_runs(store, row)],
        },
        extra={"class_orders": ORDERS},
    )


def _comparable_runs(store: Reader, row: Run, most: int = 30) -> list[Run]:
    """Return the runs to compare with: those of the same dataset and task first, empty ones last, earlier ones first, newest first."""
    others = [other for other in reversed(store.runs()) if other.run_id != row.run_id]
    others.sort(key=lambda other: (not _is_alike(row, other), not other.samples, other.sequence > row.sequence))
    return others[:most]


class DataOfRun(NamedTuple):
    """What two runs must share to be comparable. The dataset's name alone is not enough: `__main__.Photos` may be any data."""

    dataset: str
    task: str
    classes: tuple[str, ...]
    #: The folders of the loaders of a recorded loop.
    roots: tuple[str, ...]


def data_of(run: Run) -> DataOfRun:
    """Return the data and the task of a run."""
    task = "" if run.task == "classification" else run.task or ""
    roots = {str(loader["root"]) for loader in run.recipe.get("loaders") or () if loader.get("root")}
    return DataOfRun(run.dataset or "", task, tuple(run.classes or ()), tuple(sorted(roots)))


def _is_alike(run: Run, other: Run) -> bool:
    """Return whether two runs did the same task on the same dataset."""
    return data_of(run) == data_of(other)


def panel(state: AppState, request: Request) -> Page:
    """Return one panel that the page was sent without."""
    store = state.store
    row = store.run(request.path_params["run"])
    name = request.path_params["panel"]
    if name not in PANELS:
        raise NotFound(f"There is no panel called {name[:40]!r}.", hint=f"Choose {' or '.join(PANELS)}.")
    epoch = whole_number(request, "epoch", 0) or 0
    split = read_asked_split(request, row)
    data = {
        "run": run_view(row),
        "epoch": epoch,
        "last_epoch": state.epoch(store, row),
        **_split_view(request, split),
        "counts": None,
        "timings": None,
    }
    data[name] = _panel(state, store, row, epoch, name, None, split, _classes(request))
    return Page(f"panel_{name}.html", data, extra={"class_orders": ORDERS})


def _classes(request: Request) -> ClassOrder:
    """Return the order of the classes in the confusion matrix."""
    asked = request.query_params.get("classes", "label")
    return asked if asked in ORDERS else "label"


def read_asked_split(request: Request, row: Run) -> str | None:
    """Return the split whose results are shown: the one that the address names, else that of the run's accuracy; None for all."""
    return request.query_params.get("split", row.accuracy_split) or None


def _split_view(request: Request, split: str | None) -> dict[str, str | None]:
    """Return the split as pages and links need it."""
    return {
        "split": split,
        "asked_split": request.query_params.get("split"),
        "split_filter": split_filter(split),
    }


def begin(state: AppState, store: Reader, row: Run, epoch: int, split: str | None) -> None:
    """Start counting in the background."""
    for name in PANELS:
        _panel(state, store, row, epoch, name, 0.0, split)


def compute_ahead(state: AppState, store: Reader) -> None:
    """Start computing what the page of the newest run needs, without waiting."""
    newest = next(reversed(store.runs()), None)
    if newest is None:
        return

    def ask() -> None:
        begin(state, store, newest, overview.last_epoch(store, newest), newest.accuracy_split)

    # Not `ask_about`: the page that needs the answer reports its errors.
    state.answers.ask((newest.run_id, store.manifest(newest.run_id).commit, "foreseen"), ask)


def count_epoch(
    state: AppState, store: Reader, row: Run, epoch: int, split: str | None, wait: float | None = None
) -> tuple[overview.RunCounts, TaskResults | None] | None:
    """Return the counts of an epoch, or of one split of it, and the results of its task; None if they are not ready."""

    def count() -> tuple[overview.RunCounts, TaskResults | None]:
        return overview.counts(store, row, epoch, split), task_results(store, row, epoch)

    return state.ask_about(store, row, ("counts", epoch, split), count, wait=wait)


def _panel(
    state: AppState,
    store: Reader,
    row: Run,
    epoch: int,
    name: str,
    wait: float | None,
    split: str | None,
    classes: ClassOrder = "label",
) -> Any:
    if name == "counts":
        found = count_epoch(state, store, row, epoch, split, wait)
        return counts_view(found[0], classes, task=found[1]) if found else None
    return state.ask_about(store, row, ("timings", epoch), lambda: overview.timings(store, row, epoch), wait=wait)
