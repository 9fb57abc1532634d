"""Merging parts: the same rows, fewer files, and readers never notice."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from store_cases import tree_digest, visit_tables

import audit
from audit.cli.main import cli
from audit.errors import NotFound, StoreDamaged, StoreError
from audit.records import Part
from audit.store.local_filesystem import LocalFilesystem
from audit.store.maintain import compact as maintenance
from audit.store.maintain import sorting as order
from audit.store.maintain.amend import append_findings, tag_run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter
from audit.tables import PredictionRow

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


@pytest.mark.slow
def test_a_run_too_large_for_one_part_is_sorted_across_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shuffled over three epochs, with values that a way through another program might change."""
    monkeypatch.setattr(maintenance, "_PART_ROWS", 200)
    monkeypatch.setattr(order, "_BATCH", 100)
    place, chance = tmp_path / "lineage", random.Random(3)
    writer = RunWriter.create(str(place))
    run_id = writer.run.run_id
    for epoch in range(3):
        indices = list(range(300))
        chance.shuffle(indices)
        for start in range(0, 300, 50):
            writer.append(_odd_visits(run_id, epoch, indices[start : start + 50], chance))
            writer.flush()
    writer.finish("complete")
    before = exactly(place)
    with audit.open(place) as store:
        merged = store.compact()
        assert merged.parts_before == 18 * 3
        assert store.verify() == []
        listed = store.reader.manifest().parts
        for table in TABLES:
            parts = [part for part in listed if part.table == table]
            assert len(parts) > 1
            assert all(a.last_index <= b.first_index for a, b in itertools.pairwise(parts))  # type: ignore[operator]
            found = [row["index"] for part in parts for row in pq.read_table(_file(place, run_id, part)).to_pylist()]
            assert found == sorted(found)
        again = store.compact()
        assert again.parts_after == merged.parts_after
        assert store.reader.manifest().parts == listed, "what is in order stays as it is"
    assert exactly(place) == before


def _odd_visits(run_id: str, epoch: int, indices: list[int], chance: random.Random) -> dict[str, pa.Table]:
    count = len(indices)
    key = {"run_id": [run_id] * count, "epoch": [epoch] * count, "index": indices, "visit": [0] * count}
    numbers = [float("nan"), -0.0, 5e-324, float("inf"), 1 / 3, None]
    texts = ["", None, "ä\x00b", "\U0001f600", 'it\'s "quoted"']
    odd = {"min": [chance.choice(numbers) for _ in indices], "name": [chance.choice(texts) for _ in indices]}
    shapes = [chance.choice([[], None, [3, 224, 224]]) for _ in indices]
    logits = [chance.choice([None, [], [0.1, float("nan")]]) for _ in indices]
    return {
        "samples": table_of("samples", key | {"status": ["ok"] * count, "source": odd["name"]}),
        "stage_outputs": table_of("stage_outputs", key | odd | {"stage": [0] * count, "shape": shapes}),
        "predictions": table_of("predictions", key | {"correct": [True] * count, "logits": logits}),
    }


def _file(place: Path, run_id: str, part: Part) -> Path:
    return place / "runs" / run_id / part.file


def exactly(place: Path) -> dict[str, list[str]]:
    """Every row of the listed parts, with the column types, read by pyarrow alone."""
    found: dict[str, list[str]] = {}
    with audit.open(place) as store:
        manifest = store.reader.manifest()
    for part in manifest.parts:
        table = pq.read_table(_file(place, manifest.run.run_id, part))
        found.setdefault(part.table, []).extend(f"{row!r} {table.schema}" for row in table.to_pylist())
    return {table: sorted(rows) for table, rows in found.items()}


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


