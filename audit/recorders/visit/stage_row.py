"""What one stage of one visit leaves: a row of `stage_outputs`, and its payloads."""

from __future__ import annotations

from audit import values
from audit.recorders.visit.visit_state import RowState
from audit.records import Columns
from audit.values.base import Facts

#: The columns that a row gives, in the order of its values.
OUTPUT_COLUMNS = (
    *("index", "position", "stage", "name", "changed", "params", "microseconds", "payload", "target"),
    *Facts._fields,  # each has the name of its column
)
PAYLOAD_COLUMNS = ("index", "position", "stage", "form", "kind", "encoding", "data")


class Row(RowState):
    """What is known of one stage of one visit."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """The kind of the value, or its class where that is a tv_tensor or a Parameter."""
        mode = self.facts.mode
        is_class = mode is not None and (mode.startswith("tv_tensors.") or mode == "Parameter")
        return str(mode) if is_class else self.facts.kind

    def write(self, index: int, position: int, stage: int, name: str, outputs: Columns, payloads: Columns) -> None:
        """Append it to the tables."""
        facts = self.facts
        level = "full" if self.full is not None else "preview" if self.preview is not None else "none"
        outputs.append(
            OUTPUT_COLUMNS,
            (index, position, stage, name, self.changed, self.params, self.microseconds, level, self.target) + facts,  # noqa: RUF005  (half the time)
        )
        if self.shared or level == "none":
            return
        if self.preview is not None:
            made = self.preview
            payloads.append(
                PAYLOAD_COLUMNS, (index, position, stage, "preview", facts.kind, made.media_type, made.data)
            )
        if self.full is not None:
            kind, exact = self.full
            payloads.append(PAYLOAD_COLUMNS, (index, position, stage, "full", kind, exact.encoding, exact.data))


def make_unseen_row() -> Row:
    """Return a row that says that there was a value, and nothing of it."""
    return Row(values.Facts("other", mode="not seen"), None, None, 0.0)
