"""`conflicting_labels`: the same content under different labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from audit.checks.base import Check, Finding
from audit.checks.context import MOST_WITH_ALLOW_LIST, Context
from audit.checks.shared.content import select_alike
from audit.store.sql_literal import literal

#: So many contents that have the same labels have one cause, and are one finding.
_MANY = 20
_SEVERAL = "min(label) <> max(label)"


class LabelledContent(TypedDict):
    """A sample whose content has several labels, and the first sample with that content."""

    index: int
    source: str | None
    split: str | None
    label: int
    label_name: str
    content: str
    first: int
    first_source: str | None
    #: All labels of the content.
    labels: list[str]


class ConflictingLabels(Check):
    """Report samples that share content but not labels: at least one of the labels is wrong."""

    description = "Samples with the same content but different labels."
    needs = ("labels",)

    def run(self, context: Context) -> Iterable[Finding]:
        labelled = (
            "SELECT * REPLACE (coalesce(label_name, label::VARCHAR) AS label_name) "
            f"FROM {select_alike(context, _SEVERAL)} WHERE label IS NOT NULL"
        )
        # Only so many rows are listed; the labels of their content are those of all rows.
        query = (
            "SELECT index, source, split, label, label_name, content, first, first_source, labels "
            f"FROM ({labelled}) JOIN (SELECT content, list(DISTINCT label_name) AS labels FROM ({labelled}) "
            "GROUP BY content) USING (content)"
        )
        rows = context.typed_offenders(LabelledContent, query)
        several = len({row["split"] for row in context.facts.epochs}) > 1
        labels = {row["content"]: set(row["labels"]) for row in rows}
        yield from _find_mixed_classes(context, rows, labels)
        for row in rows:
            if row["content"] not in labels:
                continue
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


def _find_mixed_classes(
    context: Context, rows: list[LabelledContent], labels: dict[str, set[str]]
) -> Iterable[Finding]:
    """Report classes that have the same content as one finding each, and remove that content from `labels`.

    Never if the configuration has an allow-list: it names samples.
    """
    contents: dict[tuple[str, ...], list[str]] = {}
    for content, names in labels.items():
        contents.setdefault(tuple(sorted(names)), []).append(content)
    for classes, shared in contents.items():
        if len(shared) < _MANY or context.most >= MOST_WITH_ALLOW_LIST:
            continue
        first = next(row for row in rows if row["content"] in set(shared))
        yield Finding(
            f"{len(shared):,} contents are labelled {', '.join(classes[:-1])} and also {classes[-1]}, such as {first['source']} (index {first['index']}): "
            "are these classes mixed?",
            index=first["index"],
            source=first["source"],
            stage=0,
            value=len(shared),
            sql=f"SELECT index, source, label FROM samples WHERE run_id = {context.run_literal} "
            f"AND label_name IN ({', '.join(map(literal, classes))})",
        )
        for content in shared:
            del labels[content]