def test_a_reader_of_parts_that_are_gone_is_asked_to_open_the_store_again(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    run_id = many_small_parts(place)
    with audit.open(place) as old, audit.open(place) as store:
        store.compact()
        assert old.sql("SELECT count(*) FROM samples").fetchall() == [(84,)], (
            "what was merged stays until the next time"
        )
        store.compact()
        with pytest.raises(StoreError, match=f"{run_id} was merged or removed by another process"):
            old.sql("SELECT sum(index) FROM predictions").fetchall()
        old.refresh()
        assert old.sql("SELECT count(*) FROM samples").fetchall() == [(84,)]
        store.remove(run_id)
        with pytest.raises(StoreError, match="merged or removed"):
            old.reader.rows(PredictionRow, run_id, index=3)
        for change in (
            old.compact,
            lambda: tag_run(old.reader, run_id, {"a": "b"}),
            lambda: append_findings(old.reader, run_id, []),
        ):
            with pytest.raises(NotFound, match="no longer in the store"):
                change()
    assert not list(place.glob("runs/*")), "nor does asking make its folder again"


def damage(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)


def test_a_damaged_part_is_not_merged(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    damaged, whole = many_small_parts(place, batches=4), many_small_parts(place, batches=4)
    files = place / "runs" / damaged
    damage(sorted(files.glob("predictions/*.parquet"))[3])
    before = tree_digest(files)
    with audit.open(place) as store, pytest.raises(StoreDamaged):
        store.compact(damaged)
    assert tree_digest(files) == before, "neither merged parts of other tables nor a deleted one"
    reported = CliRunner().invoke(cli, ["store", "compact", "--json", "--store", str(place)])
    assert reported.exit_code == 1
    assert [(run["run_id"], run["parts_after"]) for run in json.loads(reported.stdout)] == [(whole, 3)]
    assert f"{damaged} was not merged" in reported.stderr
    with audit.open(place) as store:
        assert (len(store.reader.manifest(damaged).parts), len(store.reader.manifest(whole).parts)) == (12, 3)


def test_what_was_merged_before_is_kept_until_the_next_merge_succeeds(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    run_id = many_small_parts(place, batches=3)
    with audit.open(place) as store:
        store.compact()
    writer = RunWriter.resume(str(place), run_id)
    writer.append(visit_tables(run_id, [100]))
    writer.finish("complete")
    (merged,) = place.glob("runs/*/samples/merged-*.parquet")
    damage(merged)
    with audit.open(place) as store, pytest.raises(StoreDamaged):
        store.compact()
    assert len(list(place.glob("runs/*/samples/part-*.parquet"))) == 4, "the rows can still be read from these"


@pytest.mark.workers
def test_a_full_disk_is_no_fuller_afterwards(tiny_disk: Path) -> None:
    place = tiny_disk / "s"
    many_small_parts(place, batches=8, size=300)
    before = tree_digest(place)
    free = os.statvfs(tiny_disk).f_bavail * os.statvfs(tiny_disk).f_frsize
    (tiny_disk / "filler").write_bytes(bytes(free - 12_288))  # room for two merged parts, not for all three
    with audit.open(place) as store, pytest.raises(StoreError, match="disk is full"):
        store.compact()
    assert tree_digest(place) == before


class Killed(BaseException):
    """The process ends here: nothing that follows is done."""


@pytest.mark.slow
def test_killed_at_any_step_it_has_merged_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = tmp_path / "lineage"
    run_id = many_small_parts(origin, batches=3, size=2)
    with audit.open(origin) as store:
        store.compact()
    writer = RunWriter.resume(str(origin), run_id)
    writer.append(visit_tables(run_id, [100]))
    writer.finish("complete")
    expected = rows(origin)
    steps = itertools.count()
    last = 0

    def until_killed(function: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: object) -> None:
            if next(steps) == last:
                raise Killed
            function(*arguments)

        return step

    ended = False
    while not ended:
        place = tmp_path / f"{last}"
        shutil.copytree(origin, place)
        steps = itertools.count()
        with monkeypatch.context() as patch, audit.open(place) as store:
            for name in ("create", "replace", "remove"):
                patch.setattr(LocalFilesystem, name, until_killed(getattr(LocalFilesystem, name)))
            try:
                store.compact()
                ended = True
            except Killed:
                last += 1
        with audit.open(place) as store:
            assert len(store.reader.manifest().parts) in (3, 6)
            assert store.verify() == []
        assert rows(place) == expected
    assert last == 3 + 1 + 9, "three merged parts, the commit, and nine old parts to delete"


def test_epochs_visits_and_rows_of_no_sample_are_merged_too(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = RunWriter.create(str(place))
    run_id = writer.run.run_id
    for epoch, index, visit in [(1, 5, 0), (0, 7, 1), (0, 7, 0), (1, 2, 0), (0, None, None), (0, 2, 0)]:
        key = {"run_id": [run_id], "epoch": [epoch], "index": [index], "visit": [visit]}
        stamped = key | {"step": [0], "layer": ["fc"], "payload": [bytes(9)]}
        writer.append({"activations": table_of("activations", stamped)})
        if index is not None:
            writer.append({"samples": table_of("samples", key | {"status": ["ok"], "source": [f"{index}"]})})
        writer.flush()
    writer.finish("complete")
    query = "SELECT epoch, index, visit, layer, payload FROM activations ORDER BY ALL"
    with audit.open(place) as store:
        before = store.sql(query).fetchall()
        assert store.compact().parts_after == 2
        assert store.sql(query).fetchall() == before
        order = store.sql("SELECT index, epoch, visit FROM samples").fetchall()
        assert order == sorted(order)


def test_traces_and_replays_survive(pictures: Callable[..., Path], tmp_path: Path) -> None:
    audit.run(pictures(count=9), store=tmp_path / "lineage", workers=0, batch_size=2, commit_every=0.01)
    with audit.open(tmp_path / "lineage") as store:
        digests = [store.trace(index=n).stages[0]["digest"] for n in range(9)]
        store.compact()
        assert [store.trace(index=n).stages[0]["digest"] for n in range(9)] == digests
        assert store.replay(workers=0).identical == 9
