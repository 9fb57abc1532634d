"""`clipped`: a stage moved nearly all values to the end of their range, such as a 16-bit picture turned white."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import GRIDS, Context
from audit.checks.shared.files import OpenFile, choose_files, open_files
from audit.picture_formats import open_picture


class Clipped(Check):
    """Compare a stage's output with the one before it, so that a picture that was already white is not reported."""

    description = "A stage moved nearly all values to the end of their range, such as a 16-bit picture turned white."
    options = settings(
        share=Option(0.95, "An output is saturated if its mean is at least this share of the full range."),
        before=Option(0.8, "The stage before must have been below this share of its own range."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        share, before = context.options["share"], context.options["before"]
        # A saturated output has the range 0–255 or 0–1; the output before it has the range of its own dtype.
        saturated = f"((max = 255 AND mean >= 255 * {share}) OR (max = 1 AND mean >= {share} AND min >= 0))"
        emptied = f"(min = 0 AND max > 0 AND zeros > 0 AND zeros >= {share} * list_product(shape))"
        suspects = f"FROM {context.outputs} WHERE stage > 0 AND kind IN {GRIDS} AND ({saturated} OR {emptied})"
        yield from self._find_clipped_by_loader(context)
        if not context.rows(f"SELECT 1 {suspects} LIMIT 1"):
            return
        stages = ", ".join(map(str, sorted(context.stage_numbers)))
        before_it = ", ".join(
            f"lag({column}) OVER visits AS {column}_before"
            for column in ("stage", "mean", "max", "dtype", "zeros", "shape")
        )
        steps = (
            f"SELECT *, {saturated} AS white, {before_it} FROM stage_outputs WHERE run_id = {context.run_literal} "
            f"AND (epoch, index, visit) IN (SELECT (epoch, index, visit) {suspects}) "
            "WINDOW visits AS (PARTITION BY epoch, index, visit ORDER BY stage)"
        )
        # Many more elements than before mean an encoding, such as one-hot, which is mostly zero by design.
        query = (
            "SELECT epoch, index, visit, stage, mean, max, white, stage_before, mean_before, max_before, dtype_before "
            f"FROM ({steps}) WHERE stage > 0 AND stage IN ({stages}) AND kind IN {GRIDS} "
            f"AND CASE WHEN white THEN mean_before < {before} * greatest(max_before, 1e-9) "
            f"ELSE {emptied} AND zeros_before < (1 - {before}) * list_product(shape_before) "
            "AND list_product(shape) <= 4 * list_product(shape_before) END"
        )
        for row in context.offenders_by_cause(query):
            wide = row["dtype_before"] in ("uint16", "int32") and row["max_before"] > 255
            to = "white" if row["white"] else "zero"
            yield Finding(
                f"{context.stage_name(row['stage'])} turned {row['source']} (index {row['index']}) {to}: "
                + (
                    "values of more than 8 bits were cut off at 255"
                    if wide
                    else f"its mean went from {row['mean_before']:.4g} (of at most {row['max_before']:.4g}) "
                    f"to {row['mean']:.4g} (of {row['max']:.4g})"
                )
                + (f". The same happened to {row['others']:,} more." if row["others"] else "."),
                index=row["index"],
                source=row["source"],
                stage=row["stage"],
                value=row["mean"],
                threshold=row["mean_before"],
                sql=f"FROM ({query}) WHERE stage = {row['stage']}"
                if row["others"]
                else context.evidence(
                    "stage_outputs", row["index"], f"stage IN ({row['stage_before']}, {row['stage']})"
                ),
            )

    def _find_clipped_by_loader(self, context: Context) -> Iterable[Finding]:
        """Report white pictures whose files have 16 bits: the loader converted them."""
        if context.facts.root is None:
            return
        white = (
            f"SELECT epoch, index, mean FROM {context.load_outputs} WHERE kind = 'image' AND dtype = 'uint8' "
            f"AND mean >= 255 * {context.options['share']}"
        )
        indices = [row["index"] for row in context.offenders(white)]
        listed = ", ".join(map(str, indices))
        for file, found in open_files(choose_files(context, 0, f"index IN ({listed})") if indices else ()):
            if _is_wide(found):
                yield Finding(
                    f"{context.stage_name(0)} turned {file.source} (index {file.index}) white: its 16 bits were cut "
                    "off at 255.",
                    index=file.index,
                    source=file.source,
                    stage=0,
                    sql=context.evidence("stage_outputs", file.index, "stage = 0"),
                )


def _is_wide(found: OpenFile | OSError) -> bool:
    if isinstance(found, OSError):
        return False
    try:
        with found, open_picture(found) as image:
            return image.mode.startswith("I")
    except Exception:
        return False
