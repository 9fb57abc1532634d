"""Nothing committed is ever lost: kills, two writers, contention, a full disk, and readers that look meanwhile."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupting import raised_by_a_signal
from store_cases import STAGES, record, stage_table, visit_tables, wait_for_a_commit, write_forever

import audit
from audit.errors import AuditError, NotFound, StoreBusy, StoreError, StoreReadOnly
from audit.store.filesystem import filesystem_for
from audit.store.local_filesystem import LocalFilesystem
from audit.store.write.background import BackgroundWriter
from audit.store.write.writer import RunWriter

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SUPPORT = HERE.parents[1] / "support"

# Processes are forked from one that has imported everything and started no thread: quick, and safe.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["store_cases"])


@contextlib.contextmanager
def writing(place: Path, resume: str = "") -> Iterator[Any]:
    """A process that writes until the block ends; gives the connection on which it tells its run's id."""
    hears, tells = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=write_forever, args=(str(place), resume, tells))
    process.start()
    tells.close()
    try:
        yield hears
    finally:
        process.kill()
        process.join()
        hears.close()


def whole_visits(store: audit.Store) -> dict[str, int]:
    """How many visits each run has; each must have its stages and its prediction, and the run's row must count them."""
    rows = store.sql(f"""
        SELECT runs.run_id, runs.samples, s.visits, s.highest, coalesce(o.outputs, 0), coalesce(p.predictions, 0)
        FROM runs
        LEFT JOIN (
            SELECT run_id, count(DISTINCT index) AS visits, max(index) AS highest FROM samples GROUP BY 1
        ) s USING (run_id)
        LEFT JOIN (
            SELECT run_id, count(DISTINCT index * {len(STAGES)} + stage) AS outputs FROM stage_outputs GROUP BY 1
        ) o USING (run_id)
        LEFT JOIN (SELECT run_id, count(*) AS predictions FROM predictions GROUP BY 1) p USING (run_id)
    """).fetchall()
    for run_id, samples, visits, highest, outputs, predictions in rows:
        assert (visits or 0) == samples == predictions, run_id
        assert samples == 0 or highest == samples - 1, run_id
        assert outputs == samples * len(STAGES), run_id
    return {row[0]: row[1] for row in rows}


