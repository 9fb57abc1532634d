"""What a process has found intact is not checked again in the sandbox that it asks; what changed since then is."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import audit
from audit.errors import QueryError
from audit.records import Run
from audit.store.filesystem import filesystem_for
from audit.store.manifest import read_manifests
from audit.store.read.part_digests import check_parts, list_checked_parts
from audit.store.sandbox.sandbox import Sandbox
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

COUNT = 3_000
QUERY = "SELECT count(*), sum(list_sum(logits)) FROM predictions"


def make_store(place: Path) -> Path:
    """A store with one part of about half a megabyte; returns the part."""
    writer = RunWriter.create(str(place), Run(""))
    columns = {
        "run_id": [writer.run.run_id] * COUNT,
        "epoch": np.zeros(COUNT, np.int32),
        "index": np.arange(COUNT),
        "visit": np.zeros(COUNT, np.int32),
        "logits": np.random.default_rng(0).normal(size=(COUNT, 40)).astype(np.float32),
    }
    writer.append({"predictions": table_of("predictions", columns)})
    writer.finish("complete")
    (part,) = place.glob("runs/*/predictions/*.parquet")
    return part


@pytest.mark.workers
@pytest.mark.parametrize("relative", [False, True])
def test_parts_that_this_process_has_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool) -> None:
    monkeypatch.chdir(tmp_path)
    part = make_store(tmp_path / "lineage")
    assert list_checked_parts(str(tmp_path / "lineage")) == []
    with audit.open("lineage" if relative else tmp_path / "lineage") as store, Sandbox("lineage") as sandbox:
        wanted = store.sql(QUERY).fetchall()
        ((where, _, _),) = list_checked_parts(str(tmp_path / "lineage"))
        assert part == tmp_path / "lineage" / where
        assert sandbox.query(QUERY).rows == [list(row) for row in wanted]
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        with part.open("r+b") as file:
            file.write(content)
        with pytest.raises(QueryError, match="its SHA-256 differs"):
            sandbox.query(QUERY)


@pytest.mark.workers
def test_a_damaged_part_that_nobody_has_checked(tmp_path: Path) -> None:
    part = make_store(tmp_path / "lineage")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with Sandbox(str(tmp_path / "lineage")) as sandbox, pytest.raises(QueryError, match="its SHA-256 differs"):
        sandbox.query(QUERY)


@pytest.mark.workers
def test_what_the_sandbox_checked_is_checked_here_and_not_there_again(tmp_path: Path) -> None:
    make_store(tmp_path / "lineage")
    with Sandbox(str(tmp_path / "lineage")) as sandbox:
        (path,) = sandbox.query(QUERY).checked
        until = time.monotonic() + 60
        while not list_checked_parts(str(tmp_path / "lineage")) and time.monotonic() < until:
            time.sleep(0.01)
        assert [where for where, _, _ in list_checked_parts(str(tmp_path / "lineage"))] == [path]
        assert sandbox.query(QUERY).checked == []


def test_a_part_that_is_damaged_or_gone_is_not_taken_for_checked(tmp_path: Path) -> None:
    part = make_store(tmp_path / "lineage")
    filesystem = filesystem_for(str(tmp_path / "lineage"))
    manifests, _ = read_manifests(filesystem)
    part.write_bytes(bytes(part.stat().st_size))
    path = str(part.relative_to(tmp_path / "lineage"))
    check_parts(filesystem, manifests, [path])
    part.unlink()
    check_parts(filesystem, manifests, [path])
    assert list_checked_parts(str(tmp_path / "lineage")) == []
