"""The rows of table `rng` that show that a visit drew random numbers; others say only what the visit may depend on."""

from __future__ import annotations

from audit.checks.context import Context

#: Rows that describe the worker, the batch, or a generator that the visit made: none of them says that it was drawn from.
_CIRCUMSTANCES = "generator IN ('batch', 'key', 'worker') OR starts_with(generator, 'made:')"


def find_drawn_generators(context: Context) -> str:
    """Return SQL for one row of each generator that a visit drew from.

    Beside the worker, or a generator that was made, torch's state is kept for its seed, drawn from or not: such rows are left
    out. So are those of code that asks for the seed in the main process: if the next visit of the batch begins with the same
    state, nothing was drawn in between.
    """
    rows = f"SELECT * FROM rng WHERE run_id = {context.run_literal}"
    visits = "epoch, index, visit"
    torch = f"SELECT {visits}, hash(state, block_digest) AS state FROM ({rows}) WHERE generator = 'torch'"
    # Few states are there twice in an epoch: those of neighbours, or one that was set again.
    twice = f"SELECT epoch, state FROM ({torch}) GROUP BY epoch, state HAVING count(*) > 1"
    kept = (
        f"SELECT {visits} FROM ({torch}) SEMI JOIN ({twice}) USING (epoch, state) JOIN (SELECT {visits}, worker, batch, position "
        f"FROM samples WHERE run_id = {context.run_literal} AND batch IS NOT NULL) USING ({visits}) "
        "WINDOW same AS (PARTITION BY epoch, worker, batch, state ORDER BY position) "
        "QUALIFY position - lag(position) OVER same = 1 OR lead(position) OVER same - position = 1"
    )
    return (
        f"(FROM ({rows}) WHERE NOT ({_CIRCUMSTANCES}) AND NOT (generator = 'torch' AND (({visits}) IN "
        f"(SELECT ({visits}) FROM ({rows}) WHERE generator = 'worker' OR starts_with(generator, 'made:')) OR "
        f"({visits}) IN (SELECT ({visits}) FROM ({kept})))))"
    )
