"""`class_names`: two classes that are one, because somebody wrote the name in another way."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context

#: What may be written in another way in the same name.
_BETWEEN = re.compile(r"[\s_\-.]+")


class ClassNames(Check):
    """Compare the names of the classes without case, spaces, hyphens and accents."""

    description = (
        "No two classes have names that differ only in case, spaces, hyphens, underscores or the form of accents."
    )
    severity = "warning"

    def run(self, context: Context) -> Iterable[Finding]:
        names = context.run.classes
        if not names:
            raise Skip("the classes have no names")
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(_plain(name), []).append(name)
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


def _plain(name: str) -> str:
    return _BETWEEN.sub("", unicodedata.normalize("NFKC", name).casefold())
