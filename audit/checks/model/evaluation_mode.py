"""`evaluation_mode`: predictions made in training mode although nothing was trained."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import EVALUATION, Context


class EvaluationMode(Check):
    """In training mode dropout draws and batch normalisation uses the batch: results depend on chance and batch size."""

    name = "evaluation_mode"
    group = "model"
    description = "The model was in evaluation mode where an evaluation split was predicted, or nothing was trained."
    needs = ("model",)

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.facts.counts.get("steps"):
            raise Skip("the mode of the model was not recorded")
        steps = f"(FROM steps WHERE run_id = {context.run_literal})"
        query = (
            "SELECT s.split, count(*) AS predictions, count(*) FILTER (t.phase = 'train') AS in_training, "
            "min(s.index) FILTER (t.phase = 'train') AS index "
            f"FROM {context.all_predictions} p JOIN {context.samples} s USING (epoch, index, visit) "
            f"JOIN {steps} t USING (epoch, step) GROUP BY s.split ORDER BY s.split"
        )
        trained = context.value(f"SELECT count(coalesce(learning_rate, gradient_norm)) FROM {steps}")
        for row in context.rows(query):
            is_evaluation = str(row["split"]).lower() in EVALUATION
            if not row["in_training"] or (trained and not is_evaluation):
                continue
            where = f" of the split {row['split']}" if row["split"] is not None else ""
            why = "" if is_evaluation else ", although no optimizer step was recorded"
            yield Finding(
                f"{row['in_training']:,} of {row['predictions']:,} predictions{where} were made in training mode{why}. "
                "Call model.eval() before predicting.",
                value=row["in_training"],
                threshold=0,
                sql=query,
                severity=None if is_evaluation else "warning",
            )


CHECK = EvaluationMode
