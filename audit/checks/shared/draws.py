"""The rows of table `rng` that show that a visit drew random numbers; others say only what the visit may depend on."""

from __future__ import annotations

from audit.checks.context import Context

#: Rows that describe the worker, the batch, or a generator that the visit made: none of them says that it was drawn from.
_CIRCUMSTANCES = "generator IN ('batch', 'key', 'worker') OR starts_with(generator, 'made:')"


def drawn_generators(context: Context) -> str:
    """Return SQL for one row of each generator that a visit drew from.

    Beside the worker, or a generator that was made, torch's state is kept for its seed, drawn from or not: such rows are left out.
    """
    rows = f"SELECT * FROM rng WHERE run_id = {context.run_literal}"
    return (
        f"(FROM ({rows}) WHERE NOT ({_CIRCUMSTANCES}) AND NOT (generator = 'torch' AND (epoch, index, visit) IN "
        f"(SELECT (epoch, index, visit) FROM ({rows}) WHERE generator = 'worker' OR starts_with(generator, 'made:'))))"
    )
