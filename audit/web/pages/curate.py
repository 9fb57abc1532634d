"""Curate: tag samples, rename and tag runs, export a selection. Changes need `audit ui --write`; exports do not."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from audit.errors import UsageError
from audit.integrations.exporters import export_archive
from audit.lineage.selection import as_links, as_text, chosen_rows
from audit.store.maintain.amend import rename_run, tag_run
from audit.store.maintain.sample_tags import tag_samples
from audit.store.read.reader import Reader as Store
from audit.web.pages.gallery import FORMS
from audit.web.pages.gallery_selection import selection
from audit.web.respond import Form, Page
from audit.web.state import AppState

_MOST = 100_000


def require_write(state: AppState) -> None:
    """Raise UsageError unless this server may change the store."""
    if not state.write:
        raise UsageError("This server does not change the store.", hint="Start it with: audit ui --write")


def tag(state: AppState, request: Request, form: Form) -> Page:
    """Give the chosen samples a tag, or take it away."""
    require_write(state)
    run_id = state.store.run(request.path_params["run"]).run_id
    indices = _indices(form.get("indices", ""))
    with Store(state.store.location) as own:  # not the readers of other requests: it is refreshed
        changed = tag_samples(
            own, run_id, indices, form.get("tag", ""), note=form.get("note"), remove=form.get("do") == "remove"
        )
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
    indices = _chosen_indices(state, request)
    if form in _ARCHIVES:
        return _file(export_archive(store, run.run_id, form, indices), f"{form}.zip", "application/zip")
    rows = chosen_rows(store, run, "", indices=indices)
    if form == "links":
        return _file(as_links(rows), "selection.tar", "application/x-tar")
    text = as_text(rows, "jsonl" if form == "jsonl" else "csv", defused=True).encode("utf-8", "backslashreplace")
    return _file(text, f"selection.{form}", "text/csv; charset=utf-8" if form == "csv" else "application/jsonl")


def _chosen_indices(state: AppState, request: Request) -> list[int]:
    """Return the indices that the address lists, else those of the gallery that it names."""
    picked = request.query_params.get("indices")
    if picked is not None:
        return _indices(picked)
    store = state.store
    run = store.run(request.path_params["run"])
    # The condition is a user's SQL: it runs in the sandbox.
    queries = [f"SELECT DISTINCT index FROM {rows}" for rows in selection(state, store, run, request).picked.rows]
    found = state.sandbox.query(*queries, limit=_MOST)
    if found.more:
        raise UsageError(
            f"The gallery has more than {_MOST:,} samples.", hint="Narrow it, or use: audit select --where"
        )
    return [int(row[0]) for row in found.rows]


def _file(data: bytes, name: str, media: str) -> Response:
    return Response(data, media_type=media, headers={"content-disposition": f'attachment; filename="{name}"'})


def _indices(text: str) -> list[int]:
    numbers = text.split(",") if text else []
    if not numbers or len(numbers) > _MOST or not all(number.isdecimal() for number in numbers):
        raise UsageError(f"Choose 1 to {_MOST:,} samples.")
    return [int(number) for number in numbers]


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
