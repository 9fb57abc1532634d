"""`blank`: outputs whose values are all equal, and the stage that made them so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import GRIDS, Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.stored_values import channel_axis, stored_values

#: Of fewer samples a channel may have one value by chance.
_FEWEST = 16


class Blank(Check):
    """Report constant outputs with the first stage where they are constant."""

    description = "Pictures and tensors whose values are all equal, and channels that are so in every sample; the stage that made them so is reported."
    options = settings(
        elements=Option(16, "Check only outputs with at least this many values."),
        samples=Option(32, "Compare the channels of at most this many samples, evenly chosen."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        yield from self._outputs(context)
        yield from self._channels(context)

    def _outputs(self, context: Context) -> Iterable[Finding]:
        if not any(row["constant"] for row in context.profile if row["kind"] in ("image", "tensor", "array")):
            return
        query = (
            "SELECT index, epoch, visit, min(stage) AS stage, arg_min(min, stage) AS value "
            f"FROM {context.outputs} WHERE min = max AND kind IN {GRIDS} "
            f"AND list_product(shape) >= {context.options['elements']} GROUP BY epoch, index, visit"
        )
        for row in context.offenders(query):
            made = "was blank when it was loaded" if row["stage"] == 0 else (
                f"was made blank by {context.stage_name(row['stage'])}"
            )  # fmt: skip
            yield Finding(
                f"{row['source']} (index {row['index']}) {made}: every value is {row['value']:.4g}.",
                index=row["index"],
                source=row["source"],
                stage=row["stage"],
                value=row["value"],
                sql=context.evidence("stage_outputs", row["index"], "min = max"),
            )

    def _channels(self, context: Context) -> Iterable[Finding]:
        """Report a channel that has one value in all samples, while another varies: the first stage where it is so."""
        counts = context.facts.counts
        if not counts.get("payloads"):
            return
        lowest: dict[int, Array] = {}
        highest: dict[int, Array] = {}
        seen: Counter[int] = Counter()
        for _, stage, value in stored_values(context, max(_FEWEST, context.options["samples"])):
            axis = None if value is None else channel_axis(value.shape)
            # The fourth channel of a picture is its alpha, which is mostly the same everywhere.
            if value is None or axis is None or value.shape[axis] not in (2, 3) or not value.size:
                continue
            seen[stage] += 1
            flat = np.moveaxis(value, axis, 0).reshape(value.shape[axis], -1)
            low, high = flat.min(axis=1), flat.max(axis=1)
            if stage in lowest and lowest[stage].shape == low.shape:
                low, high = np.minimum(low, lowest[stage]), np.maximum(high, highest[stage])
            lowest[stage], highest[stage] = low, high
        for stage in sorted(lowest):
            constant = lowest[stage] == highest[stage]
            if seen[stage] >= _FEWEST and constant.any() and not constant.all():
                channel = int(np.flatnonzero(constant)[0])
                yield Finding(
                    f"Channel {channel} of {len(constant)} is {lowest[stage][channel]:.4g} everywhere in all {seen[stage]} samples that were "
                    f"compared, from {context.stage_name(stage)} on.",
                    stage=stage,
                    value=float(lowest[stage][channel]),
                    sql=f"FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = {stage}",
                    severity="warning",
                )
                return
