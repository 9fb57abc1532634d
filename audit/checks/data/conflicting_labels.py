"""`conflicting_labels`: the same content under different labels."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding
from audit.checks.context import Context
from audit.checks.shared.content import select_alike

_SEVERAL = "min(label) <> max(label)"


class ConflictingLabels(Check):
    """Report samples that share content but not labels: at least one of the labels is wrong."""

    description = "Samples with the same content but different labels."
    needs = ("labels",)

    def run(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT * REPLACE (coalesce(label_name, label::VARCHAR) AS label_name) "
            f"FROM {select_alike(context, _SEVERAL)} WHERE label IS NOT NULL"
        )
        rows = context.offenders(query)
        several = len({row["split"] for row in context.facts.epochs}) > 1
        labels: dict[str, set[str]] = {}
        for row in rows:
            labels.setdefault(row["content"], set()).add(row["label_name"])
        for row in rows:
            others = ", ".join(sorted(labels[row["content"]] - {row["label_name"]}))
            beside = "" if row["first_source"] == row["source"] else f" as {row['first_source']}"
            where = f", split {row['split']}" if several and row["split"] is not None else ""
            yield Finding(
                f"{row['source']} (index {row['index']}{where}) is labelled {row['label_name']}; "
                f"the same content{beside} is also labelled {others}.",
                index=row["index"],
                source=row["source"],
                stage=0,
                value=row["label"],
                sql=f"SELECT index, source, label FROM samples WHERE run_id = {context.run_literal} "
                f"AND index IN ({row['first']}, {row['index']})",
            )
