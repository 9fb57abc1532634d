"""Curves: precision-recall and ROC of classes, each against all others."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from starlette.requests import Request

from audit.errors import UsageError
from audit.lineage.queries.curves import class_curve, labels_by_recall
from audit.web.app_state import AppState
from audit.web.pages.run import count_epoch, read_asked_split
from audit.web.respond import Page, whole_number

#: So many lines can be distinguished.
_MOST = 8
_WORST = 5


def curves(state: AppState, request: Request) -> Page:
    """Return the curves of the classes that the address names, else of the five with the lowest recall."""
    store = state.store
    row = store.run(request.path_params["run"])
    epoch = whole_number(request, "epoch")
    epoch = state.epoch(store, row) if epoch is None else epoch
    split = read_asked_split(request, row)
    known = count_epoch(state, store, row, epoch, split)
    assert known is not None
    counts = known[0]
    asked = request.query_params.getlist("class")
    if not all(one.isdecimal() for one in asked) or len(asked) > _MOST:
        raise UsageError(f"Name up to {_MOST} classes by their numbers.")
    per_class = sorted(counts["per_class"], key=lambda one: one["recall"] if one["recall"] is not None else 2.0)
    names, worst = counts["classes"], [one["label"] for one in per_class]
    if row.task == "multilabel":
        labels = labels_by_recall(store, row, epoch)
        names, worst = names | labels, list(labels)
    numbers = [int(one) for one in asked] or worst[:_WORST]
    found = []
    for number in numbers:
        curve = state.ask_about(
            store,
            row,
            ("curve", epoch, split, number),
            partial(class_curve, store, row, epoch, number, split),
            wait=None,
        )
        if curve is not None and curve.thresholds:
            found.append({**asdict(curve), "name": names.get(number, str(number))})
    listed = [{"number": number, "name": name} for number, name in sorted(names.items())]
    return Page(
        "curves.html",
        {
            "run_id": row.run_id,
            "epoch": epoch,
            "asked_split": request.query_params.get("split"),
            "curves": found,
            "classes": listed,
            "asked": [int(one) for one in asked],
        },
    )
