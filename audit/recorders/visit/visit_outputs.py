"""The outputs of one visit's stages: each is described and digested, and becomes a row.

A value that cannot be described is a problem noted on the visit, never an exception in the user's pipeline.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Literal

import torch

from audit import values
from audit.recorders.calls.observed_calls import VisitCalls
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.stage_row import Row
from audit.recorders.visit.visit_state import VisitState
from audit.records import Level
from audit.values.base import Facts

#: How much of an output is kept; "verify" asks for what a replay compares.
CaptureOrVerify = Level | Literal["verify"]
#: Kinds of values that may be a picture with its target.
_COMPOSITE = ("sequence", "mapping")


class VisitOutputs(VisitState):
    """Makes a row of each stage output. `level` says how much of each is kept."""

    # What most visits leave as it is.
    #: Whether an output may be kept as a function of an earlier one: where all of them are stored together.
    derives = False
    #: The last picture of which a preview is kept, and the preview.
    _picture: tuple[values.StoredPicture, values.Preview] | None = None
    problem: str | None = None
    #: Follows the calls that the dataset makes, from the first that may be a stage.
    calls: VisitCalls | None = None
    #: Above 0, no call counts: a value is being described.
    paused = 0

    def __init__(self, level: CaptureOrVerify) -> None:
        self._level = level
        self.rows = {}

    @property
    def last_digest(self) -> str | None:
        """The digest of what the pipeline gave, as far as its stages show."""
        return self._digest

    def holds(self, value: Any) -> bool:
        """Return whether this very object is what the last stage gave, and as it gave it."""
        return value is self._value and value is not None and not self._is_changed_in_place()

    def _is_changed_in_place(self) -> bool:
        """Return whether the last output is no longer what was described."""
        value, last = self._value, self._last
        if last is None:
            return False
        if last.version is not None:
            return bool(value._version != last.version)
        # Arrays and pictures do not count their changes.
        if self.follower is None or not self.follower.changes_in_place:
            return False
        return last.facts.digest is not None and self._digest_now(value) != self._digest

    def holds_equal(self, value: Any) -> bool:
        """Return whether the last stage gave something with the same content."""
        return self._digest is not None and self._digest_of(value) == self._digest

    def _digest_of(self, value: Any) -> str | None:
        if value is self._value and self._digest is not None and not self._is_changed_in_place():
            return self._digest
        return self._digest_now(value)

    def _digest_now(self, value: Any) -> str | None:
        begun = perf_counter_ns()
        self.paused += 1
        try:
            return values.digest(value)
        except Exception as error:
            self.problem = self.problem or f"a value could not be digested: {describe_error(error)}"
            return None
        finally:
            self.paused -= 1
            self._overhead += perf_counter_ns() - begun

    def _note(
        self,
        ordinal: int,
        value: Any,
        input_digest: str | None,
        nanoseconds: int,
        params: str | None,
        begun: int = 0,
        *,
        is_target: bool = False,
    ) -> None:
        """Make a row of an output. `begun` is when the clock was read last, if it was just now."""
        begun = begun or perf_counter_ns()
        self.paused += 1
        try:
            level = self._level
            facts = values.observe(value) if level != "verify" else _only_digest(value)
            digest = facts.digest
            is_known = digest is not None and (input_digest is not None or ordinal == 0)
            row = Row(facts, digest != input_digest if is_known else None, params, nanoseconds / 1000)
            # How often a tensor was changed in place; those of inference mode do not count that.
            if isinstance(value, torch.Tensor) and not value.is_inference():
                row.version = value._version
            if level != "verify":
                if facts.kind in _COMPOSITE:
                    row.target = values.describe_target(value)
                if level != "digest" or row.changed is False:
                    self._keep(row, value)
            self.rows[ordinal] = row
            if not is_target:
                self._value, self._digest, self._last = value, digest, row
        except Exception as error:
            self.problem = self.problem or f"an output could not be described: {describe_error(error)}"
        self.paused -= 1
        self._overhead += perf_counter_ns() - begun

    def _keep(self, row: Row, value: Any) -> None:
        """Keep the payload that the level asks for; what did not change is not kept twice."""
        last = self._last
        if (
            row.changed is False
            and last is not None
            and last.facts.digest == row.facts.digest
            and last.facts.mode == row.facts.mode
        ):
            row.preview, row.full, row.shared = last.preview, last.full, True
            return
        if self._level not in ("preview", "full"):
            return
        is_shown = self._is_last_picture(row, value)
        row.preview = self._picture[1] if self._picture is not None and is_shown else values.preview(value)
        if self._level == "full":
            row.full = self._derive_payload(row, value, is_shown) or values.encode(value)
        facts = row.facts
        if facts.kind == "image" and facts.mode == "RGB" and facts.digest is not None and row.preview is not None:
            self._picture = values.StoredPicture(value, facts.digest), row.preview

    def _is_last_picture(self, row: Row, value: Any) -> bool:
        """Return whether a tensor shows the last picture, pixel by pixel."""
        facts = row.facts
        if self._picture is None or facts.dtype != "float32" or type(value) is not torch.Tensor:
            return False
        if facts.min is None or facts.max is None or facts.min < 0 or facts.max > 1:
            return False
        picture = self._picture[0]
        return facts.shape == (3, picture.size[1], picture.size[0]) and picture.is_shown_by(value)

    def _derive_payload(self, row: Row, value: Any, is_shown: bool) -> tuple[str, values.EncodedValue] | None:
        """Return an output as a function of the last picture that is stored; None where it is not one."""
        if not self.derives or self._picture is None or row.facts.dtype not in ("float32", "uint8"):
            return None
        found = self._picture[0].derive(value, is_shown=is_shown)
        return None if found is None else (row.facts.kind, found)

    def _set_last(self, value: Any, row: Row) -> None:
        self._value, self._digest, self._last = value, row.facts.digest, row


def _only_digest(value: Any) -> Facts:
    """Return what a replay compares, without the cost of statistics."""
    digest, size = values.fingerprint(value)
    return Facts(values.kind_of(value).name, digest=digest, bytes=size)
