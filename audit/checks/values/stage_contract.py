"""`stage_contract`: each stage's outputs have one kind, dtype, shape and range, declared or learned from the run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import GRIDS, Context
from audit.config import Settings
from audit.errors import UsageError
from audit.records import Stage, is_batch_stage
from audit.store.sql_literal import literal

_KEYS = {"kind": str, "dtype": str, "mode": str, "shape": list, "min": (int, float), "max": (int, float)}


class StageContract(Check):
    """Compare outputs with declared rules, or with rules that nearly all visits of the run meet."""

    description = (
        "Kind, dtype, shape and range of each stage are as declared; without a declaration, "
        "outputs that differ from nearly all others of the stage are found."
    )
    follows = ("pipeline_changed",)
    options = settings(
        contract=Option({}, "For each stage: kind, dtype, mode, shape (-1 for any length), min, max."),
        common=Option(0.9, "Learn a rule if at least this share of the visits meets it."),
        range_factor=Option(4.0, "Values may exceed a learned range by this many times its width."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        declared: Mapping[str, Any] = context.options["contract"]
        for name, rules in declared.items():
            conditions = _conditions(name, rules)
            stages = _stages_of(context, name)
            for stage in stages:
                yield from _find_offending(context, stage.stage, conditions, "the contract says")
            if not stages and context.narrowing.pipelines:
                yield Finding(
                    f"The contract names the stage {name}, which this run of the same pipeline does not have.",
                    sql=f"SELECT stage, path, name FROM stages WHERE run_id = {context.run_literal} ORDER BY stage",
                )
            elif not stages:
                context.note(f"the run has no stage {name}, so its contract was not applied")
        learned = [number for number in sorted(context.stage_numbers) if not _covers(context, declared, number)]
        for number in learned:
            yield from _find_offending(context, number, self._learn(context, number), "other outputs of the stage have")

    def _learn(self, context: Context, number: int) -> list[tuple[str, str, float | None]]:
        """Return each rule as (SQL condition, words for messages, bound)."""
        rows = [row for row in context.profile if row["stage"] == number]
        total = sum(row["visits"] for row in rows)
        needed = context.options["common"] * total
        conditions: list[tuple[str, str, float | None]] = []
        if total < 10:
            return conditions
        # How far a collate function pads a sample depends on the others of its batch.
        is_padded = any(stage.stage == number and is_batch_stage(stage.path) for stage in context.facts.stages)
        last = number in context.last_stages and number > 0 and not is_padded
        for column in ("kind", "dtype") if number else ("kind",):
            counted: dict[Any, int] = {}
            for row in rows:
                counted[row[column]] = counted.get(row[column], 0) + row["visits"]
            best = max(counted, key=lambda key: counted[key])
            if len(counted) > 1 and counted[best] >= needed:
                conditions.append((f"{column} IS NOT DISTINCT FROM {literal(best)}", f"{column} {best}", None))
        if last and (shape := self._common_shape(context, number, needed)) is not None:
            conditions.append((f"shape IS NOT DISTINCT FROM {shape}::BIGINT[]", f"shape {_times(shape)}", None))
        if number and any(row["kind"] in ("tensor", "array") for row in rows):
            conditions += self._common_range(context, number)
        return conditions

    def _common_shape(self, context: Context, number: int, needed: float) -> list[int] | None:
        shapes = context.rows(
            f"SELECT shape, count(*) AS visits FROM {context.outputs} WHERE stage = {number} AND kind IN {GRIDS} "
            "GROUP BY shape ORDER BY visits DESC LIMIT 2"
        )
        if len(shapes) < 2 or shapes[0]["visits"] < needed or not shapes[0]["shape"]:
            return None
        found: list[int] = shapes[0]["shape"]
        return found

    def _common_range(self, context: Context, number: int) -> list[tuple[str, str, float | None]]:
        query = (
            "SELECT stage, approx_quantile(min, 0.05) AS low, approx_quantile(max, 0.95) AS high "
            f"FROM {context.outputs} WHERE kind IN ('tensor', 'array') GROUP BY stage"
        )
        row = next((row for row in context.query_once(query) if row["stage"] == number), None)
        if row is None or row["low"] is None or row["high"] is None:
            return []
        slack = context.options["range_factor"] * max(row["high"] - row["low"], 1e-6)
        low, high = row["low"] - slack, row["high"] + slack
        whole = [r for r in context.profile if r["stage"] == number]
        conditions: list[tuple[str, str, float | None]] = []
        if min(r["low"] for r in whole if r["low"] is not None) < low:
            conditions.append((f"min >= {low!r}", f"minimum about {row['low']:.4g}", low))
        if max(r["high"] for r in whole if r["high"] is not None) > high:
            conditions.append((f"max <= {high!r}", f"maximum about {row['high']:.4g}", high))
        return conditions


def _covers(context: Context, declared: Settings, number: int) -> bool:
    return any(stage.stage == number for name in declared for stage in _stages_of(context, name))


def _stages_of(context: Context, name: str) -> list[Stage]:
    """Return the stages of that name; none if the run is of another pipeline. Raise UsageError for a misspelled name."""
    stages = context.facts.stages
    names = [stage.name for stage in stages]
    known = {*names, *(stage.path for stage in stages), *(str(stage.stage) for stage in stages)}
    if name not in known and not difflib.get_close_matches(name, names, n=1, cutoff=0.75):
        return []
    return context.stages_called(name)


def _conditions(name: str, rules: Any) -> list[tuple[str, str, float | None]]:
    if not isinstance(rules, dict):
        raise UsageError(
            f"The contract of the stage {name} must be a table, got {rules!r}.", hint="Write it as a table."
        )
    conditions: list[tuple[str, str, float | None]] = []
    for key, value in rules.items():
        if key not in _KEYS or not isinstance(value, _KEYS[key]) or isinstance(value, bool):  # type: ignore[arg-type]
            raise UsageError(
                f"The contract of the stage {name} has {key} = {value!r}, which is not a known rule.",
                hint=f"Known rules: {', '.join(_KEYS)}.",
            )
        if key == "shape":
            if not all(isinstance(length, int) and not isinstance(length, bool) for length in value):
                raise UsageError(
                    f"The contract of the stage {name} has shape = {value!r}.", hint="Give whole numbers; -1 is any."
                )
            lengths = [f"shape[{n}] = {int(length)}" for n, length in enumerate(value, 1) if int(length) >= 0]
            conditions.append((" AND ".join([f"len(shape) = {len(value)}", *lengths]), f"shape {_times(value)}", None))
        elif key in ("min", "max"):
            sign = ">=" if key == "min" else "<="
            conditions.append((f"{key} {sign} {float(value)!r}", f"{key} {sign} {value}", float(value)))
        else:
            conditions.append((f"{key} IS NOT DISTINCT FROM {literal(value)}", f"{key} {value}", None))
    return conditions


def _find_offending(
    context: Context, stage: int, conditions: list[tuple[str, str, float | None]], says: str
) -> Iterable[Finding]:
    for condition, rule, bound in conditions:
        query = (
            f"SELECT index, epoch, visit, kind, dtype, mode, shape, min, max FROM {context.outputs} "
            f"WHERE stage = {stage} AND NOT coalesce({condition}, false)"
        )
        broken = context.value(f"SELECT count(*) FROM ({query})")
        total = sum(row["visits"] for row in context.profile if row["stage"] == stage)
        together = context.has_one_cause(broken, total)
        for row in context.offenders(f"{query} ORDER BY index LIMIT 1" if together else query):
            has = {
                "shape": f"shape {_times(row['shape'] or [])}", "kind": f"kind {row['kind']}",
                "dtype": f"dtype {row['dtype']}", "mode": f"mode {row['mode']}",
            }.get(rule.split(" ")[0])  # fmt: skip
            low = rule.startswith("min")
            value = None if has else row["min" if low else "max"]
            has = has or f"{'minimum' if low else 'maximum'} {value}"
            name = context.stage_name(stage)
            one = f"{row['source']} (index {row['index']})"
            many = f"All {total:,}" if broken == total else f"{broken:,} of {total:,}"
            yield Finding(
                f"{many} outputs of {name} break a rule: {says} {rule}, and {one} has {has}."
                if together
                else f"{one} has {has} after {name}; {says} {rule}.",
                index=row["index"],
                source=row["source"],
                stage=stage,
                value=value,
                threshold=bound,
                sql=query if together else context.evidence("stage_outputs", row["index"], f"stage = {stage}"),
            )


def _times(shape: list[int]) -> str:
    return "×".join(str(length) for length in shape) or "none"
