"""`scale`: 0–255 where 0–1 was meant, normalised twice, or never."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context, OutputProfile
from audit.config import Settings
from audit.records import Stage

#: The mean and standard deviation of usual normalisations, over the channels: ImageNet, CIFAR-10, MNIST, one half.
_USUAL_SCALES = ((0.449, 0.226), (0.473, 0.251), (0.131, 0.308), (0.5, 0.5))

#: A mean and a deviation are exchanged if they differ by at least this share, and each is within this share of the other's value.
_APART, _NEAR = 0.3, 0.2


class Scale(Check):
    """Check the value range of stage outputs, and of the input of a normalising stage."""

    description = "The model's input has the scale it was trained on: not 0–255 instead of 0–1, and normalised once."
    question = "Is the input on the model's scale?"
    rule = (
        "the range of the stages; mean and std against those of the checkpoint; exchanged if each is within a fifth of "
        "what the pictures have of the other"
    )
    assumes = "usual normalisations"
    needs = ("pictures",)
    options = settings(
        largest_input=Option(50.0, "A float input whose typical maximum is above this was not scaled."),
        negative=Option(0.01, "An input of a normalising stage that goes below minus this was already normalised."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        for pipeline in context.pipelines:
            yield from judge_pipeline(context, pipeline, context.options)


def judge_pipeline(context: Context, pipeline: list[Stage], limits: Settings | None = None) -> Iterable[Finding]:
    """Yield what is wrong with the scale of one pipeline; `limits` are the options of `scale`, or else their defaults."""
    limits = limits or {name: option.default for name, option in Scale.options.items()}
    last = pipeline[-1].stage
    given = typical_output(context, last)
    if given is None or not str(given["dtype"]).startswith("float"):
        return
    measured = "min(min), max(max), avg(mean), avg(std)"
    query = f"SELECT stage, name, {measured} FROM {context.outputs} GROUP BY ALL ORDER BY stage"
    normalising = False
    for before, stage in pairwise(pipeline):
        if "normalize" in stage.name.lower():
            normalising = True
            yield from _judge_normalised(context, before.stage, stage, query, limits["negative"])
        elif normalising:
            yield from _judge_function(context, pipeline, before.stage, stage)
    big = given["middle_max"] is not None and given["middle_max"] > limits["largest_input"]
    if big and not normalising:
        yield Finding(
            f"The model's input has values up to {given['middle_max']:.4g} after {context.stage_name(last)}: "
            "should they be scaled to 0–1?",
            stage=last,
            value=given["middle_max"],
            threshold=limits["largest_input"],
            sql=query,
        )
    elif not normalising and _is_known_architecture(context) and _unit(given):
        yield Finding(
            f"The pictures reach {context.run.arch} as 0–1 and were never normalised; "
            "weights of this architecture are usually trained on normalised pictures.",
            stage=last,
            value=given["mean"],
            sql=query,
            severity="info",
        )


def _judge_normalised(context: Context, number: int, stage: Stage, query: str, negative: float) -> Iterable[Finding]:
    before, loaded = typical_output(context, number), typical_output(context, 0)
    if before is None or before["middle_min"] is None or before["middle_max"] is None:
        return
    # Values below zero in the files themselves (temperatures, densities) are not a sign of normalisation.
    below = loaded is not None and loaded["middle_min"] is not None and loaded["middle_min"] < 0
    meant = parameter_list(stage.parameters, "std")
    yield from _judge_exchanged(before, stage, query)
    if meant and max(meant) <= 2 and before["middle_max"] > 2:
        yield Finding(
            f"{stage.name} got values up to {before['middle_max']:.4g}, "
            f"but its std of at most {max(meant):.3g} is meant for 0–1.",
            stage=stage.stage,
            value=before["middle_max"],
            threshold=1.0,
            sql=query,
        )
    elif before["middle_min"] < -negative and not below:
        yield Finding(
            f"{stage.name} got values down to {before['middle_min']:.4g}: they were already normalised.",
            stage=stage.stage,
            value=before["middle_min"],
            threshold=0.0,
            sql=query,
        )


def _judge_exchanged(before: OutputProfile, stage: Stage, query: str) -> Iterable[Finding]:
    """Report a mean and a standard deviation that were exchanged: each is what the pictures have of the other."""
    mean, std = (parameter_list(stage.parameters, key) for key in ("mean", "std"))
    if not mean or not std or before["mean"] is None or before["std"] is None:
        return
    centre, spread = sum(mean) / len(mean), sum(std) / len(std)
    if abs(centre - spread) < _APART * max(centre, spread):
        return
    if abs(before["std"] - centre) < _NEAR * centre and abs(before["mean"] - spread) < _NEAR * spread:
        yield Finding(
            f"The mean and std of {stage.name} seem to be exchanged: it subtracts {centre:.3g} and divides by {spread:.3g}, and its input "
            f"has a mean of {before['mean']:.3g} and a standard deviation of {before['std']:.3g}.",
            stage=stage.stage,
            value=centre,
            threshold=before["mean"],
            sql=query,
            severity="warning",
        )


def _judge_function(context: Context, pipeline: list[Stage], number: int, stage: Stage) -> Iterable[Finding]:
    """Report a stage of any name that subtracts a usual mean and divides by a usual std after a normalising stage."""
    query = (
        "SELECT regr_slope(o.mean, i.mean) AS slope, regr_intercept(o.mean, i.mean) AS intercept, "
        "regr_r2(o.mean, i.mean) AS fit, median(o.std / nullif(i.std, 0)) AS ratio FROM "
        f"(FROM {context.outputs} WHERE stage = {number} AND kind = 'tensor') i JOIN "
        f"(FROM {context.outputs} WHERE stage = {stage.stage} AND kind = 'tensor') o USING (epoch, index, visit)"
    )
    row = context.rows(query)[0]
    slope, ratio = row["slope"], row["ratio"]
    if slope is None or ratio is None or slope <= 1.2 or row["fit"] < 0.99 or abs(ratio / slope - 1) > 0.03:
        return
    mean, std = -row["intercept"] / slope, 1 / slope
    own = [(parameter_list(one.parameters, "mean"), parameter_list(one.parameters, "std")) for one in pipeline]
    known = [*_USUAL_SCALES, *((sum(m) / len(m), sum(s) / len(s)) for m, s in own if m and s)]
    if any(abs(mean - m) < 0.03 and abs(std / s - 1) < 0.05 for m, s in known):
        yield Finding(
            f"{stage.name} subtracts {mean:.3g} and divides by {std:.3g}, but its input was already normalised.",
            stage=stage.stage,
            value=std,
            sql=query,
        )


def _is_known_architecture(context: Context) -> bool:
    """Return whether the architecture is a published one, whose normalisation is not known to `preprocessing`."""
    recipe = context.run.recipe
    return bool(context.run.arch) and recipe.get("kind") == "run" and not recipe.get("expected_input")


def typical_output(context: Context, number: int | None) -> OutputProfile | None:
    """Return the statistics of a stage's commonest kind of output."""
    rows = [r for r in context.profile if r["stage"] == number and r["kind"] in ("image", "tensor", "array")]
    return max(rows, key=lambda row: row["visits"], default=None)


def _unit(row: OutputProfile) -> bool:
    low, high = row["low"], row["high"]
    return low is not None and high is not None and low >= 0 and high <= 1


def parameter_list(parameters: str | None, key: str) -> list[float]:
    """Return a parameter of a stage that is a number or a list of numbers; empty if it is neither."""
    try:
        found = json.loads(parameters or "{}").get(key)
    except ValueError:
        return []
    values = found if isinstance(found, list) else [found]
    return [float(value) for value in values if isinstance(value, (int, float))]
