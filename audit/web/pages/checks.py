"""Checks: what the checks of a run found, each with the pictures of its samples."""

from __future__ import annotations

from functools import lru_cache

from starlette.requests import Request

from audit.lineage.queries import browsing, overview
from audit.plainjson import JsonObject
from audit.report.html.page_data import run_view
from audit.web.app_state import AppState
from audit.web.respond import Page

_MOST_LISTED = 20_000
_PICTURES = 24
_MOST_LINKED = 1_000
_ORDER = {"fail": 0, "error": 1, "skip": 3, "pass": 4}
_WORST = {"error": 0, "warning": 1, "info": 2}

#: Epoch, index and visit of the sample that a finding is about; the index alone where no other sample has it.
Place = tuple[int | None, int | None, int | None]


def checks(state: AppState, request: Request) -> Page:
    """Return the page: failed checks first."""
    store = state.store
    row = store.run(request.path_params["run"])
    epoch = state.epoch(store, row)
    found = (
        state.ask_about(
            store, row, "findings", lambda: overview.findings(store, row, _MOST_LISTED, _MOST_LISTED), wait=None
        )
        or []
    )
    grouped: dict[str, list[overview.FindingSummary]] = {}
    for finding in found:
        grouped.setdefault(finding["check_name"], []).append(finding)
    groups = [_group(name, many) for name, many in grouped.items()]
    groups.sort(key=lambda group: (_ORDER.get(group["status"], 2), _WORST.get(group["severity"], 0), group["name"]))
    shown = {finding["index"] for group in groups for finding in group["pictures"]}
    shows = (
        state.ask_about(store, row, ("shows", 0), lambda: browsing.shows(store, row, 0), wait=None) if shown else None
    )
    return Page(
        "checks.html",
        {"run": run_view(row), "groups": groups, "epoch": epoch, "shows": shows, "location": store.location},
    )


def _group(name: str, many: list[overview.FindingSummary]) -> JsonObject:
    """Return one check: the worst of its statuses, its sentences, and its samples."""
    status = min((finding["status"] for finding in many), key=lambda one: _ORDER.get(one, 2))
    first = {_place(finding): finding for finding in reversed(many) if finding["index"] is not None}
    places = [place for place in dict.fromkeys(map(_place, many)) if place in first]
    return {
        "name": name,
        "description": _description(name),
        "status": status,
        "severity": many[0]["severity"],
        "messages": [finding for finding in many if finding["index"] is None],
        "pictures": [first[place] for place in places[:_PICTURES]],
        "samples": len(places),
        "where": _condition(places[:_MOST_LINKED]) if places else None,
    }


def _place(finding: overview.FindingSummary) -> Place:
    return finding["epoch"], finding["index"], finding["visit"]


def _condition(places: list[Place]) -> str:
    """Return the SQL condition that picks the samples: by their index, unless other samples have the same one."""
    if any(epoch is None for epoch, _, _ in places):
        return f"index IN ({', '.join(str(index) for _, index, _ in places)})"
    return f"(epoch, index, visit) IN ({', '.join(map(str, places))})"


@lru_cache(maxsize=256)
def _description(name: str) -> str:
    """Return what a check looks for; nothing for a check that is not installed here."""
    from audit.checks.registry import CHECKS

    return str(CHECKS.get(name).description) if name in CHECKS else ""
