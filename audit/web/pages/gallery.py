"""Gallery: the samples that an SQL condition picks, as pictures, a block at a time.

The condition is a user's SQL: it runs in the sandbox. The pictures of a block are fetched together as the block
goes out, so that the browser's requests for them find them made.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from audit.errors import QueryError
from audit.lineage.queries import browsing, overview
from audit.records import Run
from audit.report.html.page_data import run_view
from audit.report.html.previews import encode, excerpt
from audit.store.read.reader import Reader
from audit.web.respond import Page, wants_json, whole
from audit.web.state import AppState

BLOCK = 60
_EXCERPT = 160


def gallery(desk: AppState, request: Request) -> Page:
    """Return the page around the blocks. HTML goes out at once and asks for the first block; JSON holds it."""
    store = desk.store
    row = store.run(request.path_params["run"])
    stages = overview.stages(store, row)
    data: dict[str, Any] = {
        "run": run_view(row),
        "stages": [{"stage": s.stage, "path": s.path, "name": s.name} for s in stages],
        "orders": list(browsing.ORDERS),
        **_asked(request, row),
    }
    if wants_json(request):
        data |= _block(desk, store, row, request)
    else:
        _shows(desk, store, row, data["stage"], 0.0)  # the next request of the page needs it
    return Page("gallery.html", data)


def block(desk: AppState, request: Request) -> Page:
    """Return one block of samples."""
    store = desk.store
    row = store.run(request.path_params["run"])
    data = {"run": run_view(row), **_asked(request, row)}
    try:
        data |= _block(desk, store, row, request)
    except QueryError as error:
        # The user is still typing the condition, so its error is shown inside the gallery.
        return Page("gallery_error.html", {**data, "error": error.message, "hint": error.hint})
    return Page("gallery_block.html", data)


def count(desk: AppState, request: Request) -> Page:
    """Return how many samples the condition picks."""
    store = desk.store
    row = store.run(request.path_params["run"])
    queries, parameters = browsing.matching(row, _where(request, row))

    def counted() -> int:
        return int(desk.sandbox.query(*queries, parameters=parameters, limit=1).rows[0][0])

    try:
        found = desk.about(store, row, ("count", queries), counted, wait=None)
    except QueryError:
        found = None
    return Page("gallery_count.html", {"count": found})


def _where(request: Request, run: Run) -> str:
    return request.query_params.get("where", "NOT correct" if run.graded and run.wrong else "")


def _asked(request: Request, run: Run) -> dict[str, Any]:
    return {
        "where": _where(request, run),
        "order": request.query_params.get("order", "loss" if run.graded else "index"),
        "stage": whole(request, "stage", 0) or 0,
    }


def _block(desk: AppState, store: Reader, row: Run, request: Request) -> dict[str, Any]:
    asked = _asked(request, row)
    built = browsing.block(
        row, asked["where"], order=asked["order"], after=request.query_params.get("after"), limit=BLOCK
    )
    answer = desk.sandbox.query(*built.queries, parameters=built.parameters, limit=BLOCK)
    rows = browsing.with_names(row, answer.typed_rows(browsing.GalleryRow))
    cursor = built.cursor(rows[-1]) if len(rows) == BLOCK else None
    shows = _shows(desk, store, row, asked["stage"], None)
    if shows == "picture":
        _expect(desk, store, row, rows, asked["stage"])
    texts = _texts(store, row, rows, asked["stage"]) if shows == "text" else {}
    samples = [
        {**{name: value for name, value in sample.items() if name != "sort_key"}, "text": texts.get(_key(sample))}
        for sample in rows
    ]
    return {"samples": samples, "shows": shows, "after": cursor, "first": "after" not in request.query_params}


def _shows(desk: AppState, store: Reader, row: Run, stage: int, wait: float | None) -> str | None:
    return desk.about(store, row, ("shows", stage), lambda: browsing.shows(store, row, stage), wait=wait)


def _key(sample: browsing.GalleryRow) -> browsing.Key:
    return sample["epoch"], sample["index"], sample["visit"]


def _texts(store: Reader, row: Run, samples: list[browsing.GalleryRow], stage: int) -> dict[browsing.Key, str]:
    found = browsing.previews(store, row, [_key(sample) for sample in samples], stage)
    return {key: excerpt(preview, _EXCERPT) for key, preview in found.items()}


def _expect(desk: AppState, store: Reader, row: Run, samples: list[browsing.GalleryRow], stage: int) -> None:
    keys = [_key(sample) for sample in samples]

    def fetch() -> None:
        found = browsing.previews(store, row, keys, stage)
        for key in keys:
            desk.pictures.put((row.run_id, *key, stage), encode(found.get(key)))

    future = desk.answers.ask((row.run_id, "previews", stage, tuple(keys)), fetch)
    if not future.done():
        desk.pictures.expect([(row.run_id, *key, stage) for key in keys], future)
