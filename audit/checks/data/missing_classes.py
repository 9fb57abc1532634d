"""`missing_classes`: classes without a usable sample."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.class_names import show_class

#: A class that is missing in a split is a finding if chance leaves out any class of any split less often than this.
_CHANCE_LIMIT = 0.01
#: More classes than this that no sample has, have one cause, and are one finding.
_MANY = 5


class MissingClasses(Check):
    """Compare the labels with the run's class names, and the splits with each other."""

    description = (
        "Classes that no usable sample has, in the whole run or in one of its splits; a note where chance alone leaves a "
        "class out of a split."
    )
    question = "Does a split lack a class?"
    statistic = (
        "the probability that none of the class's samples is drawn into the split, times classes and splits; above 1 % "
        "it is a note"
    )
    assumes = "a random split"
    needs = ("labels",)
    options = settings(may_miss=Option([], "Classes that may have no sample."))

    def run(self, context: Context) -> Iterable[Finding]:
        if context.run.recipe.get("limit"):
            raise Skip("only the first samples were recorded (--limit)")
        classes = context.run.classes or []
        excused = {str(name) for name in context.options["may_miss"]} | set(_list_excluded(context, classes))
        usable = "status = 'ok' AND label IS NOT NULL"
        query = (
            "SELECT split, label, count(*) AS samples, min(label_name) AS name, max(label_name) AS other "
            f"FROM {context.items} WHERE {usable} GROUP BY split, label ORDER BY split, label"
        )
        rows = context.rows(query)
        names = {(row["label"], name) for row in rows for name in (row["name"], row["other"]) if name is not None}
        if len(names) > len({label for label, _ in names}):
            raise Skip(
                "a label number has several names, so that it is not known which class is missing; see class_names"
            )
        present = {row["label"] for row in rows}
        known = sorted(present | set(range(len(classes))))
        splits = sorted({row["split"] for row in rows}, key=str)
        counts = {(row["split"], row["label"]): row["samples"] for row in rows}
        absent = [label for label in known if label not in present and show_class(classes, label) not in excused]
        if len(absent) > _MANY:
            listed = ", ".join(show_class(classes, label) for label in absent[:_MANY])
            yield Finding(
                f"No usable sample has {len(absent):,} of the {len(known):,} classes, such as {listed}: were most samples left out?",
                value=len(present),
                threshold=len(known),
                sql=query,
            )
        for label in known:
            name = show_class(classes, label)
            if name in excused:
                continue
            missing = [split for split in splits if (split, label) not in counts]
            if label not in present and len(absent) <= _MANY:
                yield Finding(
                    f"No usable sample has the class {name} (label {label}).", value=0, threshold=1, sql=query
                )
            elif label in present and missing and len(splits) > 1:
                listed = ", ".join(str(split) for split in missing)
                chance = max(_chance_to_miss(counts, split, label) for split in missing) * len(known) * len(splits)
                yield Finding(
                    f"The class {name} (label {label}) is missing in the split {listed}.",
                    value=0,
                    threshold=1,
                    sql=query,
                    severity="info" if chance > _CHANCE_LIMIT else None,
                )


def _chance_to_miss(counts: dict[tuple[str, int], int], split: str, label: int) -> float:
    """Return the probability that none of a class's samples lies in a split of this size, if all are drawn at random."""
    inside = sum(count for (where, _), count in counts.items() if where == split)
    samples = sum(count for (_, what), count in counts.items() if what == label)
    return float((1 - inside / sum(counts.values())) ** samples)


def _list_excluded(context: Context, classes: list[str]) -> list[str]:
    """Return the classes that the configuration does not look at."""
    wanted = context.narrowing.classes
    return [name for n, name in enumerate(classes) if wanted and name not in wanted and str(n) not in wanted]
