"""What killed processes leave behind is not damage, and is deleted by `clean` and by the next writer."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from store_cases import record, visit_tables

import audit
from audit.cli.main import cli
from audit.errors import StoreBusy, StoreError
from audit.store.local_filesystem import LocalFilesystem
from audit.store.write.writer import RunWriter


def leave_leftovers(folder: Path) -> list[Path]:
    """Files as a killed writer leaves them."""
    left = [
        folder / ".run.json.abcd1234.tmp",
        folder / "samples" / ".part-00009-00000000.parquet.12345678.tmp",
        folder / "samples" / "part-00009-00000000.parquet",
        folder / "predictions" / "merged-00000-00009-00000000.parquet",
    ]
    for path in left:
        path.write_bytes(b"half of a file")
    return left


def test_clean_deletes_what_nobody_lists(tmp_path: Path) -> None:
    run = record(tmp_path, samples=5)
    left = leave_leftovers(tmp_path / "runs" / run.run_id)
    old = tmp_path / ".audit.json.aaaa.tmp"
    fresh = tmp_path / ".audit.json.bbbb.tmp"
    for path in (old, fresh):
        path.write_bytes(b"{}")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    with audit.open(tmp_path) as store:
        cleaned = store.clean()
        assert (cleaned.files, cleaned.skipped) == (5, {})
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (5,)
        assert not store.verify()
    assert not any(path.exists() for path in [*left, old])
    assert fresh.exists(), "another process may be making the store at this moment"


def test_clean_leaves_a_living_writer_alone(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path / "s"))
    writer.append(visit_tables(writer.run.run_id, [0, 1]))
    writer.flush()
    left = leave_leftovers(tmp_path / "s" / "runs" / writer.run.run_id)
    with audit.open(tmp_path / "s") as store:
        assert store.clean().skipped == {writer.run.run_id: "another process is writing it"}
    assert all(path.exists() for path in left)
    writer.finish("complete")
    answer = CliRunner().invoke(cli, ["store", "clean", "--store", str(tmp_path / "s")])
    assert "4 files" in answer.output
    assert answer.exit_code == 0


def test_the_next_writer_cleans_after_a_dead_one(tmp_path: Path) -> None:
    dead = RunWriter.create(str(tmp_path / "s"))
    dead.append(visit_tables(dead.run.run_id, [0, 1]))
    dead.flush()
    left = leave_leftovers(tmp_path / "s" / "runs" / dead.run.run_id)
    dead._locks.close()
    RunWriter.create(str(tmp_path / "s")).finish("complete")
    assert not any(path.exists() for path in left)
    with audit.open(tmp_path / "s") as store:
        assert store.run(dead.run.run_id).samples == 2


def test_a_killed_removal_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at every file that a removal deletes: the run is there or gone, and the store is whole."""
    keep, drop = record(tmp_path / "s", samples=3, name="keep"), record(tmp_path / "s", samples=3, name="drop")
    shutil.copytree(tmp_path / "s", tmp_path / "before")

    class Killed(BaseException):
        pass

    killed = 0
    for at in range(40):
        shutil.rmtree(tmp_path / "s")
        shutil.copytree(tmp_path / "before", tmp_path / "s")
        calls = {"left": at}

        def unlink(*args: Any, real: Any = os.unlink, calls: dict[str, int] = calls, **options: Any) -> None:
            if not calls["left"]:
                raise Killed
            calls["left"] -= 1
            real(*args, **options)

        with monkeypatch.context() as patched, audit.open(tmp_path / "s") as store:
            patched.setattr(os, "unlink", unlink)
            try:
                store.remove("drop")
                break
            except Killed:
                killed += 1
        with audit.open(tmp_path / "s") as store:
            assert [run.run_id for run in store.runs()] == [keep.run_id]
            assert not store.verify()
            assert store.clean().folders == 1
    assert killed >= 4, f"the removal of {drop.run_id} deletes several files"
    assert os.listdir(tmp_path / "s" / "runs") == [keep.run_id]


def test_a_folder_without_anything_is_cleaned(tmp_path: Path) -> None:
    """A writer that was killed between its lock and its first manifest."""
    run = record(tmp_path, samples=2)
    empty = tmp_path / "runs" / "20260101-000000-abcdef"
    empty.mkdir()
    (empty / ".writer.lock").touch()
    with audit.open(tmp_path) as store:
        assert not store.verify()
        assert store.clean().folders == 1
    assert os.listdir(tmp_path / "runs") == [run.run_id]


def test_a_lock_in_a_folder_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = LocalFilesystem(tmp_path)
    real = fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        shutil.rmtree(tmp_path / "runs" / "a", ignore_errors=True)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(StoreBusy, match="has just removed a"), filesystem.lock("runs/a/.writer.lock"):
        pass


@pytest.mark.parametrize("also", [False, True])
def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also: bool) -> None:
    """As on FAT or some FUSE mounts; `also` where renaming without replacing is not known either."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    if also:
        monkeypatch.setattr("audit.store.durable_files._renameat2", lambda: None)
    run = record(tmp_path / "s", samples=4)
    with audit.open(tmp_path / "s") as store:
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (4,)
        assert not store.verify()
    with pytest.raises(FileExistsError):
        LocalFilesystem(tmp_path / "s").create(f"runs/{run.run_id}/run.json", b"{}")


def test_a_file_system_without_locks_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="AUDIT_LOCKS=0"):
        record(tmp_path / "s", samples=2)
    monkeypatch.setenv("AUDIT_LOCKS", "0")
    record(tmp_path / "t", samples=2)
    with audit.open(tmp_path / "t") as store:
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (2,)
