"""`blank`: outputs whose values are all equal, and the stage that made them so."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import GRIDS, Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.stored_values import channel_axis, stored_values

#: A stage that leaves this share of the rows or columns without content in all samples has lost a part of the pictures.
_LOST_SHARE = 0.1
#: Of fewer samples a channel may have one value by chance.
_FEWEST = 16
#: The greatest values of fractions and of whole numbers of 8 and 16 bits.
_WHITE = (1.0, 255.0, 65_535.0)


class Blank(Check):
    """Report constant outputs with the first stage where they are constant."""

    description = "Pictures and tensors whose values are all equal, texts that are empty, and channels, rows or columns that are so in every sample; the stage that made them so is reported."
    question = "Does a stage empty a part of the pictures?"
    statistic = (
        "none: in each of at least 16 samples, a tenth of the rows or columns has a single value, and before the stage "
        "they had several values in half of the samples"
    )
    assumes = "the stage keeps the size"
    options = settings(
        elements=Option(16, "Check only outputs with at least this many values."),
        samples=Option(32, "Compare the channels of at most this many samples, evenly chosen."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        elements = f"list_product(shape) >= {context.options['elements']}"
        if any(row["constant"] for row in context.profile if row["kind"] in ("image", "tensor", "array")):
            yield from _find_empty(
                context, "blank", "every value is {:.4g}", "min = max", f"kind IN {GRIDS} AND {elements}"
            )
        if any(row["kind"] in ("text", "tokens") for row in context.profile):
            texts = "kind IN ('text', 'tokens')"
            yield from _find_empty(context, "empty", "the text has no characters", "shape[1] = 0", texts)
        yield from self._channels(context)

    def _channels(self, context: Context) -> Iterable[Finding]:
        """Report channels, or rows and columns, that have one value in all samples, while others vary: the first stage where it is so."""
        if not context.facts.counts.get("payloads"):
            return
        seen: dict[int, _StageRange] = {}
        visits = set()
        for visit, stage, value in stored_values(context, max(_FEWEST, context.options["samples"])):
            visits.add(visit)
            if value is not None and value.ndim in (2, 3) and value.size:
                seen.setdefault(stage, _StageRange()).add(value)
        before: _StageRange | None = None
        for stage, now in sorted(seen.items()):
            finding = self._channel(context, stage, now) or (
                # A stage that leaves some samples as they are empties a part of the others at random.
                self._lines(context, stage, before, now) if before is not None and now.count == len(visits) else None
            )
            if finding:
                yield finding
                return
            before = now

    def _channel(self, context: Context, stage: int, now: _StageRange) -> Finding | None:
        if now.lowest is None or now.highest is None or now.channels < _FEWEST:
            return None
        constant = now.lowest == now.highest
        if not constant.any() or constant.all():
            return None
        channel = int(np.flatnonzero(constant)[0])
        return Finding(
            f"Channel {channel} of {len(constant)} is {now.lowest[channel]:.4g} everywhere in all {now.channels} samples that were "
            f"compared, from {context.stage_name(stage)} on.",
            stage=stage,
            value=float(now.lowest[channel]),
            sql=f"FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = {stage}",
            severity="warning",
        )

    def _lines(self, context: Context, stage: int, before: _StageRange, now: _StageRange) -> Finding | None:
        """Report rows or columns that a stage emptied in all samples: a picture of the same size lost its part."""
        if before.size is None or before.size != now.size or min(before.count, now.count) < _FEWEST:
            return None
        for axis, words in enumerate(("rows", "columns")):
            emptied = (now.empty[axis] == now.count) & (before.empty[axis] < 0.5 * before.count)
            if emptied.mean() >= _LOST_SHARE:
                return Finding(
                    f"{context.stage_name(stage)} left {emptied.sum()} of {len(emptied)} {words} without content, the same ones in all {now.count} samples "
                    f"that were compared ({words} {np.flatnonzero(emptied)[0]} to {np.flatnonzero(emptied)[-1]}): each has one value, and had many before.",
                    stage=stage,
                    value=float(emptied.mean()),
                    threshold=_LOST_SHARE,
                    sql=f"FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = {stage}",
                    severity="warning",
                )
        return None


def _find_empty(context: Context, state: str, why: str, empty: str, where: str) -> Iterable[Finding]:
    """Report outputs without content, each with the first stage where it has none; many that one stage made so are one finding.

    `empty` and `where` are SQL conditions: what an output without content is, and which outputs are looked at.
    """
    query = (
        f"SELECT index, epoch, visit, min(stage) AS stage, arg_min(coalesce(min, 0), stage) AS value FROM {context.outputs} "
        f"WHERE {empty} AND {where} GROUP BY epoch, index, visit"
    )
    for row in context.offenders_by_cause(query):
        stage, others = row["stage"], row["others"]
        made = f"was {state} when it was loaded" if stage == 0 else f"was made {state} by {context.stage_name(stage)}"
        yield Finding(
            f"{row['source']} (index {row['index']}) {made}: {why.format(row['value'])}."
            + (f" The same holds for {others:,} more." if others else ""),
            index=row["index"],
            source=row["source"],
            stage=stage,
            value=row["value"],
            sql=f"FROM ({query}) WHERE stage = {stage}"
            if others
            else context.evidence("stage_outputs", row["index"], empty),
            # A stage that cuts off what is too bright makes some pictures white all over.
            causes=("clipped",) if stage and row["value"] in _WHITE else (),
        )


class _StageRange:
    """What the stored outputs of one stage have in common: the range of each channel, and rows and columns of one value."""

    def __init__(self) -> None:
        self.count = self.channels = 0
        self.size: tuple[int, int] | None = None
        self.lowest: Array | None = None
        self.highest: Array | None = None
        self.empty: list[Array] = []

    def add(self, value: Array) -> None:
        """Count one output."""
        axis = channel_axis(value.shape)
        planes = value[None] if value.ndim == 2 else value if axis is None else np.moveaxis(value, axis, 0)
        # The fourth channel of a picture is its alpha, which is mostly the same everywhere.
        if axis is not None and len(planes) in (2, 3):
            low, high = planes.min(axis=(1, 2)), planes.max(axis=(1, 2))
            if self.lowest is not None and self.highest is not None and len(low) == len(self.lowest):
                low, high = np.minimum(low, self.lowest), np.maximum(high, self.highest)
            self.lowest, self.highest = low, high
            self.channels += 1
        if axis is None and value.ndim == 3:
            return
        if self.size is None:
            self.size = planes.shape[1], planes.shape[2]
            self.empty = [np.zeros(length, np.int64) for length in self.size]
        if self.size == planes.shape[1:]:
            self.count += 1
            for counts, across in zip(self.empty, (2, 1), strict=True):
                counts += (planes.max(axis=across) == planes.min(axis=across)).all(axis=0)
