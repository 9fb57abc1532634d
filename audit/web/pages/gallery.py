"""Gallery: the samples that an SQL condition picks, as pictures, a block at a time.

The condition is a user's SQL: it runs in the sandbox. The pictures of a block are fetched together as the block
goes out, so that the browser's requests for them find them made.
"""

from __future__ import annotations

import shlex
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from audit import plainjson
from audit.errors import QueryError, UsageError
from audit.lineage.queries import browsing, gallery_rows, overview
from audit.lineage.queries.filters import Facet, Filter, facets, stage_facets
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.confusion import cell_condition
from audit.report.html.page_data import run_view
from audit.report.html.previews import encode, excerpt
from audit.store.read.reader import Reader
from audit.store.sandbox.sandbox import Answer
from audit.store.sql_literal import literal
from audit.web.app_state import AppState
from audit.web.pages.gallery_selection import GallerySelection, cursor_of, selection
from audit.web.respond import Page, url, wants_json

BLOCK = 60
#: What a selection can be exported as.
FORMS = {
    "csv": "CSV manifest for --dataset",
    "jsonl": "JSON lines",
    "links": "folder of links (.tar)",
    "fiftyone": "FiftyOne",
    "label-studio": "Label Studio",
    "cvat": "CVAT",
}
#: Tasks whose predictions lie over their picture.
OVERLAID = ("detection", "segmentation")
_EXCERPT = 160
#: A sample further down than this is reached by beginning the gallery there.
_MOST_AT_ONCE = 1_200


def gallery(state: AppState, request: Request) -> Page:
    """Return the page around the blocks. HTML goes out at once and asks for the first block; JSON holds it."""
    store = state.store
    row = store.run(request.path_params["run"])
    stages = overview.stages(store, row)
    chosen = selection(state, store, row, request)
    last = state.epoch(store, row)
    of_splits = (
        state.ask_about(store, row, ("stage splits", last), lambda: overview.stage_splits(store, row, last)) or {}
    )
    query = f"FROM lineage WHERE run_id = {literal(row.run_id)}" + (
        f" AND (\n{chosen.condition}\n)" if chosen.condition else ""
    )
    data: dict[str, Any] = {
        "run": run_view(row),
        "stages": [
            {"stage": s.stage, "path": s.path, "name": s.name, "splits": of_splits.get(s.stage, [])} for s in stages
        ],
        "orders": list(gallery_rows.ORDERS),
        **chosen.as_dict(),
        "last_epoch": last,
        "at": request.query_params.get("at"),
        "tags": browsing.tag_names(store, row),
        "over": row.task in OVERLAID,
        "write": state.write,
        "location": store.location,
        "condition": chosen.condition,
        "query": query,
        "command": shlex.join(["audit", "sql", query, "--store", store.location]),
        "filters": chosen.filters_shown(),
    }
    if wants_json(request):
        data |= _block(state, store, row, request)
    else:
        _shows(state, store, row, data["stage"], 0.0)  # the next request of the page needs it
    return Page("gallery.html", data, extra={"forms": FORMS})


def filters(state: AppState, request: Request) -> Page:
    """Return the filters: how each number and class is distributed in the epoch, and what is chosen."""
    store = state.store
    row = store.run(request.path_params["run"])
    chosen = selection(state, store, row, request)
    epoch, stage = chosen.epoch, chosen.stage
    found = state.ask_about(store, row, ("facets", epoch), lambda: facets(store, row, epoch), wait=None) or []
    of_stage = state.ask_about(
        store, row, ("facets", epoch, stage), lambda: stage_facets(store, row, epoch, stage), wait=None
    )
    named = {one.name: one for one in chosen.filters}
    names = [s for s in overview.stages(store, row) if s.stage == stage]
    return Page(
        "filters.html",
        {
            "facets": [_facet(facet, named.get(facet.name), row) for facet in found],
            "stage_facets": [_facet(facet, named.get(facet.name), row) for facet in of_stage or []],
            "stage_name": f"{names[0].path or stage} {names[0].name}" if names else str(stage),
        },
    )


