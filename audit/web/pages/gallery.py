"""Gallery: the samples that an SQL condition picks, as pictures, a block at a time.

The condition is a user's SQL: it runs in the sandbox. The pictures of a block are fetched together as the block
goes out, so that the browser's requests for them find them made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from audit import plainjson
from audit.errors import QueryError, UsageError
from audit.lineage.queries import browsing, overview
from audit.lineage.queries.filters import Facet, Filter, facets, parse_filters, stage_facets
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.confusion import where
from audit.report.html.page_data import run_view
from audit.report.html.previews import encode, excerpt
from audit.store.read.reader import Reader
from audit.web.respond import Page, url, wants_json, whole
from audit.web.state import AppState

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
_EXCERPT = 160
#: A sample further down than this is reached by beginning the gallery there.
_MOST_AT_ONCE = 1_200
_EPOCH = re.compile(r"\bepoch\b", re.IGNORECASE)


def gallery(state: AppState, request: Request) -> Page:
    """Return the page around the blocks. HTML goes out at once and asks for the first block; JSON holds it."""
    store = state.store
    row = store.run(request.path_params["run"])
    stages = overview.stages(store, row)
    data: dict[str, Any] = {
        "run": run_view(row),
        "stages": [{"stage": s.stage, "path": s.path, "name": s.name} for s in stages],
        "orders": list(browsing.ORDERS),
        **selection(state, store, row, request).as_dict(),
        "last_epoch": state.epoch(store, row),
        "at": request.query_params.get("at"),
        "tags": browsing.tag_names(store, row),
        "write": state.write,
        "location": store.location,
        "condition": selection(state, store, row, request).condition,
        "filters": selection(state, store, row, request).filters_shown(),
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
    found = state.about(store, row, ("facets", epoch), lambda: facets(store, row, epoch), wait=None) or []
    of_stage = state.about(
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
    condition = where(request.path_params["label"], None if predicted == "none" else int(predicted))
    return RedirectResponse(url("run", run_id, "gallery", where=condition, of=request.query_params.get("of")))


def block(state: AppState, request: Request) -> Page:
    """Return one block of samples."""
    store = state.store
    row = store.run(request.path_params["run"])
    data = {"run": run_view(row), **selection(state, store, row, request).as_dict()}
    data["several_epochs"] = state.epoch(store, row) > 0
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
    queries, parameters = browsing.matching(row, selection(state, store, row, request).condition)

    def counted() -> int:
        return int(state.sandbox.query(*queries, parameters=parameters, limit=1).rows[0][0])

    try:
        found = state.about(store, row, ("count", queries), counted, wait=None)
    except QueryError:
        found = None
    return Page("gallery_count.html", {"count": found})


@dataclass(frozen=True, slots=True)
class GallerySelection:
    """Which samples a gallery shows, and in which order. It is in the address of the gallery and of every sample opened from it."""

    where: str
    order: str
    stage: int
    #: The epoch, or None for all of them.
    epoch: int | None
    run_id: str = ""
    tag: str = ""
    filters: tuple[Filter, ...] = ()
    #: The filters as they are in the address.
    filter_text: str = ""

    def filters_shown(self) -> list[dict[str, str]]:
        """Return each filter as the SQL condition that it is."""
        return [{"name": one.name, "sql": one.condition(self.run_id)} for one in self.filters]

    @property
    def condition(self) -> str:
        """Return the SQL condition of it all."""
        ours = [f"epoch = {self.epoch}"] if self.epoch is not None else []
        if self.tag:
            name = self.tag.replace("'", "''")
            ours.append(f"index IN (SELECT index FROM tags WHERE run_id = '{self.run_id}' AND tag = '{name}')")
        ours += [one.condition(self.run_id) for one in self.filters]
        # On lines of their own: a comment at the end of the user's condition must not swallow ours.
        return " AND ".join([*ours, f"(\n{self.where}\n)"]) if ours and self.where else " AND ".join(ours) or self.where

    def as_query(self) -> dict[str, object]:
        """Return it as the parameters of an address."""
        of = "all" if self.epoch is None else self.epoch
        asked: dict[str, object] = {"where": self.where, "order": self.order, "stage": self.stage, "of": of}
        return asked | {"tag": self.tag, "filter": self.filter_text}

    def as_dict(self) -> JsonObject:
        """Return it as plain data for pages."""
        return {**self.as_query(), "selection": urlencode(self.as_query())}


def selection(state: AppState, store: Reader, row: Run, request: Request) -> GallerySelection:
    """Return what the address asks for. Unless it names an epoch, a training shows its last one."""
    asked = request.query_params
    picks = asked.get("where", "NOT correct" if row.graded and row.wrong else "")
    last = state.epoch(store, row)
    of = asked.get("of", "all" if not last or _EPOCH.search(picks) else str(last))
    if of != "all" and not of.isdecimal():
        raise UsageError(f"of must be an epoch or all, not {of[:40]!r}.")
    return GallerySelection(
        picks,
        asked.get("order", "loss" if row.graded else "index"),
        whole(request, "stage", 0) or 0,
        None if of == "all" else int(of),
        row.run_id,
        asked.get("tag", ""),
        parse_filters(asked.get("filter", "")),
        asked.get("filter", ""),
    )


def neighbours(
    state: AppState, row: Run, chosen: GallerySelection, key: browsing.Key
) -> tuple[browsing.VisitPlace | None, browsing.VisitPlace | None]:
    """Return the samples before and after one in the order of a gallery; None where there is none."""
    cursor = _cursor_of(state, row, chosen, key)
    if cursor is None:
        return None, None
    found = []
    for backwards in (True, False):
        built = browsing.block(row, chosen.condition, order=chosen.order, after=cursor, limit=1, backwards=backwards)
        rows = state.sandbox.query(*built.queries, parameters=built.parameters, limit=1).typed_rows(browsing.GalleryRow)
        found.append(_place_of(rows[0]) if rows else None)
    return found[0], found[1]


def _place_of(row: browsing.GalleryRow) -> browsing.VisitPlace:
    return {"epoch": row["epoch"], "index": row["index"], "visit": row["visit"]}


def _cursor_of(state: AppState, row: Run, chosen: GallerySelection, key: browsing.Key) -> str | None:
    built = browsing.place(row, chosen.condition, key, order=chosen.order)
    here = state.sandbox.query(*built.queries, parameters=built.parameters, limit=1).typed_rows(browsing.GalleryRow)
    return built.cursor(here[0]) if here else None


def _start(state: AppState, row: Run, chosen: GallerySelection, request: Request) -> tuple[str | None, bool, int]:
    """Return the cursor to begin at, whether its own sample is shown, and how many: enough to reach the sample `at`."""
    after, at = request.query_params.get("after"), request.query_params.get("at")
    if after is not None or not at:
        return after, False, BLOCK
    numbers = at.split("-")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None, False, BLOCK
    cursor = _cursor_of(state, row, chosen, (int(numbers[0]), int(numbers[1]), int(numbers[2])))
    if cursor is None:
        return None, False, BLOCK
    built = browsing.earlier(row, chosen.condition, cursor, order=chosen.order)
    before = int(state.sandbox.query(*built.queries, parameters=built.parameters, limit=1).rows[0][0])
    if before >= _MOST_AT_ONCE:
        return cursor, True, BLOCK
    return None, False, BLOCK * (before // BLOCK + 1)


def _block(state: AppState, store: Reader, row: Run, request: Request) -> JsonObject:
    chosen = selection(state, store, row, request)
    cursor, including, many = _start(state, row, chosen, request)
    built = browsing.block(row, chosen.condition, order=chosen.order, after=cursor, limit=many, including=including)
    answer = state.sandbox.query(*built.queries, parameters=built.parameters, limit=many)
    rows = browsing.with_names(row, answer.typed_rows(browsing.GalleryRow))
    following = built.cursor(rows[-1]) if len(rows) == many else None
    shows = _shows(state, store, row, chosen.stage, None)
    if shows == "picture":
        _expect(state, store, row, rows, chosen.stage)
    texts = _texts(store, row, rows, chosen.stage) if shows == "text" else {}
    tagged = browsing.tags(store, row, [sample["index"] for sample in rows])
    named = browsing.sources(store, row, [_key(sample) for sample in rows])
    samples = [
        {
            **{name: value for name, value in sample.items() if name != "sort_key"},
            "text": texts.get(_key(sample)),
            "source": named.get(_key(sample)),
            "tags": tagged.get(sample["index"], []),
        }
        for sample in rows
    ]
    first = "after" not in request.query_params
    return {"samples": samples, "shows": shows, "after": following, "first": first, "skipped": including}


def _shows(state: AppState, store: Reader, row: Run, stage: int, wait: float | None) -> str | None:
    return state.about(store, row, ("shows", stage), lambda: browsing.shows(store, row, stage), wait=wait)


def _key(sample: browsing.GalleryRow) -> browsing.Key:
    return sample["epoch"], sample["index"], sample["visit"]


def _texts(store: Reader, row: Run, samples: list[browsing.GalleryRow], stage: int) -> dict[browsing.Key, str]:
    found = browsing.previews(store, row, [_key(sample) for sample in samples], stage)
    return {key: excerpt(preview, _EXCERPT) for key, preview in found.items()}


def _expect(state: AppState, store: Reader, row: Run, samples: list[browsing.GalleryRow], stage: int) -> None:
    keys = [_key(sample) for sample in samples]

    def fetch() -> None:
        found = browsing.previews(store, row, keys, stage)
        for key in keys:
            state.pictures.put((row.run_id, *key, stage), encode(found.get(key)))

    future = state.answers.ask((row.run_id, "previews", stage, tuple(keys)), fetch)
    if not future.done():
        state.pictures.expect([(row.run_id, *key, stage) for key in keys], future)
