"""What was recorded of the visits that are to be replayed, read chunk by chunk so that memory does not grow with the run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from audit.errors import NotFound, StoreDamaged
from audit.lineage.replay.repeated_calls import count_calls
from audit.lineage.source_state import SourceFields
from audit.records import Stage
from audit.store.read.reader import Reader
from audit.store.read.rows import field_names
from audit.tables import SampleSourceRow

if TYPE_CHECKING:
    from audit.recorders.randomness.generator_states import GeneratorState

Key = tuple[int, int, int]

_CHUNK = 2048
_DIGESTS = "epoch, index, visit, stage, digest, CASE WHEN params LIKE '%\"calls\": %' THEN params END"


class RecordedSample(SourceFields):
    """What a replay compares of one row of `samples`."""

    epoch: int
    index: int
    visit: int
    source_digest: str | None
    status: str
    failed_stage: str | None
    error: str | None


class RecordedVisit(RecordedSample):
    """The same, with the digest of each stage's output by the stage's ordinal, and all files of the sample."""

    stages: dict[int, str | None]
    #: How often a stage was called, where the run has only the last output (repeated_calls.py).
    calls: dict[str, int]
    sources: list[SampleSourceRow]


_SOURCES = "FROM sample_sources WHERE run_id = ? AND {where} ORDER BY epoch, index, visit, ordinal"


class RecordedVisits:
    """The visits of one run."""

    def __init__(self, reader: Reader, run_id: str) -> None:
        self._reader = reader
        self._run_id = run_id
        self.stages = {stage.stage: stage for stage in reader.rows(Stage, run_id, order="stage")}

    def keys(self, indices: Sequence[int], epoch: int | None, split: str | None, sample: int | None) -> list[Key]:
        """Return (epoch, index, visit) of those that are wanted, in order; NotFound where the run has none, whatever the split."""
        conditions: list[str] = ["run_id = ?"]
        parameters: list[Any] = [self._run_id]
        if epoch is not None:
            conditions.append(f"epoch = {int(epoch)}")
        if split is not None:
            conditions.append("split = ?")
            parameters.append(split)
        if indices:
            conditions.append(f"index IN ({_list_numbers(indices)})")
        query = f"SELECT epoch, index, visit FROM samples WHERE {' AND '.join(conditions)} ORDER BY ALL"
        found: list[Key] = self._reader.sql(query, parameters=parameters).fetchall()
        if split is None:
            self._check(found, indices, epoch)
        if sample is not None and sample < len(found):
            # The same visits each time, spread over the run.
            found = sorted(random.Random(0).sample(found, sample))
        return found

    def _check(self, found: list[Key], indices: Sequence[int], epoch: int | None) -> None:
        missing = set(indices) - {index for _, index, _ in found}
        where = f" in epoch {epoch}" if epoch is not None else ""
        if missing:
            raise NotFound(
                f"The run {self._run_id} has no sample with index {sorted(missing)[0]}{where}.",
                hint=f"See them with: audit sql 'FROM samples' --run {self._run_id}",
            )
        if not found and epoch is not None:
            raise NotFound(f"The run {self._run_id} has no epoch {epoch}.", hint="See: audit sql 'FROM samples'")
        if not found:
            # Nothing compared is nothing proved.
            raise NotFound(f"The run {self._run_id} has no samples.", hint="See which runs do with: audit runs")

    def have_predictions(self) -> bool:
        """Return whether any logits were recorded."""
        query = "SELECT 1 FROM graded_predictions WHERE run_id = ? LIMIT 1"
        return bool(self._reader.sql(query, parameters=[self._run_id]).fetchall())

    def find_named_stages(self) -> list[str]:
        """Return the stages that were pointed out by the attribute that holds them, and are known by its name."""
        return [stage.path for stage in self.stages.values() if stage.path.isidentifier()]

    def splits(self) -> list[str]:
        """Return the names that its samples go by, where they have any."""
        query = "SELECT DISTINCT split FROM samples WHERE run_id = ? AND split IS NOT NULL ORDER BY 1"
        return [split for (split,) in self._reader.sql(query, parameters=[self._run_id]).fetchall()]

    def chunks(self, keys: list[Key]) -> Iterator[dict[Key, RecordedVisit]]:
        """Yield samples with the digests of their stages, a few thousand at a time."""
        for start in range(0, len(keys), _CHUNK):
            yield self._facts(keys[start : start + _CHUNK])

    def _facts(self, chunk: list[Key]) -> dict[Key, RecordedVisit]:
        where, wanted = _range_condition(chunk), set(chunk)
        facts: dict[Key, RecordedVisit] = {}
        parameters = [self._run_id]
        query = f"SELECT {', '.join(field_names(RecordedSample))} FROM samples WHERE run_id = ? AND {where}"
        for sample in self._reader.sql(query, parameters=parameters).rows(RecordedSample):
            key = (sample["epoch"], sample["index"], sample["visit"])
            if key in wanted:
                facts[key] = RecordedVisit(**sample, stages={}, calls={}, sources=[])
        for row in self._reader.sql(_SOURCES.format(where=where), parameters=parameters).rows(SampleSourceRow):
            key = (row["epoch"], row["index"], row["visit"])
            if key in facts:
                facts[key]["sources"].append(row)
        query = f"SELECT {_DIGESTS} FROM stage_outputs WHERE run_id = ? AND {where}"
        for epoch, index, visit, stage, digest, params in self._reader.sql(query, parameters=parameters).fetchall():
            if (epoch, index, visit) in facts:
                facts[epoch, index, visit]["stages"][stage] = digest
                if (count := count_calls(params)) > 1 and stage in self.stages:
                    facts[epoch, index, visit]["calls"][self.stages[stage].path] = count
        return facts

    def states(self, chunk: Sequence[Key]) -> dict[Key, dict[str, GeneratorState]]:
        """Return the recorded generator states; a twister's array is stored once and found by its digest."""
        from audit.recorders.randomness.generator_states import GeneratorState

        columns = "epoch, index, visit, generator, state, block_digest, block"
        query = f"SELECT {columns} FROM rng WHERE run_id = ? AND {_range_condition(chunk)}"
        rows = self._reader.sql(query, parameters=[self._run_id]).fetchall()
        blocks = {digest: block for *_, digest, block in rows if block is not None}
        # The rest lies with visits outside this chunk, and those may be anywhere in the run.
        outside = {digest for *_, digest, _ in rows if digest and digest.isalnum() and digest not in blocks}
        blocks |= self._blocks(sorted(outside))
        if outside - set(blocks):
            raise StoreDamaged(
                f"Generator states of the run {self._run_id} are incomplete.",
                hint="Run `audit store verify` to see what is.",
            )
        states: dict[Key, dict[str, GeneratorState]] = {}
        for epoch, index, visit, generator, state, digest, _ in rows:
            found = GeneratorState(state, blocks.get(digest, b"") if digest else b"")
            states.setdefault((epoch, index, visit), {})[generator] = found
        return states

    def _blocks(self, needed: list[str]) -> dict[str, bytes]:
        blocks: dict[str, bytes] = {}
        for start in range(0, len(needed), 500):
            listed = ", ".join(f"'{digest}'" for digest in needed[start : start + 500])
            query = (
                "SELECT block_digest, any_value(block) FROM rng WHERE run_id = ? AND block IS NOT NULL "
                f"AND block_digest IN ({listed}) GROUP BY 1"
            )
            blocks |= dict(self._reader.sql(query, parameters=[self._run_id]).fetchall())
        return blocks

    def logits(self, chunk: Sequence[Key]) -> dict[Key, list[float]]:
        """Return the recorded logits."""
        query = (
            f"SELECT epoch, index, visit, logits FROM graded_predictions WHERE run_id = ? AND {_range_condition(chunk)}"
        )
        rows = self._reader.sql(query, parameters=[self._run_id]).fetchall()
        return {(epoch, index, visit): logits for epoch, index, visit, logits in rows if logits is not None}


def _range_condition(chunk: Sequence[Key]) -> str:
    """Return a condition that few other visits fulfil: parts are read by ranges of epoch and index."""
    epochs = [epoch for epoch, _, _ in chunk]
    indices = {index for _, index, _ in chunk}
    where = f"epoch BETWEEN {min(epochs)} AND {max(epochs)} AND index BETWEEN {min(indices)} AND {max(indices)}"
    return where if max(indices) - min(indices) < 2 * len(chunk) else f"{where} AND index IN ({_list_numbers(indices)})"


def _list_numbers(numbers: Sequence[int] | set[int]) -> str:
    return ", ".join(str(int(number)) for number in sorted(numbers))
