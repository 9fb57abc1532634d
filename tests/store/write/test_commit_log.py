"""Commits are a chain of sealed records: each costs the same, none can be changed, dropped or doubled unnoticed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_cases import record, rewrite, stage_table, visit_tables

import audit
from audit.errors import StoreBusy, StoreDamaged, StoreError
from audit.store import commits, durable_files, flush
from audit.store.commits import list_logged_commits
from audit.store.local_filesystem import LocalFilesystem
from audit.store.manifest import Manifest, read_manifest
from audit.store.read.freshness import commit_state
from audit.store.read.reader import Reader
from audit.store.write.writer import RunWriter


def write(writer: RunWriter, first: int, count: int = 2) -> None:
    """One commit of a few visits."""
    writer.append(visit_tables(writer.run.run_id, list(range(first, first + count))))
    writer.flush()


def begin(place: Path, batches: int = 3) -> RunWriter:
    """A run with some commits in its log, still being written."""
    writer = RunWriter.create(str(place))
    writer.append({"stages": stage_table(writer.run.run_id)})
    for number in range(batches):
        write(writer, number * 2)
    return writer


def folder(place: Path, writer: RunWriter) -> Path:
    return place / "runs" / writer.run.run_id


def records(place: Path, writer: RunWriter) -> list[Path]:
    return sorted((folder(place, writer) / "log").glob("*.json"))


def test_a_commit_costs_the_same_however_long_the_run_is(tmp_path: Path) -> None:
    writer = begin(tmp_path / "s", batches=1)  # its commit has the rows of the stages besides
    writer.commit_every(3600)  # not by the clock as well
    sizes = []
    for number in range(1, 150):
        write(writer, number * 2)
        found = records(tmp_path / "s", writer)
        if found:
            sizes.append(found[-1].stat().st_size)
    assert max(sizes) < min(sizes) * 1.2
    with audit.open(tmp_path / "s") as store:
        assert store.sql("SELECT count(*), max(index) FROM samples").fetchone() == (300, 299)
    # Snapshots keep the log short, and the ended run has none.
    assert len(records(tmp_path / "s", writer)) < 100
    writer.finish("complete")
    assert not (folder(tmp_path / "s", writer) / "log").exists()
    with audit.open(tmp_path / "s") as store:
        assert (store.run().status, store.run().samples, store.verify()) == ("complete", 300, [])


def test_each_commit_names_the_one_before(tmp_path: Path) -> None:
    writer = begin(tmp_path, batches=5)
    content = [json.loads(path.read_bytes()) for path in records(tmp_path, writer)]
    snapshot = json.loads((folder(tmp_path, writer) / "run.json").read_bytes())
    chain = [snapshot, *content]
    assert [item["previous"] for item in chain] == [None, *(item["digest"] for item in chain[:-1])]
    assert [item["commit"] for item in chain] == list(range(len(chain)))
    head = chain[-1]["digest"]
    writer.finish("complete")
    ended = json.loads((folder(tmp_path, writer) / "run.json").read_bytes())
    assert ended["previous"] == head
    # A writer that changes an ended run continues the chain.
    with audit.open(tmp_path) as store:
        store.compact()
        after = json.loads((folder(tmp_path, writer) / "run.json").read_bytes())
        assert (after["previous"], after["commit"]) == (ended["record"], ended["commit"] + 1)


@pytest.mark.parametrize("least", [1, 2, 7])
def test_snapshots_change_nothing_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(commits, "_LEAST_TAIL", least)
    writer = begin(tmp_path, batches=0)
    states = set()
    for number in range(20):
        write(writer, number * 2)
        with audit.open(tmp_path) as store:
            assert store.run(writer.run.run_id).samples == 2 * number + 2
            assert store.sql("SELECT count(DISTINCT index) FROM samples").fetchone() == (2 * number + 2,)
            states.add(commit_state(store.reader))
    assert len(states) == 20, "each commit is seen by who looks whether there is a new one"
    writer.abandon()
    resumed = RunWriter.resume(str(tmp_path), writer.run.run_id)
    write(resumed, 40)
    assert resumed.finish("complete").samples == 42
    with audit.open(tmp_path) as store:
        assert store.verify() == []


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    run_json = (folder(tmp_path, writer) / "run.json").read_bytes()
    for data, read in (
        (run_json, lambda changed: Manifest.parse(changed, "here")),
        (
            records(tmp_path, writer)[0].read_bytes(),
            lambda changed: Manifest.parse(run_json, "here").apply(changed, "here"),
        ),
    ):
        read(data)
        for place in range(len(data)):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            with pytest.raises(audit.AuditError):
                read(bytes(changed))
        for length in range(0, len(data), 7):
            with pytest.raises(audit.AuditError):
                read(data[:length])


def drop_part(content: dict[str, Any]) -> None:
    content["parts"] = [part for part in content["parts"] if part["table"] != "samples"]


def double_part(content: dict[str, Any]) -> None:
    content["parts"].append(content["parts"][-1])


def narrow_range(content: dict[str, Any]) -> None:
    part = next(part for part in content["parts"] if part["table"] == "predictions")
    part["last_index"] = part["first_index"]


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "part dropped": drop_part,
    "part doubled": double_part,
    "range": narrow_range,
    "samples": lambda content: content["run"].update(samples=content["run"]["samples"] + 1),
    "failed": lambda content: content["run"].update(failed=1),
    "accuracy": lambda content: content["run"].update(accuracy=0.123),
    "wrong": lambda content: content["run"].update(wrong=content["run"]["graded"]),
    "graded": lambda content: content["run"].update(graded=0, wrong=0, accuracy=None),
    "status": lambda content: content["run"].update(status="splendid"),
    "rows": lambda content: content["parts"][0].update(rows=content["parts"][0]["rows"] + 1),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_what_a_manifest_claims_is_computed_again(tmp_path: Path, forge: Callable[[dict[str, Any]], None]) -> None:
    """Even with a digest that fits: a row of claims that the parts do not bear out is damage."""
    run = record(tmp_path, samples=9)
    with audit.open(tmp_path) as store:
        assert store.verify() == []
    rewrite(tmp_path / "runs" / run.run_id / "run.json", forge)
    with audit.open(tmp_path, allow_damaged=True) as store:
        assert store.verify() != []


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_record_that_is_gone_is_damage(tmp_path: Path, at: int) -> None:
    writer = begin(tmp_path)
    records(tmp_path, writer)[at].unlink()
    if at == 2:
        # The newest: nothing tells a commit that is gone from one that never was.
        assert read_manifest(LocalFilesystem(tmp_path), writer.run.run_id).run.samples == 4
        return
    with pytest.raises(StoreDamaged, match=f"{at + 1:010d}.json is missing"):
        audit.open(tmp_path)


def test_a_record_of_another_chain_is_damage(tmp_path: Path) -> None:
    first, second = begin(tmp_path), begin(tmp_path)
    records(tmp_path, first)[1].write_bytes(records(tmp_path, second)[1].read_bytes())
    with pytest.raises(StoreDamaged, match="does not follow the commit before it"):
        audit.open(tmp_path)


def test_of_two_writers_one_commits(tmp_path: Path) -> None:
    """As in a bucket, where a lock can be lost: a writer that finds the commit taken stops, and loses no row of the other."""
    writer = begin(tmp_path)
    run_id = writer.run.run_id
    filesystem = LocalFilesystem(tmp_path)
    other = read_manifest(filesystem, run_id)
    commits.commit_parts(filesystem, other, [])
    writer.append(visit_tables(run_id, [6, 7]))
    with pytest.raises(StoreBusy, match="commit 4"):
        writer.flush()
    assert list_logged_commits(filesystem, run_id) == [1, 2, 3, 4]
    assert read_manifest(filesystem, run_id).run.samples == 6


def test_killed_between_record_and_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is the commit: the run is complete, though its snapshot never came."""
    writer = begin(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.finish("complete")
    monkeypatch.undo()
    with audit.open(tmp_path) as store:
        assert (store.run().status, store.run().samples) == ("complete", 6)
        store.compact()
        assert store.verify() == []
    with audit.open(tmp_path) as store:
        assert (store.run().status, store.run().samples) == ("complete", 6)


def test_few_flushes_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is waited for once for all contents and once for all names, of the parts and of the commit."""
    record(tmp_path, samples=1)
    waits: list[int] = []

    def flush_together(flushes: list[Callable[[], None]]) -> None:
        waits.append(len(flushes))
        for one in flushes:
            one()

    for module in (durable_files, flush):
        monkeypatch.setattr(module, "flush_together", flush_together)
    writer = RunWriter.create(str(tmp_path))
    assert waits == [1, 2], "run.json; its folder, and that above it"
    writer.append(visit_tables(writer.run.run_id, [0, 1]))
    tables = len(visit_tables(writer.run.run_id, [0, 1]))
    writer.finish("complete")
    assert waits[2:] == [tables, tables + 1, 2, 2], (
        "parts; folders of tables, and that above; record, run.json; their folders"
    )


def test_new_folders_are_flushed_into_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder survives a power cut only after its parent was flushed."""
    flushed: set[str] = set()
    real = os.fsync

    def noted(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    place = tmp_path / "a" / "lineage"
    run = record(place, samples=1)
    made = [tmp_path, tmp_path / "a", place, place / "runs", place / "runs" / run.run_id]
    assert {str(folder) for folder in made} <= flushed


def test_parts_are_on_the_disk_before_their_names_and_names_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that survives a power cut at any instant."""
    events: list[tuple[str, str]] = []
    fsync, link = os.fsync, os.link

    def note_flush(descriptor: int) -> None:
        fsync(descriptor)
        events.append(("flush", os.readlink(f"/proc/self/fd/{descriptor}")))

    def note_name(source: Any, target: Any) -> None:
        events.append(("name", f"{source}"))
        link(source, target)

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "link", note_name)
    run = record(tmp_path, samples=2)
    folder = tmp_path / "runs" / run.run_id
    named = [path for what, path in events if what == "name" and path.startswith(f"{folder}/") and "/log/" not in path]
    parts = [path for path in named if ".parquet." in path]
    assert len(parts) > 2
    commit = next(n for n, (what, path) in enumerate(events) if what == "name" and "/log/" in path)
    for path in parts:
        at = events.index(("name", path))
        assert ("flush", path) in events[:at]
        assert ("flush", os.path.dirname(path)) in events[at:commit]


def test_a_part_that_cannot_be_flushed_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if ".parquet." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="could not be written"):
        record(tmp_path, samples=2)
    monkeypatch.undo()
    with audit.open(tmp_path) as store:
        assert [(run.status, run.samples) for run in store.runs()] == [("interrupted", 0)]
    assert not [*tmp_path.rglob("*.parquet"), *tmp_path.rglob("*.tmp")]


def test_killed_while_a_run_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is neither a run nor damage, and the other runs are whole."""
    keep, drop = record(tmp_path, samples=3), record(tmp_path, samples=5)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with audit.open(tmp_path) as store:
        monkeypatch.setattr(LocalFilesystem, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(drop.run_id)
        monkeypatch.undo()
    with audit.open(tmp_path) as store:
        assert [run.run_id for run in store.runs()] == [keep.run_id]
        assert store.verify() == []
    with Reader(str(tmp_path)) as reader:
        assert len(commit_state(reader)) == 1


def test_a_file_system_without_locks_has_its_own_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(StoreError, match="cannot lock files"):
        record(tmp_path, samples=1)
