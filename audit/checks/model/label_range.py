"""`label_range`: labels that no class or no model output corresponds to."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.renumbered_labels import why_not_judged
from audit.errors import UsageError

#: A negative number may stand for no label if at least this share of the samples has it.
_FEWEST_IGNORED = 0.05


class LabelRange(Check):
    """Check that labels are between 0 and the number of classes, and that no sample lacks one if most have one."""

    description = "Labels below 0, or not below the number of classes or model outputs; samples without one among many."
    needs = ("labels",)
    options = settings(ignore=Option([], "Label numbers outside the range that are intended, such as -100."))

    def run(self, context: Context) -> Iterable[Finding]:
        if reason := why_not_judged(context):
            context.note(f"the labels were not compared with the classes: {reason}")
        else:
            yield from self._find_strange(context)
        yield from _find_unlabelled(context)

    def _find_strange(self, context: Context) -> Iterable[Finding]:
        """Report labels that no class or no output corresponds to."""
        classes = len(context.run.classes or ()) or None
        outputs = None
        if context.facts.counts.get("predictions"):
            outputs = context.value(f"SELECT max(len(probabilities)) FROM {context.predictions}")
        limits = [limit for limit in (classes, outputs) if limit]
        if strange := [label for label in context.options["ignore"] if type(label) is not int]:
            raise UsageError(f"`ignore` of the check label_range holds {strange[0]!r}.", hint="Give label numbers.")
        ignored = ", ".join(map(str, [*context.options["ignore"], *_find_ignored(context, limits)])) or "NULL"
        bad = "label < 0" + (f" OR label >= {min(limits)}" if limits else "")
        query = (
            f"SELECT index, source, label FROM {context.items} "
            f"WHERE ({bad}) AND coalesce(label NOT IN ({ignored}), true)"
        )
        for row in context.offenders_by_cause(query, "label", "false"):
            high = f" to {min(limits) - 1}" if limits else ""
            which = f" The same holds for {row['others']:,} more." if row["others"] else ""
            yield Finding(
                f"{row['source']} (index {row['index']}) has the label {row['label']}; labels go from 0{high}.{which}",
                index=row["index"],
                source=row["source"],
                value=row["label"],
                threshold=min(limits) - 1 if limits else 0,
                sql=context.evidence("samples", row["index"]),
            )


def _find_ignored(context: Context, limits: list[int]) -> list[int]:
    """Return the one negative number that stands for no label, if it does: many samples have it, and each end of the classes is there.

    Where labels are one too low, the last class is missing.
    """
    row = context.rows(
        "SELECT count(DISTINCT label) FILTER (label < 0) AS numbers, min(label) AS number, count(*) FILTER (label < 0) AS ignored, "
        "count(*) AS total, min(label) FILTER (label >= 0) AS low, max(label) AS high "
        f"FROM {context.items} WHERE label IS NOT NULL"
    )[0]
    if row["numbers"] != 1 or row["ignored"] < _FEWEST_IGNORED * row["total"]:
        return []
    if not limits or (row["low"], row["high"]) != (0, min(limits) - 1):
        return []
    context.note(f"{row['ignored']:,} samples have the label {row['number']}, and are taken to have none")
    return [row["number"]]


def _find_unlabelled(context: Context) -> Iterable[Finding]:
    row = context.rows(
        f"SELECT count(*) AS samples, count(label) AS labelled FROM {context.items} WHERE status = 'ok'"
    )[0]
    if not row["labelled"] or row["samples"] - row["labelled"] > 0.05 * row["samples"]:
        return
    query = f"SELECT index, source FROM {context.items} WHERE label IS NULL AND status = 'ok'"
    for found in context.offenders(query):
        yield Finding(
            f"{found['source']} (index {found['index']}) has no label, while {row['labelled']:,} samples have one.",
            index=found["index"],
            source=found["source"],
            sql=context.evidence("samples", found["index"]),
        )
