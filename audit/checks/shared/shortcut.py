"""What the searches of `shortcuts` share: the samples with their labels, and what a finding is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checks.base import Finding
from audit.checks.context import Context
from audit.checks.shared.hashes import Array
from audit.class_names import show_class

#: For each property its values, one for each sample, and words for messages.
Facts = dict[str, tuple[list[Any], str]]
#: The split and the index of a sample.
Sample = tuple[str | None, int]
#: A property in words, and the finding about it.
Shortcut = tuple[str, Finding]

#: A property betrays one class if it names at least this share of its samples, and is right at least so often (intervals).
NAMED, RIGHT = 0.75, 0.85

#: The name of a file without its digits and folders; NULL if it names the class, which a model does not see.
_NAME = (
    "CASE WHEN contains(lower(s.source[len(s.source) - strpos(reverse(s.source), '/') + 2:]), lower(coalesce(s.label_name, '?'))) "
    "THEN NULL ELSE regexp_replace(regexp_extract(s.source, '([^/]*)$', 1), '[0-9]+', '#', 'g') END"
)
#: The properties: name, SQL expression over stage 0 and samples, and words for messages.
FACTS = {
    "brightness": ("o.mean", "the mean brightness"),
    "contrast": ("o.std", "the contrast"),
    "width": ("o.shape[2]", "the width"),
    "height": ("o.shape[1]", "the height"),
    "aspect": ("round(o.shape[2] / nullif(o.shape[1], 0), 3)", "the aspect ratio"),
    "mode": ("o.mode", "the colour mode"),
    "format": ("lower(regexp_extract(s.source, '\\.([A-Za-z0-9]{1,5})$', 1))", "the file format"),
    "compression": ("s.source_bytes / nullif(o.shape[1] * o.shape[2], 0)", "the bytes per pixel"),
    "file_name": (_NAME, "the pattern of the name"),
}


@dataclass(frozen=True)
class LabelledSamples:
    """The samples of a run that shortcuts are looked for in."""

    context: Context
    #: The query that lists them, with what was recorded of each file.
    query: str
    label_of: dict[Sample, int]

    @property
    def required_samples(self) -> int:
        """Return how many samples a search needs."""
        return int(self.context.options["samples"])

    def labels(self, samples: list[Sample]) -> Array:
        """Return the label of each sample."""
        return np.array([self.label_of[sample] for sample in samples])

    def show_class(self, label: int) -> str:
        """Return the name of a class, for messages."""
        return show_class(self.context.run.classes, label)

    def evidence(self, name: str) -> str:
        """Return a query that shows a property, by the name of its column if it is recorded."""
        if name in ("mode", "format", "file_name"):
            return f"SELECT label, {name}, count(*) FROM ({self.query}) GROUP BY ALL ORDER BY ALL"
        if name in FACTS:
            return (
                f"SELECT label, avg({name}), min({name}), max({name}) FROM ({self.query}) GROUP BY label ORDER BY label"
            )
        return f"SELECT label, index FROM ({self.query}) ORDER BY ALL"


def halves_of(indices: list[int]) -> Array:
    """Return to which of two halves each sample belongs, whatever the order of the labels."""
    halves: Array = np.array(indices, np.uint64) * np.uint64(2654435761) % np.uint64(2**32) < 2**31
    return halves
