"""Curate: tag samples, rename and tag runs, export a selection. Changes need `audit ui --write`; exports do not."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from audit.errors import UsageError
from audit.integrations.exporters import export_archive
from audit.lineage.queries.browsing import Key
from audit.lineage.selection import as_links, as_text, choose_rows
from audit.store.maintain.amend import rename_run, tag_run
from audit.store.maintain.sample_tags import tag_samples
from audit.store.read.items import SampleIdentity, items_at, items_of
from audit.store.read.reader import Reader as Store
from audit.web.app_state import AppState
from audit.web.pages.gallery import FORMS
from audit.web.pages.gallery_selection import selection
from audit.web.respond import Form, Page

_MOST = 100_000


def require_write(state: AppState) -> None:
    """Raise UsageError unless this server may change the store."""
    if not state.write:
        raise UsageError("This server does not change the store.", hint="Start it with: audit ui --write")


def tag(state: AppState, request: Request, form: Form) -> Page:
    """Give the chosen samples a tag, or take it away."""
    require_write(state)
    run_id = state.store.run(request.path_params["run"]).run_id
    indices, keys = _read_named_samples(form.get("indices", ""))
    with Store(state.store.location) as own:  # not the readers of other requests: it is refreshed
        options: dict[str, Any] = {"note": form.get("note"), "remove": form.get("do") == "remove"}
        items = items_at(own, run_id, keys)
        changed = tag_samples(own, run_id, indices, form.get("tag", ""), items=items, **options)
    state.expire()
    return Page("tagged.html", {"changed": changed, "tag": form.get("tag", ""), "removed": form.get("do") == "remove"})


def amend(state: AppState, request: Request, form: Form) -> Page:
    """Rename a run and set its tags, written as KEY=VALUE, one for each line."""
    require_write(state)
    run = state.store.run(request.path_params["run"])
    tags = dict(_pairs(form.get("tags", "")))
    with Store(state.store.location) as own:
        if form.get("name", "") != (run.name or ""):
            rename_run(own, run.run_id, form.get("name") or None)
        if tags != dict(run.tags):
            tag_run(own, run.run_id, tags, [key for key in run.tags if key not in tags])
    state.expire()
    return Page("amended.html", {"run_id": run.run_id})


_ARCHIVES = ("fiftyone", "label-studio", "cvat")


def export(state: AppState, request: Request) -> Response:
    """Return the chosen samples, or all of a gallery's, in one of the `FORMS`."""
    store = state.store
    run = store.run(request.path_params["run"])
    form = request.query_params.get("as", "csv")
    if form not in FORMS:
        raise UsageError(f"{form[:20]!r} is not a format.", hint=f"Choose one of {', '.join(FORMS)}.")
    items = _choose_items(state, request)
    if form in _ARCHIVES:
        return _file(export_archive(store, run.run_id, form, items=items), f"{form}.zip", "application/zip")
    rows = choose_rows(store, run, items=items)
    if form == "links":
        return _file(as_links(rows), "selection.tar", "application/x-tar")
    text = as_text(rows, "jsonl" if form == "jsonl" else "csv", defused=True).encode("utf-8", "backslashreplace")
    return _file(text, f"selection.{form}", "text/csv; charset=utf-8" if form == "csv" else "application/jsonl")


def _choose_items(state: AppState, request: Request) -> set[SampleIdentity]:
    """Return the samples that the address lists, else those of the gallery that it names."""
    store = state.store
    run = store.run(request.path_params["run"])
    picked = request.query_params.get("indices")
    if picked is not None:
        indices, keys = _read_named_samples(picked)
        return items_at(store, run.run_id, keys) | items_of(store, run.run_id, indices)
    # The condition is a user's SQL: it runs in the sandbox.
    rows = selection(state, store, run, request).picked_samples.rows
    found = state.sandbox.query(*(f"SELECT DISTINCT index, split, root FROM {one}" for one in rows), limit=_MOST)
    if found.more:
        raise UsageError(
            f"The gallery has more than {_MOST:,} samples.", hint="Narrow it, or use: audit select --where"
        )
    return {SampleIdentity(*row) for row in found.rows}


def _file(data: bytes, name: str, media: str) -> Response:
    return Response(data, media_type=media, headers={"content-disposition": f'attachment; filename="{name}"'})


def _read_named_samples(text: str) -> tuple[list[int], list[Key]]:
    """Return what a list of samples names: an index means each sample that has it, EPOCH-INDEX-VISIT the one of that visit."""
    names = [name.split("-") for name in text.split(",")] if text else []
    if not 0 < len(names) <= _MOST or not all(len(name) in (1, 3) and "".join(name).isdecimal() for name in names):
        raise UsageError(f"Choose 1 to {_MOST:,} samples.")
    keys = [(int(name[0]), int(name[1]), int(name[2])) for name in names if len(name) == 3]
    return [int(name[0]) for name in names if len(name) == 1], keys


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if not line.strip():
            continue
        if not equals or not key.strip():
            raise UsageError(f"A tag must be KEY=VALUE, got {line.strip()[:60]!r}.")
        pairs.append((key.strip(), value.strip()))
    return pairs
