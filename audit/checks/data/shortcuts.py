"""`shortcuts`: a property of the files, such as size, format or brightness, predicts the label."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import evenly

#: The properties: name, SQL expression over stage 0 and samples, and words for messages.
_FACTS = {
    "brightness": ("o.mean", "the mean brightness"),
    "contrast": ("o.std", "the contrast"),
    "width": ("o.shape[2]", "the width"),
    "height": ("o.shape[1]", "the height"),
    "aspect": ("round(o.shape[2] / nullif(o.shape[1], 0), 3)", "the aspect ratio"),
    "mode": ("o.mode", "the colour mode"),
    "format": ("lower(regexp_extract(s.source, '\\.([A-Za-z0-9]{1,5})$', 1))", "the file format"),
    "compression": ("s.source_bytes / nullif(o.shape[1] * o.shape[2], 0)", "the bytes per pixel"),
}
_BINS = 10


class Shortcuts(Check):
    """Predict the labels of one half of the samples from one property, learned on the other half."""

    name = "shortcuts"
    group = "data"
    description = "The size, format, compression or brightness of the pictures does not predict their labels."
    severity = "warning"
    needs = ("labels", "pictures")
    options = settings(
        explained=Option(0.5, "Report a property that alone corrects at least this share of the errors of guessing."),
        samples=Option(60, "Check only if there are at least this many samples."),
        looked_at=Option(20_000, "Use at most this many samples, evenly chosen; 0 uses all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = self._query(context)
        rows = context.rows(query)
        if len(rows) < context.options["samples"]:
            raise Skip(f"the run has {len(rows)} labelled pictures; at least {context.options['samples']} are needed")
        labels = [row["label"] for row in rows]
        if len(set(labels)) < 2:
            raise Skip("all samples have one label")
        halves = [row["index"] * 2654435761 % 2**32 < 2**31 for row in rows]
        for name, (_, called) in _FACTS.items():
            right, guessed = _predict(_assign_bins([row[name] for row in rows]), labels, halves)
            spread = 3 * math.sqrt(right * (1 - right) / len(rows))
            explained = (right - spread - guessed) / (1 - guessed) if guessed < 1 else 0.0
            if explained >= context.options["explained"]:
                yield Finding(
                    f"From {called} of a file alone the label is right for {right:.0%} of {len(rows):,} samples "
                    f"(±{spread:.0%}), where guessing gives {guessed:.0%}: a model may learn that instead of the picture.",
                    stage=0,
                    value=right,
                    threshold=guessed,
                    sql=f"SELECT label, avg({name}), min({name}), max({name}) FROM ({query}) GROUP BY label ORDER BY label"
                    if name not in ("mode", "format")
                    else f"SELECT label, {name}, count(*) FROM ({query}) GROUP BY ALL ORDER BY ALL",
                )

    def _query(self, context: Context) -> str:
        facts = ", ".join(f"{sql} AS {name}" for name, (sql, _) in _FACTS.items())
        usable = "status = 'ok' AND label IS NOT NULL"
        total = context.value(f"SELECT count(*) FROM {context.items} WHERE {usable}")
        most = context.options["looked_at"]
        chosen = f" AND {evenly(most, total)}" if most and total > most else ""
        return (
            f"SELECT s.index, s.label, {facts} FROM (FROM {context.items} WHERE {usable}{chosen}) s "
            f"JOIN (FROM {context.sources_decoded} WHERE kind = 'image' AND len(shape) >= 2) o USING (epoch, index, visit)"
        )


def _assign_bins(values: list[Any]) -> list[Any]:
    """Return numbers with many distinct values as deciles; other values unchanged."""
    known = sorted({value for value in values if isinstance(value, (int, float)) and value == value})
    if len(known) <= _BINS or not all(isinstance(value, (int, float)) or value is None for value in values):
        return values
    ranked = sorted(value for value in values if value is not None and value == value)
    edges = [ranked[len(ranked) * n // _BINS] for n in range(1, _BINS)]
    return [None if value is None else sum(value >= edge for edge in edges) for value in values]


def _predict(values: list[Any], labels: list[int], halves: list[bool]) -> tuple[float, float]:
    """Return the accuracy of each value's commonest label, learned on the other half, and of the commonest label."""
    right = guessed = 0
    for learn in (True, False):
        counts: dict[Any, dict[int, int]] = {}
        overall: dict[int, int] = {}
        for value, label, half in zip(values, labels, halves, strict=True):
            if half == learn:
                of_value = counts.setdefault(value, {})
                of_value[label] = of_value.get(label, 0) + 1
                overall[label] = overall.get(label, 0) + 1
        common = max(overall, key=lambda label: (overall[label], -label), default=None)
        best = {value: max(found, key=lambda label: (found[label], -label)) for value, found in counts.items()}
        for value, label, half in zip(values, labels, halves, strict=True):
            if half != learn:
                right += best.get(value, common) == label
                guessed += common == label
    return right / len(labels), guessed / len(labels)


CHECK = Shortcuts
