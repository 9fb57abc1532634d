"""Compare what the loaders of a recorded loop should draw with what they drew, in one process or over all ranks.

A complete pass of a sampler that draws everything leaves out only what `drop_last` drops, which is a warning in an
evaluation split. Other samplers, and loops that stop early, may leave out any sample: that is a note with the outcome,
and not a finding unless the configuration says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from audit.checks.base import Finding
from audit.checks.context import Context
from audit.checks.integrity import ranks
from audit.checks.shared.fingerprint import distinct_indices
from audit.records import Run
from audit.split_names import is_evaluation
from audit.store.read.rows import Row
from audit.store.sql_literal import literal

#: A sampler draws too few samples if it gives at most this share of the different ones that it could, of a dataset with at least so many.
_FEW, _ENOUGH = 0.1, 60


class _EpochDraws(TypedDict):
    """How many samples were drawn in an epoch, each counted once."""

    epoch: int
    indices: int


class _FewSamples(TypedDict):
    """An epoch in which many draws gave few samples, and the one that was drawn most often."""

    epoch: int
    draws: int
    samples: int
    index: int


@dataclass(slots=True)
class PlannedDraws:
    """What complete passes of one epoch and split should draw, over all ranks."""

    length: int
    asked: int = 0
    dropped: int = 0

    @property
    def missing_limit(self) -> int:
        """Return how many samples may be missing: dropped with the last batch, or assigned to no rank."""
        return self.dropped + max(0, self.length - self.asked)


def find_missing(context: Context) -> Iterable[Finding]:
    """Report samples that should have been drawn in an epoch, but were not."""
    runs = ranks.ranks_of(context)
    if not any("loaders" in run.recipe for run in runs):
        # Recorded by a version that did not store what loaders should draw.
        if ranks.is_distributed(context):
            yield from ranks.find_missing(context)
        else:
            context.note("the run does not say how many samples were requested, so missing samples cannot be found")
        return
    if why := ranks.why_unknown(context, runs):
        context.note(f"{why}, so samples that were not drawn cannot be found")
        return
    drawn = _RankDraws(context, runs)
    for split, length in sorted(drawn.lengths, key=str):
        yield from drawn.gaps(split, length)
    yield from drawn.find_never_drawn()


class _RankDraws:
    """The draws of several runs, one for each rank."""

    def __init__(self, context: Context, runs: list[Run]) -> None:
        self._context = context
        self._names = [run.run_id for run in runs]
        listed = ", ".join(map(literal, self._names)) or "NULL"
        self._samples = f"(SELECT epoch, split, index FROM samples WHERE run_id IN ({listed}))"
        self._loaders = [loader for run in runs for loader in run.recipe.get("loaders", ())]
        self._planned: dict[tuple[str | None, int], dict[int, PlannedDraws]] = {}
        for run in runs:
            self._take(run)

    @property
    def lengths(self) -> Iterable[tuple[str | None, int]]:
        """Return the splits with complete passes, and the number of samples of each."""
        return self._planned.keys()

    def _take(self, run: Run) -> None:
        """Add what one rank should draw. Of several loaders of one split and length, the one that draws least counts."""
        own: dict[tuple[str | None, int, int], PlannedDraws] = {}
        for loader in run.recipe.get("loaders", ()):
            for one in loader["passes"]:
                for epoch in range(one["first"], one["last"] + 1):
                    least = own.setdefault(
                        (loader["split"], one["length"], epoch),
                        PlannedDraws(one["length"], one["asked"], one["dropped"]),
                    )
                    least.asked = min(least.asked, one["asked"])
                    least.dropped = max(least.dropped, one["dropped"])
        for (split, length, epoch), planned in own.items():
            total = self._planned.setdefault((split, length), {}).setdefault(epoch, PlannedDraws(length))
            total.asked += planned.asked
            total.dropped += planned.dropped

    def gaps(self, split: str | None, length: int) -> Iterable[Finding]:
        """Report samples that complete passes did not draw."""
        by_epoch = self._planned[split, length]
        rows = f"{self._samples} WHERE split IS NOT DISTINCT FROM {literal(split)} AND index BETWEEN 0 AND {length - 1}"
        counts: Mapping[int, int] = {
            row["epoch"]: row["indices"]
            for row in self._ask(
                _EpochDraws, f"SELECT epoch, {distinct_indices(length)} AS indices FROM {rows} GROUP BY epoch"
            )
        }
        left = {epoch: length - counts.get(epoch, 0) for epoch in by_epoch}
        if spared := [left[epoch] for epoch, planned in by_epoch.items() if 0 < left[epoch] <= planned.missing_limit]:
            if is_evaluation(split) and any(planned.dropped for planned in by_epoch.values()):
                yield _make_dropped_finding(str(split), max(spared), length, rows)
            self._context.note(
                f"up to {max(spared):,} of {length:,} samples were left out of an epoch, because of drop_last or a rank that "
                "stopped early"
            )
        owing = [epoch for epoch, planned in by_epoch.items() if left[epoch] > planned.missing_limit]
        if not owing:
            return
        query = (
            f"SELECT e.epoch, i.index FROM (SELECT unnest({owing}) AS epoch) e "
            f"CROSS JOIN (SELECT unnest(range({length})) AS index) i "
            f"ANTI JOIN (FROM {rows}) s ON s.epoch = e.epoch AND s.index = i.index"
        )
        said = "drawn by no rank" if ranks.is_distributed(self._context) else "not drawn"
        for row in self._context.offenders(query, "epoch, index", runs=self._names):
            yield Finding(
                f"Sample {row['index']} was {said} in epoch {row['epoch']}, although the loader ran to its end.",
                index=row["index"],
                sql=query,
            )

    def find_never_drawn(self) -> Iterable[Finding]:
        """Report samples of a dataset that no epoch drew."""
        lengths: dict[str | None, int] = {}
        for loader in self._loaders:
            if loader["length"] is not None:
                lengths[loader["split"]] = max(loader["length"], lengths.get(loader["split"], 0))
        for split, length in lengths.items():
            rows = f"{self._samples} WHERE split IS NOT DISTINCT FROM {literal(split)}"
            yield from self._find_few_drawn(split, length, rows)
            if self._count(f"SELECT {distinct_indices(length)} FROM {rows}") == length:
                continue
            query = f"SELECT range AS index FROM range({length}) WHERE range NOT IN (SELECT index FROM {rows})"
            yield from self._find_undrawn(split, length, query)

    def _find_few_drawn(self, split: str | None, length: int, rows: str) -> Iterable[Finding]:
        """Report a sampler that draws as often as there are samples, but always the same few."""
        query = (
            "SELECT epoch, count(*) AS draws, count(DISTINCT index) AS samples, mode(index) AS index "
            f"FROM {rows} GROUP BY epoch HAVING 2 * draws >= {length} AND samples <= {_FEW} * least(draws, {length})"
        )
        for row in self._ask(_FewSamples, f"FROM ({query}) ORDER BY epoch LIMIT 1") if length >= _ENOUGH else ():
            which = f" of {split}" if split else ""
            yield Finding(
                f"In epoch {row['epoch']} {row['draws']:,} draws gave only {row['samples']:,} of the {length:,} samples{which}. "
                "Do the sampler's weights have one entry for each sample, not for each class?",
                index=row["index"],
                value=row["samples"] / length,
                threshold=_FEW,
                sql=query,
                severity="warning",
            )

    def _find_undrawn(self, split: str | None, length: int, query: str) -> Iterable[Finding]:
        if self._context.options["every_sample"]:
            for row in self._context.offenders(query, runs=self._names):
                yield Finding(f"Sample {row['index']} was drawn in no epoch.", index=row["index"], sql=query)
        elif left := self._count(f"SELECT count(*) FROM ({query})"):
            which = f" of {split}" if split else ""
            self._context.note(f"{left:,} of the {length:,} samples{which} were drawn in no epoch")

    def _ask(self, row: type[Row], query: str) -> list[Row]:
        return self._context.typed_rows(row, query, runs=self._names)

    def _count(self, query: str) -> int:
        """Return the one number of a query."""
        (row,) = self._context.rows(query, runs=self._names)
        (count,) = row.values()
        return int(count)


def find_short_streams(context: Context) -> Iterable[Finding]:
    """Report streams that gave nothing in an epoch, or less than half as many items as in another."""
    for loader in context.run.recipe.get("loaders", ()):
        passes = loader.get("streamed", ())
        most = max((one["items"] for one in passes), default=0)
        short = [one for one in passes if 2 * one["items"] < most]
        if not short:
            continue
        least = min(short, key=lambda one: one["items"])
        whose = f"of {loader['split']} " if loader["split"] else ""
        given = f"only {least['items']:,} items" if least["items"] else "no item"
        count = sum(one["last"] - one["first"] + 1 for one in short)
        others = f", as in {count - 1:,} other epochs" if count > 1 else ""
        yield Finding(
            f"The stream {whose}gave {given} in epoch {least['first']}{others}, and {most:,} in the longest: is it a generator that "
            "can be read once, or was it read to its end elsewhere?",
            value=least["items"],
            threshold=most,
            sql=f"SELECT epoch, count(*) AS items FROM samples WHERE run_id = {context.run_literal} GROUP BY epoch ORDER BY epoch",
            severity="warning" if least["items"] else None,
        )


def _make_dropped_finding(split: str, dropped: int, length: int, rows: str) -> Finding:
    said = "1 sample is" if dropped == 1 else f"{dropped:,} samples are"
    return Finding(
        f"{said} left out of each epoch of the split {split} ({length:,} samples), because its loader has drop_last=True: no result of "
        "the split includes them. Set drop_last=False for evaluation.",
        value=dropped,
        threshold=0,
        sql=f"SELECT range AS index FROM range({length}) WHERE range NOT IN (SELECT index FROM {rows})",
        severity="warning",
    )
