"""Merging parts: the same rows, fewer files, and readers never notice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import audit
from audit.errors import StoreDamaged
from audit.store.batch import table_of
from audit.store.writer import RunWriter

TABLES = ("samples", "stage_outputs", "predictions")


def many_small_parts(place: Path, batches: int = 12, size: int = 7) -> str:
    writer = RunWriter.create(str(place))
    run_id = writer.run.run_id
    for batch in range(batches):
        # Later batches hold earlier indices, as under shuffling.
        indices = [(batches - 1 - batch) * size + n for n in range(size)]
        key = {"run_id": [run_id] * size, "epoch": [0] * size, "index": indices, "visit": [0] * size}
        writer.append(
            {
                "samples": table_of(
                    "samples", key | {"status": ["ok"] * size, "source": [f"{i}.png" for i in indices]}
                ),
                "stage_outputs": table_of("stage_outputs", key | {"stage": [0] * size, "digest": ["0" * 32] * size}),
                "predictions": table_of("predictions", key | {"correct": [True] * size, "logits": [[0.5]] * size}),
            }
        )
        writer.flush()
    writer.finish("complete")
    return run_id


def rows(place: Path) -> dict[str, list[tuple[object, ...]]]:
    with audit.open(place) as store:
        return {table: store.sql(f"FROM {table} ORDER BY ALL").fetchall() for table in TABLES}


def test_the_rows_stay_and_the_parts_become_few(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    run_id = many_small_parts(place)
    before = rows(place)
    with audit.open(place) as store:
        merged = store.compact()
        assert (merged.parts_before, merged.parts_after) == (36, 3)
        assert store.verify() == []
        index = [row[0] for row in store.sql("SELECT index FROM samples").fetchall()]
        assert index == sorted(index)
    assert rows(place) == before
    with audit.open(place) as store:
        assert store.compact(run_id).parts_after == 3, "a second merge has nothing to do"
        assert store.compact().parts_before == 3
    assert len(list(place.glob("runs/*/samples/*.parquet"))) == 1, "what an earlier merge replaced is gone by now"
    assert rows(place) == before


def test_readers_read_meanwhile(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    many_small_parts(place)
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        with audit.open(place) as store:
            while not stop.is_set():
                found = store.sql("SELECT count(*), sum(index) FROM samples").fetchone()
                if found != (84, sum(range(84))):
                    wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    with audit.open(place) as store:
        store.compact()
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_a_damaged_part_is_not_merged(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    many_small_parts(place)
    part = sorted(place.glob("runs/*/samples/*.parquet"))[3]
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)
    with audit.open(place) as store, pytest.raises(StoreDamaged):
        store.compact()
    with audit.open(place) as store:
        assert len(store.manifest().parts) == 36


def test_traces_and_replays_survive(pictures: Callable[..., Path], tmp_path: Path) -> None:
    audit.run(pictures(count=9), store=tmp_path / "lineage", workers=0, batch_size=2, commit_every=0.01)
    with audit.open(tmp_path / "lineage") as store:
        digests = [store.trace(index=n).stages[0]["digest"] for n in range(9)]
        store.compact()
        assert [store.trace(index=n).stages[0]["digest"] for n in range(9)] == digests
        assert store.replay(workers=0).identical == 9
