"""Reads verify what they read: of a damaged part nothing is answered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from store_cases import record

import audit
from audit.cli.main import cli
from audit.errors import AuditError, NotFound, StoreDamaged, StoreError

QUERIES = (
    "FROM samples ORDER BY ALL",
    "SELECT sum(confidence), sum(list_sum(logits)) FROM predictions",
    "SELECT digest, mean FROM stage_outputs ORDER BY ALL",
    "FROM stages",
)


def answers(place: Path) -> list[object]:
    with audit.open(place) as store:
        return [str(store.sql(query).fetchall()) for query in QUERIES]


def test_no_read_of_a_damaged_part_comes_back_silently(tmp_path: Path) -> None:
    """Every part, bits flipped all over it: the answer is an error or the same as before."""
    run = record(tmp_path, samples=9)
    whole = answers(tmp_path)
    refused = 0
    for part in sorted((tmp_path / "runs" / run.run_id).glob("*/*.parquet")):
        data = part.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 8)):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            part.write_bytes(changed)
            try:
                assert answers(tmp_path) == whole
            except AuditError:
                refused += 1
        part.write_bytes(data)
        assert answers(tmp_path) == whole
    assert refused >= 24, "four tables are asked, and each of their parts is damaged in eight places"


def test_a_part_that_changes_is_checked_again(tmp_path: Path) -> None:
    run = record(tmp_path, samples=9)
    part = sorted((tmp_path / "runs" / run.run_id / "predictions").glob("*.parquet"))[0]
    with audit.open(tmp_path) as store:
        store.trace(index=0)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    times = part.stat()
    part.write_bytes(data)
    os.utime(part, ns=(times.st_atime_ns, times.st_mtime_ns))
    with audit.open(tmp_path) as store, pytest.raises(StoreDamaged, match="other bytes than were written"):
        store.trace(index=0)


def test_checking_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record(tmp_path, samples=9)
    part = sorted((tmp_path / "runs" / run.run_id / "samples").glob("*.parquet"))[0]
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.write_bytes(data)
    monkeypatch.setenv("AUDIT_VERIFY_READS", "0")
    with audit.open(tmp_path) as store:
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (9,)
    monkeypatch.delenv("AUDIT_VERIFY_READS")
    with audit.open(tmp_path) as store, pytest.raises(AuditError, match="other bytes"):
        store.sql("SELECT count(*) FROM samples").fetchone()


def test_the_flag_decides(tmp_path: Path) -> None:
    run = record(tmp_path, samples=9)
    part = sorted((tmp_path / "runs" / run.run_id / "samples").glob("*.parquet"))[0]
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.write_bytes(data)
    ask = ["sql", "SELECT count(*) FROM samples", "--store", str(tmp_path)]
    assert CliRunner().invoke(cli, ask).exit_code == 1
    assert CliRunner().invoke(cli, [*ask, "--verify-reads"]).exit_code == 1
    assert CliRunner().invoke(cli, [*ask, "--no-verify-reads"]).exit_code == 0
    assert "AUDIT_VERIFY_READS" not in os.environ
    with audit.open(tmp_path, verify_reads=False) as store:
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (9,)


def test_a_damaged_manifest_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    whole, broken = record(tmp_path, samples=9), record(tmp_path, samples=9)
    manifest = tmp_path / "runs" / broken.run_id / "run.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    with pytest.raises(AuditError, match=broken.run_id):
        audit.open(tmp_path)
    ask = ["sql", "SELECT count(*) AS n FROM samples", "--json", "--store", str(tmp_path)]
    assert CliRunner().invoke(cli, ask).exit_code == 1
    allowed = CliRunner().invoke(cli, [*ask, "--allow-damaged"])
    assert allowed.exit_code == 0
    assert '"n": 9' in allowed.stdout
    with audit.open(tmp_path, allow_damaged=True) as store:
        assert [run.run_id for run in store.runs()] == [whole.run_id]
        assert broken.run_id in str(store.damaged[0])


def test_a_sample_is_denied_only_if_two_reads_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, samples=21)
    with audit.open(tmp_path) as store:
        with pytest.raises(NotFound, match="has no sample with index 99"):
            store.trace(index=99)
        monkeypatch.setattr("audit.store.read.reader.Reader.rows", lambda *_, **__: [])
        with pytest.raises(StoreError, match="Two reads of sample 0"):
            store.trace(index=0)
