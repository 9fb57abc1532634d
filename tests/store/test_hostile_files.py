"""A store from a stranger may hold pipes, devices and links where files and folders are expected."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from audit.errors import AuditError, StoreDamaged, StoreError
from audit.store.commits import commit_whole
from audit.store.leftovers import clean
from audit.store.maintain.compact import compact
from audit.store.maintain.verify import verify
from audit.store.read.reader import Reader
from audit.store.write.writer import RunWriter
from audit.values import compression
from bench.campaign.stores import visits, write_run


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """A read that waits for a pipe is a failure, not a hang."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_run(tmp_path / "s")
    return tmp_path / "s"


def _ask(store: Path) -> list[tuple[object, ...]]:
    with Reader(str(store)) as reader:
        return reader.sql("SELECT count(*) FROM samples").fetchall()


@pytest.mark.parametrize("name", ["audit.json", "run.json", "samples/*.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/dev/tty", "folder", "huge"])
def test_what_is_not_a_file_is_refused(store: Path, name: str, kind: str) -> None:
    path = next(store.rglob(name))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 2**40)
    else:
        path.symlink_to(kind)
    if name == "audit.json" and kind == "huge":
        with pytest.raises(AuditError, match="larger than any manifest"):
            _ask(store)
        return
    with pytest.raises(AuditError) as raised:
        _ask(store)
    assert raised.value.message.endswith(".")
    if name == "samples/*.parquet":
        with Reader(str(store)) as reader:
            assert len(verify(reader)) == 1
            with pytest.raises(AuditError):
                compact(reader)


def test_a_pipe_as_lock_does_not_keep_a_reader_waiting(store: Path) -> None:
    writer = RunWriter.create(str(store))
    writer.append(visits(writer.run.run_id, 0))
    writer.flush()
    copy = store.parent / "copy"
    shutil.copytree(store, copy)
    writer.finish("complete")
    lock = next(copy.glob(f"runs/{writer.run.run_id}/.writer.lock"))
    lock.unlink()
    os.mkfifo(lock)
    with Reader(str(copy)) as reader:
        assert reader.runs()[-1].status == "interrupted"


def test_a_link_as_lock_creates_nothing_elsewhere(store: Path, tmp_path: Path) -> None:
    run_id = next((store / "runs").iterdir()).name
    lock = store / "runs" / run_id / ".writer.lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "elsewhere")
    with Reader(str(store)) as reader, pytest.raises(StoreError):
        compact(reader, run_id)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("linked", ["samples", "log", ""])
def test_nothing_is_deleted_or_written_behind_a_link(store: Path, tmp_path: Path, linked: str) -> None:
    run = next((store / "runs").iterdir())
    victim = tmp_path / "documents"
    if linked:
        shutil.copytree(run / linked, victim) if (run / linked).exists() else victim.mkdir()
        shutil.rmtree(run / linked, ignore_errors=True)
        (run / linked).symlink_to(victim)
    else:
        run.rename(victim)
        run.symlink_to(victim)
    (victim / "letter.txt").write_text("mine")
    (victim / ".letter.tmp").write_text("mine")
    (victim / "0000000000.json").write_text("mine")
    before = sorted(path.name for path in victim.iterdir())
    with Reader(str(store)) as reader:
        clean(reader.filesystem)
        with pytest.raises(StoreError, match="symbolic link"):
            compact(reader)
    RunWriter.create(str(store)).finish("complete")
    assert sorted(path.name for path in victim.iterdir()) == before


def test_parts_may_be_links_to_a_cache(store: Path, tmp_path: Path) -> None:
    part = next(store.rglob("*.parquet"))
    part.rename(tmp_path / "cached")
    part.symlink_to(tmp_path / "cached")
    assert _ask(store) == [(12,)]


def test_a_pipe_as_record_of_the_log_is_refused(store: Path) -> None:
    writer = RunWriter.create(str(store))
    copy = store.parent / "copy"
    shutil.copytree(store, copy)
    writer.finish("complete")
    os.makedirs(log := copy / "runs" / writer.run.run_id / "log", exist_ok=True)
    os.mkfifo(log / "0000000001.json")
    with pytest.raises(StoreDamaged, match="pipe"):
        _ask(copy)


def test_a_part_that_claims_a_billion_rows_is_refused(store: Path) -> None:
    """A run-length encoded column of any length takes a few bytes."""
    with Reader(str(store)) as reader:
        manifest = reader.manifest()
        manifest.parts = [replace(part, rows=10**10) for part in manifest.parts]
        manifest.run.samples = 3 * 10**10
        commit_whole(reader.filesystem, manifest)
    with pytest.raises(StoreDamaged, match="cannot have 10000000000 rows"):
        _ask(store)


@pytest.mark.parametrize("size", [2**40, 2**33, -5, 70_000_000])
def test_a_payload_that_claims_more_than_it_holds_reserves_no_memory(size: int) -> None:
    frame = compression.compress(bytes(1000))
    with pytest.raises(StoreDamaged, match="cannot hold"):
        compression.decompress(frame, size)
    assert compression.decompress(compression.compress(bytes(10**8)), 10**8) == bytes(10**8)
