"""Parts that other processes write: nothing of them exists until the run's writer adopts them, and then all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_cases import visit_tables

import audit
from audit.errors import StoreError
from audit.store.write.block import Block, BlockWriter
from audit.store.write.writer import RunWriter


def block(place: Path, run_id: str, number: int, indices: list[int]) -> Block:
    writer = BlockWriter(str(place), run_id, number)
    for index in indices:
        writer.append(visit_tables(run_id, [index], batch=number))
    return writer.finish()


def test_one_attempt_is_adopted_and_the_others_are_swept_up(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path))
    run_id = writer.run.run_id
    first, again, other = (block(tmp_path, run_id, n, i) for n, i in ((0, [0, 1, 2]), (0, [0, 1, 2]), (1, [5, 3, 4])))
    assert not {part.file for part in first.parts} & {part.file for part in again.parts}
    stranger = tmp_path / "runs" / run_id / "samples" / "notes.txt"
    stranger.write_text("not ours")
    with audit.open(tmp_path) as store:
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (0,)
    writer.adopt(again.parts, again.tally)
    writer.adopt(other.parts, other.tally)
    done = writer.finish("complete", sweep=True)
    assert (done.samples, done.graded, done.wrong, done.accuracy) == (6, 6, 2, 4 / 6)
    with audit.open(tmp_path) as store:
        assert store.verify() == []
        assert store.sql("SELECT index, count(*) FROM predictions GROUP BY 1 ORDER BY 1").fetchall() == [
            (n, 1) for n in range(6)
        ]
        assert len(store.reader.manifest(run_id).parts) == 6
    assert len(list(tmp_path.rglob("*.parquet"))) == 6
    assert stranger.exists()


def test_a_part_that_this_machine_cannot_see_is_refused(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path / "here"))
    elsewhere = block(tmp_path / "there", writer.run.run_id, 0, [0])
    with pytest.raises(StoreError, match="cannot be found in") as refused:
        writer.adopt(elsewhere.parts, elsewhere.tally)
    assert "shared" in str(refused.value.hint)
    assert writer.finish("failed").samples == 0
