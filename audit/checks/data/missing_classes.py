"""`missing_classes`: classes without a usable sample."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context


class MissingClasses(Check):
    """Compare the labels with the run's class names, and the splits with each other."""

    description = "Classes that no usable sample has, in the whole run or in one of its splits."
    needs = ("labels",)
    options = settings(may_miss=Option([], "Classes that may have no sample."))

    def run(self, context: Context) -> Iterable[Finding]:
        if context.run.recipe.get("limit"):
            raise Skip("only the first samples were recorded (--limit)")
        classes = context.run.classes or []
        excused = {str(name) for name in context.options["may_miss"]} | set(_left_out(context, classes))
        usable = "status = 'ok' AND label IS NOT NULL"
        query = f"SELECT DISTINCT split, label FROM {context.samples} WHERE {usable} ORDER BY ALL"
        rows = context.rows(query)
        present = {row["label"] for row in rows}
        known = sorted(present | set(range(len(classes))))
        splits = sorted({row["split"] for row in rows}, key=str)
        for label in known:
            name = classes[label] if 0 <= label < len(classes) else str(label)
            if name in excused:
                continue
            missing = [split for split in splits if {"split": split, "label": label} not in rows]
            if label not in present:
                yield Finding(
                    f"No usable sample has the class {name} (label {label}).", value=0, threshold=1, sql=query
                )
            elif missing and len(splits) > 1:
                listed = ", ".join(str(split) for split in missing)
                yield Finding(
                    f"The class {name} (label {label}) is missing in the split {listed}.",
                    value=0,
                    threshold=1,
                    sql=query,
                )


def _left_out(context: Context, classes: list[str]) -> list[str]:
    """Classes that the configuration does not look at."""
    wanted = context.narrowing.classes
    return [name for n, name in enumerate(classes) if wanted and name not in wanted and str(n) not in wanted]
