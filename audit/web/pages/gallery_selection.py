"""Which samples a gallery shows, and in which order: read from an address, and written into one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request

from audit.errors import UsageError
from audit.lineage.queries import browsing, gallery_rows, overview
from audit.lineage.queries.filters import Filter, parse_filters, split_filter
from audit.plainjson import JsonObject
from audit.records import Run
from audit.store.read.items import write_tagged_condition
from audit.store.read.reader import Reader
from audit.web.app_state import AppState
from audit.web.neighbours import MANY
from audit.web.respond import whole_number

_EPOCH = re.compile(r"\bepoch\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GallerySelection:
    """Which samples a gallery shows, and in which order. It is in the address of the gallery and of every sample opened from it."""

    run: Run
    completeness: gallery_rows.Completeness
    where: str
    order: str
    stage: int
    #: The epoch, or None for all of them.
    epoch: int | None
    tag: str = ""
    filters: tuple[Filter, ...] = ()
    #: The filters as they are in the address.
    filter_text: str = ""

    def filters_shown(self) -> list[dict[str, str]]:
        """Return each filter as the SQL condition that it is."""
        return [{"name": one.name, "sql": one.condition(self.run.run_id)} for one in self.filters]

    @property
    def condition(self) -> str:
        """Return the SQL condition of it all."""
        ours = [f"epoch = {self.epoch}"] if self.epoch is not None else []
        if self.tag:
            ours.append(write_tagged_condition(self.run.run_id, self.tag))
        ours += [one.condition(self.run.run_id) for one in self.filters]
        # On lines of their own: a comment at the end of the user's condition must not swallow ours.
        return " AND ".join([*ours, f"(\n{self.where}\n)"]) if ours and self.where else " AND ".join(ours) or self.where

    @property
    def picked_samples(self) -> gallery_rows.PickedSamples:
        """Return the samples that it picks."""
        return gallery_rows.PickedSamples(self.run, self.condition, self.completeness)

    def as_query(self) -> dict[str, object]:
        """Return it as the parameters of an address."""
        of = "all" if self.epoch is None else self.epoch
        asked: dict[str, object] = {"where": self.where, "order": self.order, "stage": self.stage, "of": of}
        return asked | {"tag": self.tag, "filter": self.filter_text}

    def as_dict(self) -> JsonObject:
        """Return it as plain data for pages."""
        return {**self.as_query(), "selection": urlencode(self.as_query())}


def selection(state: AppState, store: Reader, row: Run, request: Request) -> GallerySelection:
    """Return what the address asks for. Unless it names them, a training shows the mistakes that its accuracy is of."""
    asked = request.query_params
    chosen = "" if "where" in asked else split_filter(row.accuracy_split)
    filters, stage = asked.get("filter", chosen), whole_number(request, "stage")
    picks = asked.get("where", "NOT correct" if row.graded and row.wrong else "")
    last = state.epoch(store, row)
    of = asked.get("of", "all" if not last or _EPOCH.search(picks) else str(last))
    if of != "all" and not of.isdecimal():
        raise UsageError(f"of must be an epoch or all, not {of[:40]!r}.")
    known = state.ask_about(store, row, "completeness", lambda: gallery_rows.completeness(store, row), wait=None)
    return GallerySelection(
        row,
        known or "unknown",
        picks,
        asked.get("order", "loss" if row.graded else "index"),
        _default_stage(store, row) if stage is None else stage,
        None if of == "all" else int(of),
        asked.get("tag", ""),
        parse_filters(filters),
        filters,
    )


def _default_stage(store: Reader, row: Run) -> int:
    """Return the stage that is shown first: the sources, but for masks what the model saw, because they lie over it."""
    if row.task != "segmentation" or len(row.recipe.get("loaders") or ()) > 1:
        return 0
    return max((stage.stage for stage in overview.stages(store, row) if not stage.is_target), default=0)


def neighbours(
    state: AppState, chosen: GallerySelection, key: browsing.Key
) -> tuple[browsing.VisitPlace | None, browsing.VisitPlace | None]:
    """Return the samples before and after one in the order of a gallery; None where there is none."""
    picked = chosen.picked_samples
    gallery = (picked.run.run_id, state.store.manifest(picked.run.run_id).commit, picked.condition, chosen.order)
    if (known := state.neighbours.find(gallery, key)) is not None:
        return known
    built = gallery_rows.neighbours(picked, key, order=chosen.order, many=MANY)
    ((before, after),) = state.sandbox.query(*built.queries, parameters=built.parameters, limit=1).rows
    if before is None and after is None:
        return None, None  # the gallery does not have it, or nothing else
    return state.neighbours.add(gallery, _places(before), key, _places(after))


def _places(found: Sequence[Sequence[int]] | None) -> list[browsing.VisitPlace]:
    return [{"epoch": epoch, "index": index, "visit": visit} for index, epoch, visit in found or ()]


def cursor_of(state: AppState, chosen: GallerySelection, key: browsing.Key) -> str | None:
    """Return where a sample is in the order of a gallery; None where the gallery does not have it."""
    built = gallery_rows.place(chosen.picked_samples, key, order=chosen.order)
    here = state.sandbox.query(*built.queries, parameters=built.parameters, limit=1).typed_rows(gallery_rows.GalleryRow)
    return built.cursor(here[0]) if here else None
