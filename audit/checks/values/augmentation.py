"""`augmentation`: random stages that never or always act, repeat their draws, or are active in evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.random_draws import find_drawn_generators
from audit.checks.shared.significance import wilson
from audit.records import Stage
from audit.split_names import EVALUATION

#: A value with this many decimals is continuous, and does not repeat by chance.
_CONTINUOUS = r"\d\.\d{5,}"
#: The rate of a stage may be above its p by this much, and below it by twice as much.
_NEAR = 0.05


#: Numbers are equal if they differ by at most this share: a single precision has seven digits.
_SAME = 1e-6


class Augmentation(Check):
    """Check each random stage over all visits; too few visits to exclude chance are not checked."""

    description = "Random stages act as often as configured, draw new values in each worker and epoch, are off in evaluation, and no sample is kept after one."
    question = "Does a random stage act as often as its `p`?"
    statistic = "Wilson's 99.99 % interval of the rate, with a margin of 5 % above and 10 % below"
    assumes = "visits are independent; a change of the value shows that the stage acted"
    options = settings(
        visits=Option(20, "Check only if there are at least this many visits."),
        repeated=Option(
            0.5, "Report a stage if at least this share of its continuous draws occurs in several workers."
        ),
        evaluation=Option(True, "Report random stages that are active in an evaluation split."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        known = [*self._check_stages(context)]
        yield from known
        if context.options["evaluation"] and not any("is active in the split" in one.message for one in known):
            yield from self._check_draws(context)
        yield from self._check_cache(context)

    def _check_stages(self, context: Context) -> Iterable[Finding]:
        for stage in context.facts.stages:
            rows = f"(FROM {context.outputs} WHERE stage = {stage.stage})"
            if stage.stage not in context.stage_numbers or not (stage.random or _acts_sometimes(context, stage, rows)):
                continue
            if _draws_one_value(context, stage, rows):
                continue
            yield from self._check_rate(context, stage, rows)
            yield from self._check_workers(context, stage, rows)
            yield from self._check_epochs(context, stage, rows)
            if context.options["evaluation"]:
                yield from self._check_evaluation(context, stage, rows)

    def _check_rate(self, context: Context, stage: Stage, rows: str) -> Iterable[Finding]:
        query = f"SELECT count(*) AS visits, count(*) FILTER (changed) AS fired FROM {rows}"
        found = context.rows(query)[0]
        if found["visits"] < context.options["visits"]:
            context.note(
                f"{stage.name} has {found['visits']} visits; at least {context.options['visits']} are needed to judge its rate"
            )
            return
        p = _probability(stage.parameters)
        said = None
        if not found["fired"] and (p is None or (1 - p) ** found["visits"] < 1e-4):
            said = f"never changed anything in {found['visits']:,} visits"
        elif found["fired"] == found["visits"] and p is not None and p ** found["visits"] < 1e-4:
            said = f"changed its input in all {found['visits']:,} visits, although its p is {p:g}"
        elif p is not None:
            said = _describe_rate(found["fired"], found["visits"], p)
        if said:
            share = found["fired"] / found["visits"]
            yield Finding(
                f"The random stage {stage.name} {said}.", stage=stage.stage, value=share, threshold=p, sql=query
            )

    def _check_workers(self, context: Context, stage: Stage, rows: str) -> Iterable[Finding]:
        query = (
            f"SELECT params, count(DISTINCT s.worker) AS workers, count(*) AS visits, min(o.index) AS index "
            f"FROM {rows} o JOIN {context.samples} s USING (epoch, index, visit) "
            f"WHERE regexp_matches(params, '{_CONTINUOUS}') GROUP BY params"
        )
        found = context.rows(
            f"SELECT sum(visits) AS visits, sum(visits) FILTER (workers > 1) AS repeated, "
            f"min(index) FILTER (workers > 1) AS index, max(workers) AS workers FROM ({query})"
        )[0]
        if not found["repeated"] or found["visits"] < context.options["visits"]:
            return
        share = found["repeated"] / found["visits"]
        if share >= context.options["repeated"]:
            yield Finding(
                f"The random stage {stage.name} drew the same in up to {found['workers']} workers, "
                f"in {share:.0%} of its visits: each worker has a copy of one generator.",
                stage=stage.stage,
                index=found["index"],
                value=share,
                threshold=context.options["repeated"],
                sql=f"FROM ({query}) WHERE workers > 1 ORDER BY visits DESC",
            )

    def _check_epochs(self, context: Context, stage: Stage, rows: str) -> Iterable[Finding]:
        query = (
            "SELECT index, count(DISTINCT epoch) AS epochs, "
            "count(DISTINCT coalesce(params, changed::VARCHAR)) AS draws, "
            f"any_value(coalesce(params, changed::VARCHAR)) AS draw FROM {rows} WHERE visit = 0 "
            "GROUP BY index HAVING count(DISTINCT epoch) > 1"
        )
        found = context.rows(
            "SELECT count(*) AS samples, count(*) FILTER (draws = 1) AS same, count(DISTINCT draw) AS different, "
            f"max(epochs) AS epochs FROM ({query})"
        )[0]
        if (
            found["samples"] >= context.options["visits"]
            and found["same"] == found["samples"]
            and found["different"] > 1
        ):
            yield Finding(
                f"The random stage {stage.name} drew the same for each sample in all {found['epochs']} epochs: "
                "its generator starts from the same seed in each epoch.",
                stage=stage.stage,
                value=1.0,
                sql=f"FROM ({query}) WHERE draws = 1",
            )

    def _check_evaluation(self, context: Context, stage: Stage, rows: str) -> Iterable[Finding]:
        splits = ", ".join(f"'{name}'" for name in EVALUATION)
        query = (
            f"SELECT s.split, min(o.index) AS index, count(*) AS visits FROM {rows} o "
            f"JOIN {context.samples} s USING (epoch, index, visit) "
            f"WHERE o.changed AND lower(s.split) IN ({splits}) GROUP BY s.split"
        )
        for row in context.rows(query):
            yield Finding(
                f"The random stage {stage.name} is active in the split {row['split']} "
                f"({row['visits']:,} visits): results there depend on chance.",
                stage=stage.stage,
                value=row["visits"],
                threshold=0,
                sql=query,
                severity="warning",
            )

    def _check_cache(self, context: Context) -> Iterable[Finding]:
        """Report samples that were kept after a random stage: in later epochs they load as what it made in the first."""
        random = [stage for stage in context.facts.stages if stage.random and not stage.is_target]
        if not random or not context.facts.epochs:
            return
        first = min(row["first"] for row in context.facts.epochs)
        if first == max(row["last"] for row in context.facts.epochs):
            return
        numbers = ", ".join(str(stage.stage) for stage in random)
        query = (
            f"SELECT a.index, a.epoch, b.name FROM (FROM {context.outputs} WHERE stage = 0 AND epoch > {first}) a "
            f"JOIN (FROM {context.outputs} WHERE stage > {random[0].stage} AND epoch = {first}) b USING (index, visit, digest) "
            f"ANTI JOIN (FROM {context.outputs} WHERE stage IN ({numbers})) r ON (a.epoch, a.index, a.visit) = (r.epoch, r.index, r.visit)"
        )
        found = context.rows(f"SELECT count(DISTINCT (epoch, index)) AS visits, min(index) AS index FROM ({query})")[0]
        later = context.value(f"SELECT count(*) FROM {context.samples} WHERE epoch > {first}")
        if found["visits"] >= max(context.options["visits"], context.options["repeated"] * later):
            yield Finding(
                f"In {found['visits']:,} of {later:,} visits after epoch {first} the sample is what the first epoch had made of it, and the random "
                f"stage {random[0].name} did not run again: the dataset keeps samples in memory after augmenting them. Keep them before that.",
                stage=random[0].stage,
                index=found["index"],
                value=found["visits"] / later,
                threshold=context.options["repeated"],
                sql=query,
            )

    def _check_draws(self, context: Context) -> Iterable[Finding]:
        """Report an evaluation split whose samples draw random numbers, whatever draws them."""
        if not context.facts.counts.get("rng"):
            return
        splits = ", ".join(f"'{name}'" for name in EVALUATION)
        query = (
            "SELECT s.split, r.generator, min(index) AS index, count(*) AS visits "
            f"FROM {find_drawn_generators(context)} r JOIN {context.samples} s USING (run_id, epoch, index, visit) "
            f"WHERE lower(s.split) IN ({splits}) GROUP BY ALL ORDER BY visits DESC"
        )
        for row in context.rows(query)[:1]:
            if row["visits"] >= context.options["visits"]:
                yield Finding(
                    f"{row['visits']:,} visits of the split {row['split']} drew from the random generator "
                    f"{row['generator']}, in code that is not marked as random: results there depend on chance.",
                    index=row["index"],
                    value=row["visits"],
                    threshold=0,
                    sql=query,
                    severity="warning",
                )


def _acts_sometimes(context: Context, stage: Stage, rows: str) -> bool:
    """Return whether a class of the user's own has a probability `p` and changes some of its inputs, but not all."""
    if _probability(stage.parameters) is None:
        return False
    found = context.rows(f"SELECT bool_or(changed) AS some, bool_and(changed) AS every FROM {rows}")[0]
    return bool(found["some"]) and not found["every"]


