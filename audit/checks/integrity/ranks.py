"""What the ranks of a distributed loop recorded between them: each has a run of its own (see recorders.ranks)."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Finding
from audit.checks.context import Context, literal
from audit.records import Run

#: As recorders.ranks names it; recorders import torch, and checks do not.
_GROUP = "distributed"


def distributed(context: Context) -> bool:
    """Whether this run is one rank's of several."""
    return _GROUP in context.run.tags


def ranks_of(context: Context) -> list[Run]:
    """The runs of all ranks that recorded this loop; this run alone where it was not distributed."""
    group = context.run.tags.get(_GROUP)
    runs = [run for run in context.reader.runs() if run.tags.get(_GROUP) == group] if group else []
    return runs or [context.run]


def samples_of(context: Context, runs: list[Run]) -> str:
    """The samples of several runs, as SQL; those that this check looks at, where it is one."""
    if len(runs) < 2:
        return context.samples
    return f"(SELECT * FROM samples WHERE run_id IN ({', '.join(literal(run.run_id) for run in runs)}))"


def padding(context: Context) -> Iterable[Finding]:
    """Samples that two ranks drew in one epoch."""
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


def unknowable(context: Context, runs: list[Run]) -> str | None:
    """Why it cannot be known what these runs drew between them, or None."""
    several = distributed(context)
    here = {int(run.tags.get("rank", -1)) for run in runs}
    absent = set(range(int(context.run.tags.get("world_size", 1)))) - here if several else set()
    if absent:
        return f"rank {', '.join(map(str, sorted(absent)))} recorded nothing"
    if any(run.status != "complete" for run in runs):
        return "not all ranks finished" if several else "the run did not finish"
    return None


def missing(context: Context) -> Iterable[Finding]:
    """Samples that no rank drew in an epoch, though another epoch did, or there is a greater one: all that is known
    of a run that does not tell what its loaders were to draw."""
    runs = ranks_of(context)
    if why := unknowable(context, runs):
        context.note(f"{why}, so what no rank drew cannot be told")
        return
    samples = samples_of(context, runs)
    query = (
        f"SELECT e.epoch, e.split, i.index FROM (SELECT DISTINCT epoch, split FROM {samples}) e "
        # A sample that any epoch drew, or that has a greater one behind it, is there to be drawn.
        f"JOIN (SELECT split, unnest(range(max(index) + 1)) AS index FROM {samples} GROUP BY split) i "
        "ON e.split IS NOT DISTINCT FROM i.split "
        f"ANTI JOIN {samples} s ON s.epoch = e.epoch AND s.index = i.index AND s.split IS NOT DISTINCT FROM e.split"
    )
    for row in context.offenders(query, "epoch, index", runs=[run.run_id for run in runs]):
        yield Finding(
            f"Sample {row['index']} was drawn by no rank in epoch {row['epoch']}.", index=row["index"], sql=query
        )