@pytest.mark.workers
def test_a_killed_writer_loses_nothing_that_it_committed(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    earlier = record(place, samples=12, name="earlier")
    chance = random.Random(7)
    killed: list[str] = []
    for attempt in range(16):
        # Every third takes up a run that was killed before; some are killed while they begin.
        with writing(place, killed[-1] if killed and attempt % 3 == 2 else "") as reported:
            if attempt % 4:
                killed.append(reported.recv())
            time.sleep(chance.uniform(0, 0.12))
            if attempt == 15:
                # One at least is killed after a commit, however slow the machine is.
                wait_for_a_commit(place, killed[-1])
        with audit.open(place) as store:
            assert store.run("latest").run_id == earlier.run_id
            assert store.damaged == []
            for run in store.runs():
                assert run.status == ("complete" if run.run_id == earlier.run_id else "interrupted")
            whole_visits(store)
    with audit.open(place) as store:
        assert store.verify() == []
        assert set(killed) <= {run.run_id for run in store.runs()}
        counts = whole_visits(store)
    assert counts.pop(earlier.run_id) == 12
    assert max(counts.values()) > 0
    for run_id, count in counts.items():
        writer = RunWriter.resume(str(place), run_id)
        writer.append(visit_tables(run_id, list(range(count, count + 3))))
        assert writer.finish("complete").samples == count + 3
    with audit.open(place) as store:
        assert {run.status for run in store.runs()} == {"complete"}
        assert whole_visits(store) == {earlier.run_id: 12} | {run_id: count + 3 for run_id, count in counts.items()}
        assert store.verify() == []


@pytest.mark.slow
def test_a_reader_sees_whole_commits_while_a_writer_writes(tmp_path: Path) -> None:
    place = tmp_path / "s"
    writer = RunWriter.create(str(place))
    run_id = writer.run.run_id
    writer.append({"stages": stage_table(run_id)})
    failure: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(60):
                writer.append(visit_tables(run_id, list(range(number * 4, number * 4 + 4))))
                writer.flush()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[Any] = []
    with audit.open(place) as store:
        while thread.is_alive() and len(seen) < 200:
            store.refresh()
            assert store.run(run_id).status == "running"
            seen.append(whole_visits(store)[run_id])
            assert seen[-1] % 4 == 0
        thread.join()
        assert not failure
        writer.finish("complete")
        assert seen == sorted(seen)
        store.refresh()
        assert whole_visits(store)[run_id] == 240


def test_an_open_store_stays_as_it_was_until_it_is_refreshed(tmp_path: Path) -> None:
    place = tmp_path / "s"
    record(place, samples=5)
    with audit.open(place) as store:
        before = store.sql("SELECT count(*) FROM lineage")
        record(place, samples=6)
        assert before.fetchone() == (5,)
        assert len(store.runs()) == 1
        store.refresh()
        assert store.sql("SELECT count(*) FROM lineage").fetchone() == (11,)


@pytest.mark.workers
def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "s"
    writer = RunWriter.create(str(place))
    with pytest.raises(StoreBusy) as refused:
        RunWriter.resume(str(place), writer.run.run_id)
    assert refused.value.hint
    with writing(place) as reported:
        other = reported.recv()
        with pytest.raises(StoreBusy):
            RunWriter.resume(str(place), other)
        with audit.open(place) as store, pytest.raises(StoreBusy):
            store.remove(other)
    writer.abandon()
    RunWriter.resume(str(place), other).finish("complete")
    RunWriter.resume(str(place), writer.run.run_id).finish("complete")
    with pytest.raises(NotFound):
        RunWriter.resume(str(place), "20990101-000000-ffffff")
    assert not (place / "runs" / "20990101-000000-ffffff").exists()


def _contend(place: str, number: int, names: int, won: Any) -> None:
    filesystem = LocalFilesystem(place)
    for name in range(names):
        try:
            filesystem.create(f"c/{name}", f"{number}".encode() * 1000)
        except FileExistsError:
            continue
        won.put((name, number))
    won.put(None)


@pytest.mark.workers
def test_of_four_processes_that_create_a_file_exactly_one_wins(tmp_path: Path) -> None:
    won: Any = _PROCESSES.Queue()
    crowd = [_PROCESSES.Process(target=_contend, args=(str(tmp_path), n, 150, won)) for n in range(4)]
    for process in crowd:
        process.start()
    winners, ended = [], 0
    while ended < 4:
        item = won.get(timeout=60)
        ended += item is None
        winners += [item] if item is not None else []
    for process in crowd:
        process.join()
    assert sorted(name for name, _ in winners) == list(range(150))
    for name, number in winners:
        assert (tmp_path / "c" / str(name)).read_bytes() == f"{number}".encode() * 1000
    assert [file for file in os.listdir(tmp_path / "c") if file.endswith(".tmp")] == []


def test_runs_begun_at_once_all_appear(tmp_path: Path) -> None:
    place = str(tmp_path / "s")
    writers: list[RunWriter] = []
    threads = [threading.Thread(target=lambda: writers.append(RunWriter.create(place))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.finish("complete")
    with audit.open(place) as store:
        assert len({run.run_id for run in store.runs()}) == 8


def _write_until_refused(place: Path) -> tuple[RunWriter, StoreError]:
    writer = RunWriter.create(str(place))

    def write() -> None:
        for number in range(10_000):
            writer.append(visit_tables(writer.run.run_id, list(range(number * 100, number * 100 + 100))))
            writer.flush()

    with pytest.raises(StoreError) as refused:
        write()
    writer.abandon()
    return writer, refused.value


@pytest.mark.workers
def test_a_full_disk_is_reported_and_the_store_still_opens(tiny_disk: Path) -> None:
    place = tiny_disk / "s"
    earlier = record(place, samples=10)
    writer, error = _write_until_refused(place)
    assert "disk is full" in error.message
    assert error.hint is not None
    assert "--resume" in error.hint
    with audit.open(place) as store:
        assert whole_visits(store)[earlier.run_id] == 10
        assert store.run(writer.run.run_id).status == "interrupted"
        assert whole_visits(store)[writer.run.run_id] > 0
        assert store.verify() == []
    assert not list(place.rglob("*.tmp"))


@pytest.mark.workers
def test_a_file_size_limit_is_reported_too(tmp_path: Path) -> None:
    code = f"""
        import resource, signal, sys
        sys.path[:0] = [{str(ROOT)!r}, {str(HERE)!r}, {str(SUPPORT)!r}]
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        import store_cases
        from pathlib import Path
        from test_store_commit import _write_until_refused
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        _, error = _write_until_refused(Path(sys.argv[1]))
        print(error.message, error.hint)
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "s")], capture_output=True, text=True, check=True
    )
    assert "could not be written" in done.stdout
    with audit.open(tmp_path / "s") as store:
        assert store.verify() == []


@pytest.mark.workers
def test_a_read_only_store_can_be_read_and_says_that_it_cannot_be_written(tmp_path: Path) -> None:
    place = tmp_path / "mounted"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here: " + mounted.stderr.decode().strip())
    try:
        run = record(place / "s", samples=10)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with audit.open(place / "s") as store:
            assert store.sql("SELECT count(*) FROM lineage").fetchone() == (10,)
            assert store.trace(index=3).sample["index"] == 3
            assert store.verify() == []
            with pytest.raises(StoreReadOnly) as refused:
                store.remove(run.run_id)
            assert refused.value.hint
        with pytest.raises(StoreReadOnly):
            RunWriter.create(str(place / "s"))
        with pytest.raises(StoreReadOnly):
            RunWriter.create(str(place / "new"))
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_part_left_behind_by_a_dead_writer_is_in_nobodys_way(tmp_path: Path) -> None:
    run = record(tmp_path / "s", samples=7, status="interrupted")
    folder = tmp_path / "s" / "runs" / run.run_id
    # Exactly the part that the next commit writes, cut short.
    for file in list(folder.glob("samples/*.parquet")):
        (file.parent / file.name.replace("00000", "00001")).write_bytes(b"half a part")
    writer = RunWriter.resume(str(tmp_path / "s"), run.run_id)
    writer.append(visit_tables(run.run_id, list(range(7, 9))))
    writer.finish("complete")
    with audit.open(tmp_path / "s") as store:
        assert whole_visits(store)[run.run_id] == 9
        assert store.verify() == []


def test_a_store_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(AuditError) as refused:
        filesystem_for("ftp://host/lineage")
    assert refused.value.hint


def test_an_end_that_is_interrupted_ends_the_run_all_the_same(tmp_path: Path) -> None:
    """A signal's handler raises in the main thread while the last rows are being written."""
    reported = threading.Event()
    background = BackgroundWriter(RunWriter.create(str(tmp_path / "lineage")))

    def work(_: RunWriter) -> None:
        reported.wait(30)

    background.submit(work)
    with raised_by_a_signal("a worker is gone", reported, after=0.3):
        with pytest.raises(RuntimeError, match="a worker is gone"):
            background.finish("complete")
        assert reported.is_set()
    with audit.open(tmp_path / "lineage") as store:
        assert [run.status for run in store.runs()] == ["complete"]
