"""`class_names`: two classes that are one, or one number that is two classes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context

#: What may be written in another way in the same name.
_SEPARATORS = re.compile(r"[\s_\-.]+")


class ClassNames(Check):
    """Compare the names of the classes without case, spaces, hyphens and accents, and the names of each label."""

    description = "No two classes have names that differ only in case, spaces, hyphens, underscores or the form of accents, and every label number has the same name in all splits."
    question = "Are two classes one, or is one label two classes?"
    rule = (
        "names without case, spaces, hyphens and underscores are compared; the names that each label has in each split"
    )
    severity = "warning"

    def run(self, context: Context) -> Iterable[Finding]:
        yield from _find_renumbered(context)
        names = context.run.classes
        if not names:
            raise Skip("the classes have no names")
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(_simplify(name), []).append(name)
        for plain, group in alike.items():
            if len(group) > 1 and plain:
                listed = " and ".join(repr(name) for name in group)
                query = (
                    f"SELECT label, label_name, count(*) AS samples FROM {context.items} "
                    "WHERE label_name IS NOT NULL GROUP BY ALL ORDER BY label"
                )
                yield Finding(
                    f"The classes {listed} have almost the same name: are they one class? A model learns to tell them apart by chance.",
                    value=len(group),
                    threshold=1,
                    sql=query,
                )


def _find_renumbered(context: Context) -> Iterable[Finding]:
    """Report labels that mean another class in another split: each dataset numbers the folders that it finds."""
    query = (
        f"SELECT label, split, min(label_name) AS name, max(label_name) AS other FROM {context.items} "
        "WHERE label IS NOT NULL AND label_name IS NOT NULL GROUP BY label, split ORDER BY label, split"
    )
    names: dict[int, dict[str, str | None]] = {}
    for row in context.rows(query):
        for name in (row["name"], row["other"]):
            names.setdefault(row["label"], {}).setdefault(name, row["split"])
    changed = {label: meant for label, meant in names.items() if len(meant) > 1}
    if changed:
        label, meant = next(iter(changed.items()))
        (one, here), (two, there) = list(meant.items())[:2]
        where = "" if here == there else f" in the split {here}, and in {there}"
        yield Finding(
            f"The label {label} means {one!r}{where or ' and'} {two!r}"
            + (f"; {len(changed) - 1:,} other labels have several meanings too" if len(changed) > 1 else "")
            + ". Each dataset numbers the classes that it has: give both the same list of classes. Predictions were graded against the wrong ones.",
            value=float(len(changed)),
            threshold=0,
            sql=query,
            severity="error",
        )


def _simplify(name: str) -> str:
    return _SEPARATORS.sub("", unicodedata.normalize("NFKC", name).casefold())