def _facet(facet: Facet, chosen: Filter | None, row: Run) -> JsonObject:
    """Return one facet as plain data: bars with their heights, or values with their names, and what is chosen."""
    tallest = max(facet.counts, default=0) or 1
    low = chosen.low if chosen is not None else None
    high = chosen.high if chosen is not None else None
    bars = [
        {
            "from": start,
            "to": end,
            "count": count,
            # A bar of few samples among many must still be seen.
            "height": round(max(1.5, 40 * (count / tallest) ** 0.5), 1) if count else 0,
            "chosen": chosen is not None and (low is None or end > low) and (high is None or start < high),
        }
        for start, end, count in zip(facet.edges, facet.edges[1:], facet.counts, strict=False)
    ]
    picked = chosen.values if chosen is not None and chosen.values is not None else ()
    values = [
        {
            "json": plainjson.dumps(value),
            "name": _value_name(facet.name, value, row.classes or []),
            "count": count,
            "chosen": value in picked,
        }
        for value, count in facet.values
    ]
    if facet.name in ("label", "predicted"):
        values.sort(key=lambda one: str(one["name"]).lower())
    return {"name": facet.name, "title": facet.title, "bars": bars, "values": values, "low": low, "high": high}


def _value_name(facet: str, value: object, classes: list[str]) -> str:
    if value is None:
        return "none"
    if facet in ("label", "predicted") and isinstance(value, int) and 0 <= value < len(classes):
        return classes[value]
    return {True: "right", False: "wrong"}[value] if facet == "correct" and isinstance(value, bool) else str(value)


def cell(state: AppState, request: Request) -> Response:
    """Lead to the gallery of one cell of a large confusion matrix, whose own links must be short."""
    run_id = state.store.run(request.path_params["run"]).run_id
    predicted = request.path_params["predicted"]
    if predicted != "none" and not predicted.isdecimal():
        raise UsageError(f"A class must be a number, not {predicted[:40]!r}.")
    condition = cell_condition(request.path_params["label"], None if predicted == "none" else int(predicted))
    return RedirectResponse(
        url(
            "run",
            run_id,
            "gallery",
            where=condition,
            of=request.query_params.get("of"),
            filter=request.query_params.get("filter"),
        )
    )


def block(state: AppState, request: Request) -> Page:
    """Return one block of samples."""
    store = state.store
    row = store.run(request.path_params["run"])
    data = {"run": run_view(row), **selection(state, store, row, request).as_dict()}
    data["several_epochs"] = state.epoch(store, row) > 0
    data["over"] = row.task in OVERLAID
    try:
        data |= _block(state, store, row, request)
    except QueryError as error:
        # The user is still typing the condition, so its error is shown inside the gallery.
        return Page("gallery_error.html", {**data, "error": error.message, "hint": error.hint})
    return Page("gallery_block.html", data)


def count(state: AppState, request: Request) -> Page:
    """Return how many samples the condition picks."""
    store = state.store
    row = store.run(request.path_params["run"])
    queries = gallery_rows.count_queries(selection(state, store, row, request).picked_samples)

    def count_samples() -> int:
        return int(state.sandbox.query(*queries, limit=1).rows[0][0])

    try:
        found = state.ask_about(store, row, ("count", queries), count_samples, wait=None)
    except QueryError:
        found = None
    return Page("gallery_count.html", {"count": found})


