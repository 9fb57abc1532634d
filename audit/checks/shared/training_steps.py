"""Whether a run recorded that a model was trained."""

from __future__ import annotations

from audit.checks.context import Context


def is_trained(context: Context) -> bool:
    """Return whether a step of the run had a learning rate or gradients."""
    return bool(
        context.facts.counts.get("steps")
        and context.value(
            f"SELECT count(coalesce(learning_rate, gradient_norm)) FROM steps WHERE run_id = {context.run_literal}"
        )
    )
