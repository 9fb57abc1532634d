"""`drift`: labels, predictions, confidence or stage statistics are distributed differently than in the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.baseline import Distribution, counts_of, distributions_of
from audit.checks.context import Context
from audit.checks.shared import distance
from audit.checks.shared.significance import holm


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether a change is large enough to matter, its probability under chance alone, and what to report then."""

    is_large: bool
    chance: float
    finding: Finding
    #: The statistic and the stage that it is of; None for labels, predictions and confidence.
    statistic: str | None = None
    stage: str | None = None


class Drift(Check):
    """Report a change only if it is statistically significant and large enough to matter."""

    description = (
        "Labels, predictions, confidence and stage statistics are distributed as in the baseline "
        "(population stability, Kolmogorov–Smirnov)."
    )
    question = "Are labels, predictions and values distributed as in the baseline?"
    statistic = "population stability with chi-square; Kolmogorov–Smirnov; Holm over all comparisons"
    assumes = "independent samples; 101 quantiles describe a distribution"
    severity = "warning"
    follows = ("pipeline_changed",)
    needs = ("baseline",)
    options = settings(
        psi=Option(0.2, "Report labels and predictions whose population stability index is at least this."),
        ks=Option(0.15, "Report statistics whose Kolmogorov–Smirnov distance is at least this."),
        significance=Option(0.0001, "The probability of any false finding among all comparisons (Holm)."),
        samples=Option(30, "Compare only if both sides have at least this many samples."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        compared = [*self._counts(context), *self._distributions(context)]
        if not compared:
            baseline, least = context.facts.baseline, context.options["samples"]
            assert baseline is not None
            raise Skip(f"this run or {baseline.name} has fewer than {least} samples of each kind; both need {least}")
        sure = holm([one.chance for one in compared], context.options["significance"])
        found = [one for one, significant in zip(compared, sure, strict=True) if one.is_large and significant]
        seen: set[str] = set()
        for one in found:
            if one.statistic is None:
                yield one.finding
            elif one.statistic not in seen:
                # What a stage changes is seen at all later ones too: one finding where it begins.
                seen.add(one.statistic)
                later = [other.stage for other in found if other.statistic == one.statistic and other is not one]
                yield _add_later(one.finding, [name for name in later if name is not None])

    def _counts(self, context: Context) -> Iterable[Comparison]:
        baseline = context.facts.baseline
        assert baseline is not None
        for what, noun in (("label", "labels"), ("predicted", "predictions")):
            before, now = baseline.counts.get(what, {}), counts_of(context.reader, context.run.run_id, what)
            if min(sum(before.values()), sum(now.values())) < context.options["samples"]:
                continue
            psi = distance.population_stability(before, now)
            chance = distance.chi_square_chance(before, now)
            table = "samples" if what == "label" else "graded_predictions"
            most = _find_most_changed(before, now)
            finding = Finding(
                f"The {noun} have drifted (population stability {psi:.2f}): {most} is "
                f"{_share(now, most):.1%} of them, and was {_share(before, most):.1%}.",
                value=psi,
                threshold=context.options["psi"],
                sql=f"SELECT {what}, count(*) FROM {table} WHERE run_id = {context.run_literal} "
                "GROUP BY ALL ORDER BY ALL",
            )
            yield Comparison(psi >= context.options["psi"], chance, finding)

    def _distributions(self, context: Context) -> Iterable[Comparison]:
        baseline = context.facts.baseline
        assert baseline is not None
        before = {_key(row): row for row in baseline.distributions}
        now = distributions_of(context.reader, context.run.run_id)
        for row in now:
            old = before.get(_key(row))
            if old is None or min(old["samples"], row["samples"]) < context.options["samples"]:
                continue
            ks = distance.kolmogorov_smirnov(old["quantiles"], row["quantiles"])
            chance = distance.kolmogorov_smirnov_chance(ks, old["samples"], row["samples"])
            middle = len(row["quantiles"]) // 2
            finding = Finding(
                f"The {row['statistic']} of {row['name']} has drifted (Kolmogorov–Smirnov {ks:.2f}, "
                f"{old['samples']:,} against {row['samples']:,} samples): its median is "
                f"{row['quantiles'][middle]:.4g}, and was {old['quantiles'][middle]:.4g}.",
                stage=row["stage"],
                value=ks,
                threshold=context.options["ks"],
                sql=f"SELECT run_id, quantile_cont({row['statistic']}, [0.05, 0.5, 0.95]) FROM "
                + ("predictions" if row["stage"] is None else f"stage_outputs WHERE stage = {row['stage']}")
                + " GROUP BY run_id",
            )
            of_stage = row["stage"] is not None
            yield Comparison(
                ks >= context.options["ks"],
                chance,
                finding,
                row["statistic"] if of_stage else None,
                row["name"] if of_stage else None,
            )


def _add_later(finding: Finding, later: list[str]) -> Finding:
    if not later:
        return finding
    names = ", ".join(later[:-1]) + " and " + later[-1] if len(later) > 1 else later[0]
    return replace(finding, message=f"{finding.message} The same statistic of {names} after it has drifted too.")


def _find_most_changed(before: dict[str, int], now: dict[str, int]) -> str:
    return max(before.keys() | now.keys(), key=lambda key: abs(_share(now, key) - _share(before, key)))


def _key(row: Distribution) -> tuple[int | None, str, str]:
    return row["stage"], row["name"], row["statistic"]


def _share(counts: dict[str, int], key: str) -> float:
    return counts.get(key, 0) / max(1, sum(counts.values()))
