"""What a stage that works on whole batches leaves of one sample: its row of the batch, described as any stage output."""

from __future__ import annotations

from typing import Any

from audit import values
from audit.recorders.stages.describe import code_digest_of, name_of, parameters_of, qualname_of
from audit.recorders.stages.discover import looks_random
from audit.recorders.visit.stage_row import Row
from audit.records import BATCH_PREFIX, Level, Stage


def describe_batch_stage(target: Any, path: str, name: str | None = None) -> Stage:
    """Return the row of `stages` for a callable that is given whole batches."""
    found = getattr(target, "__wrapped__", target)
    return Stage(
        0,
        f"{BATCH_PREFIX}{path}",
        name or name_of(found),
        qualname_of(found),
        parameters_of(found),
        looks_random(found),
        code_digest_of(found),
    )


def batch_row(value: Any, level: Level, input_digest: str | None, last: Row | None = None) -> Row:
    """Describe one sample's part of a batch.

    `input_digest` is the digest of the sample before the stage, `last` its last stage's row where it is at hand.
    """
    # The time belongs to the batch, not to the sample.
    if last is not None and last.facts.digest is not None and values.digest(value) == last.facts.digest:
        row = Row(last.facts, False, None, None)
        row.preview, row.full, row.shared = last.preview, last.full, True
        return row
    facts = values.observe(value)
    row = Row(facts, None if None in (facts.digest, input_digest) else facts.digest != input_digest, None, None)
    if level in ("preview", "full"):
        row.preview = values.preview(value)
    if level == "full":
        row.full = values.encode(value)
    return row
