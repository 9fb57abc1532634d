"""What is damaged is found and named, and hides nothing that is whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import DIGITS
from store_cases import record, rewrite, tree_digest

import audit
from audit.cli.main import cli
from audit.errors import (
    AuditError,
    NotAStore,
    NotFound,
    StoreDamaged,
    StoreError,
    StoreNotFound,
    StoreTooNew,
    UsageError,
)
from audit.store.schema import FORMAT_VERSION
from audit.store.write.writer import RunWriter


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "lineage"


def parts_of(place: Path, run_id: str, table: str = "*") -> list[Path]:
    return sorted((place / "runs" / run_id).glob(f"{table}/*.parquet"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    place = tmp_path_factory.mktemp("whole") / "s"
    run = record(place, samples=9)
    return place, parts_of(place, run.run_id)


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_anywhere_is_found(data: st.DataObject, whole: tuple[Path, list[Path]]) -> None:
    place, parts = whole
    part = data.draw(st.sampled_from(parts))
    content = part.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    part.write_bytes(damaged)
    try:
        with audit.open(place) as store:
            [found] = store.verify()
        assert found.file == f"{part.parent.name}/{part.name}"
        assert "SHA-256" in found.problem
    finally:
        part.write_bytes(content)
    with audit.open(place) as store:
        assert store.verify() == []


@given(cut=st.integers(0, 400))
@settings(max_examples=examples(8), deadline=None)
def test_a_part_cut_short_is_named_and_never_read_as_something_else(cut: int, whole: tuple[Path, list[Path]]) -> None:
    place, parts = whole
    part = next(p for p in parts if p.parent.name == "predictions")
    content = part.read_bytes()
    part.write_bytes(content[:cut])
    try:
        with audit.open(place) as store:
            with pytest.raises(AuditError) as refused:
                store.sql("FROM predictions").fetchall()
            assert part.name in str(refused.value)
            assert "audit store verify" in str(refused.value)
            [found] = store.verify()
            assert f"{cut} bytes" in found.problem
            # Other tables do not suffer.
            assert store.sql("SELECT count(*) FROM samples").fetchone() == (9,)
    finally:
        part.write_bytes(content)


@pytest.mark.parametrize("table", ["samples", "stage_outputs", "predictions", "stages"])
def test_a_missing_part_is_a_sentence_and_not_a_shorter_answer(table: str, place: Path) -> None:
    run = record(place, samples=20)
    gone = parts_of(place, run.run_id, table)[0]
    gone.unlink()
    with audit.open(place) as store:
        for ask in (
            lambda: store.sql(f"SELECT * FROM {table}").fetchall(),
            lambda: store.sql(f"SELECT * FROM {table}").arrow(),
            lambda: store.trace(index=0),
        ):
            with pytest.raises(AuditError) as refused:
                ask()
            assert gone.name in str(refused.value)
            assert "missing" in str(refused.value)
            assert "audit store verify" in str(refused.value)
        assert [(item.file, item.problem) for item in store.verify()] == [(f"{table}/{gone.name}", "is missing")]


def test_a_damaged_part_of_one_run_leaves_other_runs_readable(place: Path) -> None:
    bad, good = record(place, samples=5, name="bad"), record(place, samples=6, name="good")
    for part in parts_of(place, bad.run_id):
        part.unlink()
    with audit.open(place) as store:
        assert store.sql("SELECT count(*) FROM lineage", run="good").fetchone() == (6,)
        assert store.sql("SELECT count(*) FROM latest").fetchone() == (6,)
        assert store.trace("good", index=1).sample["index"] == 1
        assert store.verify("good") == []
        assert {item.run_id for item in store.verify()} == {bad.run_id}
    assert good.run_id != bad.run_id


_BROKEN = {
    "empty": b"",
    "no JSON": b"\xff\x00 not json",
    "a list": b"[]",
    "a number": b"3",
    "null": b"null",
    "half": b'{"format": {"name": "audit-lineage", "version": 1}, "commit": 1, "run": {"run_id"',
    "no parts": b'{"format": {"name": "audit-lineage", "version": 1}, "commit": 1, "run": {}}',
    "run is a list": b'{"format": {"name": "audit-lineage", "version": 1}, "commit": 1, "run": [], "parts": []}',
    "part without a file": b'{"format": {"name": "audit-lineage", "version": 1}, "commit": 1, '
    b'"run": {"run_id": "x", "sequence": 1, "started_at": ""}, "parts": [{"table": "samples"}]}',
    "version is text": b'{"format": {"name": "audit-lineage", "version": "one"}, "commit": 1, "run": {}, "parts": []}',
    "another format": b'{"format": {"name": "other", "version": 1}, "commit": 1, "run": {}, "parts": []}',
    "newer": b'{"format": {"name": "audit-lineage", "version": 99}, "commit": 1, "run": {}, "parts": []}',
    "deeply nested": b"[" * 100_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("content", _BROKEN.values(), ids=_BROKEN.keys())
def test_a_damaged_manifest_hides_no_other_run(content: bytes, place: Path) -> None:
    first, bad, last = (record(place, samples=4, name=name) for name in ("first", "bad", "last"))
    (place / "runs" / bad.run_id / "run.json").write_bytes(content)
    # Fewer rows would be a wrong answer: only who asks for it gets what is left.
    with pytest.raises(StoreError, match=bad.run_id):
        audit.open(place)
    refused = CliRunner().invoke(cli, ["sql", "SELECT count(*) FROM lineage", "--store", str(place)])
    assert (refused.exit_code, refused.stdout) == (1, "")
    arguments = [
        "sql",
        "SELECT count(*) AS n FROM lineage",
        "--format",
        "json",
        "--allow-damaged",
        "--store",
        str(place),
    ]
    assert json.loads(CliRunner().invoke(cli, arguments).stdout) == [{"n": 8}]
    assert CliRunner().invoke(cli, ["store", "verify", "--store", str(place)]).exit_code == 1
    with audit.open(place, allow_damaged=True) as store:
        assert [run.name for run in store.runs()] == ["first", "last"]
        assert len(store.damaged) == 1
        assert bad.run_id in str(store.damaged[0])
        assert store.sql("SELECT count(*) FROM lineage").fetchone() == (8,)
        assert any(bad.run_id in item.problem for item in store.verify())
    # A new run may still be begun.
    assert record(place, samples=1).sequence > last.sequence > first.sequence


def test_a_manifest_cannot_name_files_outside_its_run(place: Path, tmp_path: Path) -> None:
    run = record(place, samples=4)
    outside = tmp_path / "outside.parquet"
    shutil.copy(parts_of(place, run.run_id, "samples")[0], outside)
    manifest = place / "runs" / run.run_id / "run.json"

    def point_outside(content: dict[str, Any]) -> None:
        for part in content["parts"]:
            if part["table"] == "samples":
                part["file"] = os.path.relpath(outside, manifest.parent)

    rewrite(manifest, point_outside)
    with audit.open(place, allow_damaged=True) as store:
        assert store.runs() == []
        assert "outside" in str(store.damaged[0])


def test_a_run_folder_whose_manifest_belongs_to_another_run_is_damage(place: Path) -> None:
    run = record(place, samples=4)
    shutil.copytree(place / "runs" / run.run_id, place / "runs" / "copy")
    with audit.open(place, allow_damaged=True) as store:
        assert [row.run_id for row in store.runs()] == [run.run_id]
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (4,)
        assert len(store.damaged) == 1


def test_parts_that_no_manifest_lists_do_not_exist(place: Path) -> None:
    run = record(place, samples=8)
    stray = parts_of(place, run.run_id, "predictions")[0]
    shutil.copy(stray, stray.parent / "part-00099-deadbeef.parquet")
    (stray.parent / ".part-1.tmp").write_bytes(b"half")
    (place / "runs" / "no-manifest" / "samples").mkdir(parents=True)
    (place / "runs" / "a-file").write_text("x")
    with audit.open(place) as store:
        assert store.sql("SELECT count(*) FROM predictions").fetchone() == (8,)
        assert len(store.runs()) == 1
        assert store.verify() == []
        assert store.damaged == []


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound) as missing:
        audit.open(tmp_path / "nowhere")
    assert missing.value.hint
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "holiday.jpg").write_bytes(b"")
    for odd in ("file", "folder"):
        with pytest.raises(NotAStore) as refused:
            audit.open(tmp_path / odd)
        assert refused.value.hint
        with pytest.raises(StoreError):
            RunWriter.create(str(tmp_path / odd))
    assert os.listdir(tmp_path / "folder") == ["holiday.jpg"]
    for content in (
        b"",
        b"not json",
        b"[1]",
        b'{"name": "else", "version": 1}',
        b'{"name": "audit-lineage", "version": "x"}',
    ):
        (tmp_path / "folder" / "audit.json").write_bytes(content)
        with pytest.raises(NotAStore):
            audit.open(tmp_path / "folder")


def test_a_newer_store_is_refused_whole(place: Path) -> None:
    record(place, samples=3)
    (place / "audit.json").write_text(json.dumps({"name": "audit-lineage", "version": FORMAT_VERSION + 1}))
    before = tree_digest(place)
    with pytest.raises(StoreTooNew) as refused:
        audit.open(place)
    assert refused.value.hint is not None
    assert "pgrade" in refused.value.hint
    with pytest.raises(StoreTooNew):
        RunWriter.create(str(place))
    assert tree_digest(place) == before


@pytest.mark.parametrize("version", [0, -1, True, "1", None])
def test_a_version_that_never_was_is_no_store(place: Path, version: object) -> None:
    record(place, samples=3)
    (place / "audit.json").write_text(json.dumps({"name": "audit-lineage", "version": version}))
    with pytest.raises(NotAStore, match="format version"):
        audit.open(place)


def test_fields_that_a_later_minor_version_adds_are_left_aside(place: Path) -> None:
    run = record(place, samples=3)
    manifest = place / "runs" / run.run_id / "run.json"

    def add_fields(content: dict[str, Any]) -> None:
        content["new"] = content["run"]["new"] = 1
        content["parts"][0]["new"] = {"a": 1}

    rewrite(manifest, add_fields)
    with audit.open(place) as store:
        assert store.damaged == []
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (3,)


def test_removing_a_run_removes_it_and_nothing_else(place: Path) -> None:
    keep, drop = record(place, samples=4, name="keep"), record(place, samples=5, name="drop")
    before = {path: digest for path, digest in tree_digest(place).items() if drop.run_id not in path}
    with audit.open(place) as store:
        assert store.remove("drop").run_id == drop.run_id
        assert [run.run_id for run in store.runs()] == [keep.run_id]
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (4,)
        with pytest.raises(NotFound):
            store.remove("drop")
    assert tree_digest(place) == before


def test_a_reference_must_be_clear(place: Path) -> None:
    record(place, samples=1, run_id="abc1")
    record(place, samples=1, run_id="abc2")
    with audit.open(place) as store:
        assert store.run("abc1").run_id == "abc1"
        with pytest.raises(UsageError, match="abc1"):
            store.run("abc")
        with pytest.raises(NotFound, match="abc2"):
            store.run("zzz")


def test_a_lost_manifest_is_damage(tmp_path: Path) -> None:
    audit.run(DIGITS, store=tmp_path / "lineage", workers=0, limit=3)
    next((tmp_path / "lineage" / "runs").glob("*/run.json")).unlink()
    with pytest.raises(StoreDamaged, match=r"run\.json is missing, but the run has parts"):
        audit.open(tmp_path / "lineage")
    with audit.open(tmp_path / "lineage", allow_damaged=True) as store:
        assert [(item.file, item.problem) for item in store.verify()] == [
            ("run.json", "is missing, but the run has parts")
        ]
