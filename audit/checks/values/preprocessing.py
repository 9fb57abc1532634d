"""`preprocessing`: the pipeline normalises or resizes otherwise than the checkpoint, or its architecture, states."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TypedDict

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context, OutputProfile
from audit.checks.values.scale import judge_pipeline, parameter_list, typical_output
from audit.plainjson import JsonObject
from audit.records import Stage

#: A loaded picture reaches from black to white if it goes below and above these levels.
_BLACK, _WHITE = 12, 243


class Squeeze(TypedDict):
    """How many pictures a stage squeezed, and by how much in the median."""

    visits: int
    squeezed: int
    factor: float | None
    index: int | None


class Preprocessing(Check):
    """Compare recorded parameters and value ranges with the stated normalisation; run nothing."""

    description = (
        "The pipeline normalises as the checkpoint, or the published preset of its architecture, states, and keeps the "
        "aspect of the pictures if the preset does."
    )
    severity = "warning"
    needs = ("pictures", "model")
    options = settings(
        difference=Option(0.75, "Report a normalisation that changes black or white by at least this."),
        squeeze=Option(1.15, "Report a stage that changes the aspect of half of the pictures by this factor."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        stated = context.run.recipe.get("expected_input")
        if not isinstance(stated, dict) or not stated.get("mean") or not stated.get("std"):
            raise Skip("neither the checkpoint nor a published preset says how its input is normalised; see --probe")
        for pipeline in context.pipelines:
            # A scale that is wrong in itself is the finding of another check.
            if not any(found.severity != "info" for found in judge_pipeline(context, pipeline)):
                yield from self._normalisation(context, pipeline, stated)
            if stated.get("keeps_aspect"):
                yield from self._aspect(context, pipeline, stated)

    def _normalisation(self, context: Context, pipeline: list[Stage], stated: JsonObject) -> Iterable[Finding]:
        given = typical_output(context, pipeline[-1].stage)
        if given is None or not str(given["dtype"]).startswith("float"):
            return
        said = self._by_parameters(context, pipeline, stated) or self._by_range(context, given, stated)
        if said is None:
            return
        stage, text = said
        yield Finding(
            f"{text} {_capital(stated['says'])} states mean {_format_numbers(stated['mean'])} and std {_format_numbers(stated['std'])}.",
            stage=stage,
            value=given["mean"],
            sql=f"SELECT stage, name, parameters FROM stages WHERE run_id = {context.run_literal} ORDER BY stage",
            severity="error" if stated["says"] == "the checkpoint" else None,
        )

    def _by_parameters(self, context: Context, pipeline: list[Stage], stated: JsonObject) -> tuple[int, str] | None:
        """Return the stage and what to say if the last stage is a Normalize with other parameters."""
        last = pipeline[-1]
        mean, std = parameter_list(last.parameters, "mean"), parameter_list(last.parameters, "std")
        if not mean or not std or "normalize" not in last.name.lower():
            return None
        apart = max(
            abs((level - m) / s - (level - other_m) / other_s)
            for level in (0, 1)
            for m, s, other_m, other_s in zip(
                *(_repeat_channels(values, len(mean)) for values in (mean, std, stated["mean"], stated["std"])),
                strict=False,
            )
        )
        if apart < context.options["difference"]:
            return None
        return last.stage, f"{last.name} uses mean {_format_numbers(mean)} and std {_format_numbers(std)}."

    def _by_range(self, context: Context, given: OutputProfile, stated: JsonObject) -> tuple[int, str] | None:
        """Return the stage and what to say if the values cannot come from, or do not fill, the stated range."""
        low, high = given["middle_min"], given["middle_max"]
        if low is None or high is None:
            return None
        pairs = list(zip(stated["mean"], stated["std"], strict=False))
        least, most = min(-m / s for m, s in pairs), max((1 - m) / s for m, s in pairs)
        width = most - least
        name = context.stage_name(given["stage"])
        reach = f"The model's input reaches typically from {low:.3g} to {high:.3g} after {name}"
        if low < least - 0.1 * width or high > most + 0.1 * width:
            said = f"{reach}, which the stated normalisation (from {least:.3g} to {most:.3g}) cannot give: normalised twice?"
            return given["stage"], said
        loaded = typical_output(context, 0)
        full = loaded is not None and loaded["dtype"] == "uint8" and loaded["middle_min"] is not None
        if not full or loaded is None or loaded["middle_min"] > _BLACK or (loaded["middle_max"] or 0) < _WHITE:  # type: ignore[operator]
            return None
        if high - low < 0.6 * width:
            return given[
                "stage"
            ], f"{reach}, although the pictures reach from black to white, which is {least:.3g} to {most:.3g} there."
        return None

    def _aspect(self, context: Context, pipeline: list[Stage], stated: JsonObject) -> Iterable[Finding]:
        for before, stage in pairwise(pipeline):
            if "resize" not in stage.name.lower() or "crop" in stage.name.lower() or stage.random:
                continue
            query = _squeeze_query(context, before.stage, stage.stage, context.options["squeeze"])
            row = context.facts.typed_rows(Squeeze, query)[0]
            if row["visits"] and row["squeezed"] * 2 >= row["visits"] and row["factor"] is not None:
                yield Finding(
                    f"{stage.name} changes the aspect of {row['squeezed']:,} of {row['visits']:,} pictures, by a factor of "
                    f"{row['factor']:.2f} in the median; {stated['says']} resizes the shorter side and crops.",
                    index=row["index"],
                    stage=stage.stage,
                    value=row["factor"],
                    threshold=context.options["squeeze"],
                    sql=query,
                )


def _squeeze_query(context: Context, before: int, stage: int, limit: float) -> str:
    def sides(number: int) -> str:
        return (
            "SELECT epoch, index, visit, CASE WHEN kind = 'tensor' THEN shape[-2] ELSE shape[1] END AS height, "
            "CASE WHEN kind = 'tensor' THEN shape[-1] ELSE shape[2] END AS width "
            f"FROM {context.outputs} WHERE stage = {number} AND len(shape) >= 2"
        )

    ratio = "(a.width * b.height / (a.height * b.width))"
    return (
        f"SELECT count(*) AS visits, count(*) FILTER (factor >= {limit}) AS squeezed, "
        f"median(factor) FILTER (factor >= {limit}) AS factor, min(index) FILTER (factor >= {limit}) AS index FROM "
        f"(SELECT index, greatest({ratio}, 1 / {ratio}) AS factor FROM ({sides(before)}) a "
        f"JOIN ({sides(stage)}) b USING (epoch, index, visit))"
    )


def _repeat_channels(values: list[float], count: int) -> list[float]:
    return list(values) * count if len(values) == 1 else list(values)


def _format_numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
