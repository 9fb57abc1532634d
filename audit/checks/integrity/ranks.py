"""What the ranks of a distributed loop recorded together: each rank has its own run (see recorders.ranks)."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Finding
from audit.checks.context import Context
from audit.records import Run
from audit.store.sql_literal import literal

#: The same name as in recorders.ranks, which checks cannot import because it imports torch.
_GROUP = "distributed"


def is_distributed(context: Context) -> bool:
    """Return whether this run belongs to one of several ranks."""
    return _GROUP in context.run.tags


def ranks_of(context: Context) -> list[Run]:
    """Return the runs of all ranks of this loop; only this run if the loop was not distributed."""
    group = context.run.tags.get(_GROUP)
    runs = [run for run in context.reader.runs() if run.tags.get(_GROUP) == group] if group else []
    return runs or [context.run]


def samples_of(context: Context, runs: list[Run]) -> str:
    """Return SQL for the samples of several runs; for one run, only the samples that this check looks at."""
    if len(runs) < 2:
        return context.samples
    return f"(SELECT * FROM samples WHERE run_id IN ({', '.join(literal(run.run_id) for run in runs)}))"


def find_padding(context: Context) -> Iterable[Finding]:
    """Report samples that two ranks drew in one epoch."""
    runs = ranks_of(context)
    samples, names = samples_of(context, runs), [run.run_id for run in runs]
    if not context.rows(f"SELECT min(rank) < max(rank) AS several FROM {samples}", runs=names)[0]["several"]:
        return
    query = (
        f"SELECT epoch, index, any_value(source) AS source, list_sort(list(DISTINCT rank)) AS ranks "
        f"FROM {samples} GROUP BY epoch, split, index HAVING count(DISTINCT rank) > 1"
    )
    for row in context.offenders(query, "epoch, index", runs=names):
        ranks = ", ".join(map(str, row["ranks"]))
        yield Finding(
            f"{row['source']} (index {row['index']}) was drawn by the ranks {ranks} in epoch {row['epoch']}: "
            "a distributed sampler padded with it, so it counts more than once.",
            index=row["index"],
            source=row["source"],
            value=len(row["ranks"]),
            threshold=1,
            sql=f"SELECT run_id, epoch, index, rank FROM {samples} WHERE index = {row['index']}",
        )


def why_unknown(context: Context, runs: list[Run]) -> str | None:
    """Return why it is unknown what these runs drew together, or None."""
    several = is_distributed(context)
    here = {int(run.tags.get("rank", -1)) for run in runs}
    absent = set(range(int(context.run.tags.get("world_size", 1)))) - here if several else set()
    if absent:
        return f"rank {', '.join(map(str, sorted(absent)))} recorded nothing"
    if any(run.status != "complete" for run in runs):
        return "not all ranks finished" if several else "the run did not finish"
    return None


def find_missing(context: Context) -> Iterable[Finding]:
    """Report samples that no rank drew in an epoch, although another epoch drew them or a greater index: for runs that
    do not store what their loaders should draw."""
    runs = ranks_of(context)
    if why := why_unknown(context, runs):
        context.note(f"{why}, so samples that no rank drew cannot be found")
        return
    samples = samples_of(context, runs)
    query = (
        f"SELECT e.epoch, e.split, i.index FROM (SELECT DISTINCT epoch, split FROM {samples}) e "
        # An index exists if some epoch drew it, or drew a greater one.
        f"JOIN (SELECT split, unnest(range(max(index) + 1)) AS index FROM {samples} GROUP BY split) i "
        "ON e.split IS NOT DISTINCT FROM i.split "
        f"ANTI JOIN {samples} s ON s.epoch = e.epoch AND s.index = i.index AND s.split IS NOT DISTINCT FROM e.split"
    )
    for row in context.offenders(query, "epoch, index", runs=[run.run_id for run in runs]):
        yield Finding(
            f"Sample {row['index']} was drawn by no rank in epoch {row['epoch']}.", index=row["index"], sql=query
        )
