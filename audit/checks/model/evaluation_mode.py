"""`evaluation_mode`: predictions made in training mode although nothing was trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context
from audit.split_names import is_evaluation


class ModesOfSplit(TypedDict):
    """How many predictions of a split and epoch were made in training mode, or with layers in training mode."""

    split: str | None
    epoch: int
    predictions: int
    in_training: int
    in_part: int
    layers: list[str] | None
    index: int | None
    trained: int


class EvaluationMode(Check):
    """In training mode dropout draws and batch normalisation uses the batch: results depend on chance and batch size."""

    description = (
        "The model, with all its layers, was in evaluation mode where an evaluation split was predicted, or where "
        "nothing was trained."
    )
    question = "Was a model evaluated in training mode?"
    rule = "the recorded flag of its layers at each call"
    assumes = "the split is one for evaluation"
    needs = ("model",)

    def run(self, context: Context) -> Iterable[Finding]:
        counts = context.facts.counts
        if not counts.get("steps") and not counts.get("calls"):
            raise Skip("the mode of the model was not recorded")
        query = self._query(context, "calls" if counts.get("calls") else "steps")
        by_split: dict[str | None, list[ModesOfSplit]] = {}
        for row in context.facts.typed_rows(ModesOfSplit, query):
            # A pass that no optimizer step followed is an evaluation, whatever it is called.
            if is_evaluation(row["split"]) or not row["trained"]:
                by_split.setdefault(row["split"], []).append(row)
        for split, rows in by_split.items():
            yield from self._judge(split, rows, query)

    def _judge(self, split: str | None, rows: list[ModesOfSplit], query: str) -> Iterable[Finding]:
        is_judged = is_evaluation(split)
        where = f" of the split {split}" if split is not None else ""
        why = "" if is_judged else ", although no optimizer step followed"
        predictions = sum(row["predictions"] for row in rows)
        whole, part = sum(row["in_training"] for row in rows), sum(row["in_part"] for row in rows)
        if whole:
            said = f"{whole:,} of {predictions:,} predictions{where} were made in training mode{why}."
        elif part:
            layers = next(row["layers"] for row in rows if row["layers"])
            listed = ", ".join(layers[:3]) + (" …" if len(layers) > 3 else "")
            said = f"{part:,} of {predictions:,} predictions{where} were made with {listed} in training mode{why}."
        else:
            return
        yield Finding(
            f"{said} Call model.eval() before predicting.",
            index=next((row["index"] for row in rows if row["index"] is not None), None),
            value=whole or part,
            threshold=0,
            sql=query,
            severity=None if is_judged else "warning",
        )

    def _query(self, context: Context, table: str) -> str:
        steps = (
            f"(SELECT epoch, step, learning_rate, gradient_norm, phase FROM steps WHERE run_id = {context.run_literal})"
        )
        if table == "calls":
            modes = f"(SELECT number, phase, other_mode FROM calls WHERE run_id = {context.run_literal})"
            joined = f"JOIN {modes} c USING (number) LEFT JOIN {steps} t USING (epoch, step)"
        else:
            joined = f"JOIN (SELECT *, NULL::VARCHAR[] AS other_mode FROM {steps}) c USING (epoch, step) LEFT JOIN {steps} t USING (epoch, step)"
        return (
            "SELECT s.split, p.epoch, count(*) AS predictions, count(*) FILTER (c.phase = 'train') AS in_training, "
            "count(*) FILTER (c.phase = 'eval' AND len(c.other_mode) > 0) AS in_part, "
            "any_value(c.other_mode) FILTER (c.phase = 'eval' AND len(c.other_mode) > 0) AS layers, "
            "min(s.index) FILTER (c.phase = 'train' OR len(c.other_mode) > 0) AS index, "
            "count(coalesce(t.learning_rate, t.gradient_norm)) AS trained "
            f"FROM {context.all_predictions} p JOIN {context.samples} s USING (epoch, index, visit) {joined} "
            "GROUP BY s.split, p.epoch ORDER BY s.split, p.epoch"
        )