def _start(state: AppState, chosen: GallerySelection, request: Request) -> tuple[str | None, bool, int]:
    """Return the cursor to begin at, whether its own sample is shown, and how many: enough to reach the sample `at`."""
    after, at = request.query_params.get("after"), request.query_params.get("at")
    if after is not None or not at:
        return after, False, BLOCK
    numbers = at.split("-")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None, False, BLOCK
    cursor = cursor_of(state, chosen, (int(numbers[0]), int(numbers[1]), int(numbers[2])))
    if cursor is None:
        return None, False, BLOCK
    built = gallery_rows.count_earlier(chosen.picked_samples, cursor, order=chosen.order)
    before = int(state.sandbox.query(*built.queries, parameters=built.parameters, limit=1).rows[0][0])
    if before >= _MOST_AT_ONCE:
        return cursor, True, BLOCK
    return None, False, BLOCK * (before // BLOCK + 1)


def _block(state: AppState, store: Reader, row: Run, request: Request) -> JsonObject:
    chosen = selection(state, store, row, request)
    cursor, including, many = _start(state, chosen, request)
    built = gallery_rows.block(chosen.picked_samples, order=chosen.order, after=cursor, limit=many, including=including)
    asked = ("block", built.queries, tuple(built.parameters))
    answer = state.ask_about(store, row, asked, lambda: _ask(state, built, many), wait=None)
    rows = gallery_rows.with_names(row, answer.typed_rows(gallery_rows.GalleryRow) if answer else [])
    following = built.cursor(rows[-1]) if len(rows) == many else None
    shows = _shows(state, store, row, chosen.stage, None)
    if shows == "picture":
        _expect(state, store, row, rows, chosen.stage)
    texts = _texts(store, row, rows, chosen.stage) if shows == "text" else {}
    tagged = browsing.tags(store, row, [_key(sample) for sample in rows])
    named, said = _describe(state, store, row, tuple(_key(sample) for sample in rows))
    samples = [
        {
            **{name: value for name, value in sample.items() if name != "sort_key"},
            "text": texts.get(_key(sample)),
            "source": named.get(_key(sample)),
            "said": said.get(_key(sample)),
            "tags": tagged.get(_key(sample), []),
        }
        for sample in rows
    ]
    first = "after" not in request.query_params
    return {"samples": samples, "shows": shows, "after": following, "first": first, "skipped": including}


def _describe(
    state: AppState, store: Reader, row: Run, keys: tuple[browsing.Key, ...]
) -> tuple[dict[browsing.Key, str | None], dict[browsing.Key, str]]:
    """Return the sources of a block's samples, and what a model said of them in a few words."""

    def look() -> tuple[dict[browsing.Key, str | None], dict[browsing.Key, str]]:
        return browsing.sources(store, row, keys), browsing.summaries(store, row, keys)

    return state.ask_about(store, row, ("described", keys), look, wait=None) or ({}, {})


def _ask(state: AppState, built: gallery_rows.GalleryBlock, many: int) -> Answer:
    return state.sandbox.query(*built.queries, parameters=built.parameters, limit=many)


def _shows(state: AppState, store: Reader, row: Run, stage: int, wait: float | None) -> str | None:
    return state.ask_about(store, row, ("shows", stage), lambda: browsing.shows(store, row, stage), wait=wait)


def _key(sample: gallery_rows.GalleryRow) -> browsing.Key:
    return sample["epoch"], sample["index"], sample["visit"]


def _texts(store: Reader, row: Run, samples: list[gallery_rows.GalleryRow], stage: int) -> dict[browsing.Key, str]:
    found = browsing.previews(store, row, [_key(sample) for sample in samples], stage)
    return {key: excerpt(preview, _EXCERPT) for key, preview in found.items()}


def _expect(state: AppState, store: Reader, row: Run, samples: list[gallery_rows.GalleryRow], stage: int) -> None:
    keys = [_key(sample) for sample in samples]

    def fetch() -> None:
        found = browsing.previews(store, row, keys, stage)
        for key in keys:
            state.pictures.put((row.run_id, *key, stage), encode(found.get(key)))

    future = state.answers.ask((row.run_id, "previews", stage, tuple(keys)), fetch)
    if not future.done():
        state.pictures.expect([(row.run_id, *key, stage) for key in keys], future)
