"""`telling_words`: one word of a text gives its label away."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import spread_evenly
from audit.checks.shared.hashes import Array
from audit.checks.shared.label_guess import betrayed_class
from audit.class_names import show_class

#: A word names at least this share of a class, and is right at least so often (lower ends of intervals).
_NAMED, _RIGHT = 0.75, 0.9
#: Words, and what stands between spaces: a mark such as `[ad]` or `###` may be no word.
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class LabelledText:
    """The words of one text, and its label."""

    index: int
    label: int
    words: set[str]


class TellingWords(Check):
    """Name the class of a text by one word that it has, learned on one half of the texts and tried on the other."""

    description = "No single word of the texts names nearly all samples of one class and hardly any other."
    question = "Does one word name a class?"
    statistic = (
        "the share of the class that has the word, and of the texts with the word that are of the class, learned on "
        "one half and tested on the other; Wilson's intervals"
    )
    assumes = "the halves are independent"
    severity = "warning"
    needs = ("labels",)
    options = settings(
        samples=Option(60, "Check only if there are at least this many texts."),
        texts=Option(5_000, "Read at most this many texts, evenly chosen; 0 reads all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if not any(row["stage"] == 0 and row["kind"] == "text" for row in context.profile):
            raise Skip("the samples are not texts")
        rows = self._texts(context)
        if len(rows) < context.options["samples"]:
            raise Skip(f"{len(rows)} labelled texts were stored; at least {context.options['samples']} are needed")
        labels = np.array([row.label for row in rows])
        if len(np.unique(labels)) < 2:
            raise Skip("all samples have one label")
        halves = np.array([row.index * 2654435761 % 2**32 < 2**31 for row in rows])
        found = sorted(_find_words(rows, labels, halves), key=lambda one: (-one[2], one[0]))
        if not found:
            return
        word, label, hits, named, samples = found[0]
        shown = show_class(context.run.classes, label)
        others = f" The same holds for {len(found) - 1:,} other words." if len(found) > 1 else ""
        yield Finding(
            f"The word {word!r} alone shows the class {shown}: {hits:,} of its {samples:,} samples have the word, and {hits:,} of the {named:,} samples with "
            f"the word are of that class. A model may learn the word instead of the text.{others}",
            stage=0,
            value=hits / samples,
            threshold=_NAMED,
            sql=f"SELECT label, index FROM {context.items} ORDER BY ALL",
        )

    def _texts(self, context: Context) -> list[LabelledText]:
        """Return the index, label and words of labelled texts: of the excerpts, which are there at every level of capture but `digest`."""
        usable = "status = 'ok' AND label IS NOT NULL"
        total = context.value(f"SELECT count(*) FROM {context.items} WHERE {usable}")
        most = context.options["texts"]
        chosen = f" AND {spread_evenly(most, total)}" if most and total > most else ""
        query = (
            f"SELECT index, label, data FROM (FROM {context.items} WHERE {usable}{chosen}) JOIN payloads USING (run_id, epoch, index, visit) "
            "WHERE stage = 0 AND payloads.kind = 'text' AND form = 'preview'"
        )
        return [
            LabelledText(row["index"], row["label"], words_of(row["data"].decode("utf-8", "replace")))
            for row in context.rows(query)
        ]


def words_of(text: str) -> set[str]:
    """Return the words of a text in lower case, and what stands between its spaces."""
    lower = text.lower()
    return {*_WORDS.findall(lower), *lower.split()}


def _find_words(rows: list[LabelledText], labels: Array, halves: Array) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield each word that names a class: the word, the label, hits, names and samples."""
    sizes = Counter(row.label for row in rows)
    counts = Counter(word for row in rows for word in row.words)
    in_class = Counter((word, row.label) for row in rows for word in row.words)
    # Few words are so frequent in one class alone; only these are tried on the other half.
    likely = {
        word for (word, label), n in in_class.items() if n >= _NAMED * sizes[label] and n >= _RIGHT * counts[word]
    }
    for word in sorted(likely):
        # Without the word nothing is said.
        has = np.array([0 if word in row.words else -1 for row in rows])
        found = betrayed_class(has, labels, halves, _NAMED, _RIGHT)
        if found is not None:
            yield (word, *found)