def _describe_rate(fired: int, visits: int, p: float) -> str | None:
    """Return what to say if the 99.99 % interval of the rate is far from p."""
    low, high = wilson(fired, visits, z=3.89)
    # A stage may act and change nothing, such as a flip of a symmetric picture; so a little below p is usual.
    if low <= p + _NEAR and high >= p - 2 * _NEAR:
        return None
    return f"changed its input in {fired / visits:.1%} of {visits:,} visits (interval {low:.1%} to {high:.1%}), although its p is {p:g}"


def _probability(parameters: str | None) -> float | None:
    try:
        p = json.loads(parameters or "{}").get("p")
    except ValueError:
        return None
    return float(p) if isinstance(p, (int, float)) and 0 < p < 1 else None


def _draws_one_value(context: Context, stage: Stage, rows: str) -> bool:
    """Return whether a stage is random by its class alone: the range that its settings give for its draws is one value."""
    found = context.rows(f"SELECT count(DISTINCT params) AS draws, any_value(params) AS params FROM {rows}")[0]
    if found["draws"] != 1:
        return False
    drawn = _list_numbers(json.loads(found["params"]))
    given = _list_numbers(json.loads(stage.parameters or "null"), is_setting=True)
    return bool(drawn) and all(any(math.isclose(one, other, rel_tol=_SAME) for other in given) for one in drawn)


def _list_numbers(value: Any, *, is_setting: bool = False) -> list[float]:
    """Return the numbers in a value that was JSON; of settings without those of a range from one number to another."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [float(value)]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [number for part in parts for number in _list_numbers(part, is_setting=is_setting)]
    is_range = is_setting and isinstance(value, list) and len(set(found)) > 1
    return [] if is_range else found
