"""A shuffled run says which commit holds a sample, so that no other part is opened."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import StoreDamaged
from audit.store import index_set
from audit.store.commits import seal
from audit.store.index_set import IndexPages, index_set_of, read_index_set
from audit.store.leftovers import clean
from audit.store.maintain.compact import compact
from audit.store.maintain.verify import verify
from audit.store.read.reader import Reader
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter
from audit.tables import PredictionRow, SampleRow

SAMPLES, COMMITS = 2_000, 20


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose loader shuffles, in many commits."""
    monkeypatch.setattr(index_set, "_LEAST", 50)
    chance = random.Random(0)
    order = list(range(SAMPLES))
    chance.shuffle(order)
    writer = RunWriter.create(str(tmp_path / "s"))
    size = SAMPLES // COMMITS
    for start in range(0, SAMPLES, size):
        some = order[start : start + size]
        key = {"run_id": [writer.run.run_id] * size, "epoch": [0] * size, "index": some, "visit": [0] * size}
        named = {"source": [f"{index}.png" for index in some], "status": ["ok"] * size}
        writer.append({"samples": table_of("samples", key | named), "predictions": table_of("predictions", key)})
        writer.flush()
    writer.finish("complete")
    return tmp_path / "s"


def test_only_the_parts_of_its_commit_are_opened(store: Path) -> None:
    with Reader(str(store)) as reader:
        run = reader.run()
        parts = reader.manifest().parts
        assert len({part.index_pages for part in parts}) == COMMITS
        assert None not in {part.index_pages for part in parts}
        for index in random.Random(1).sample(range(SAMPLES), 20):
            (found,) = reader.rows(SampleRow, run.run_id, index=index)
            assert found["source"] == f"{index}.png"
            assert len(reader.rows(PredictionRow, run.run_id, index=index)) == 1
            assert reader.rows(SampleRow, run.run_id, index=SAMPLES + index) == []
        assert verify(reader) == []
    with Reader(str(store)) as reader:
        reader.rows(SampleRow, run.run_id, index=3)
        assert reader.bytes_read() <= 3 * max(part.bytes for part in parts if part.table == "samples")


@pytest.mark.parametrize("damage", ["other", "gone"])
def test_a_damaged_file_of_indices_is_found(store: Path, damage: str) -> None:
    for path in (store / "runs").glob("*/index_pages/*"):
        if damage == "other":
            path.write_bytes(path.read_bytes()[:-4] + bytes(4))
        else:
            path.unlink()
    with Reader(str(store)) as reader:
        assert len(verify(reader)) == len(reader.manifest().parts)
        with pytest.raises(StoreDamaged, match="index_pages"):
            reader.rows(SampleRow, reader.run().run_id, index=3)


def test_files_of_indices_go_with_their_parts(store: Path) -> None:
    folder = next((store / "runs").glob("*/index_pages"))
    (folder / f"{'0' * 64}.u4").write_bytes(b"")
    with Reader(str(store)) as reader:
        assert clean(reader.filesystem).files == 1
        assert len(list(folder.iterdir())) == COMMITS
        compact(reader)
        assert verify(reader) == []
        clean(reader.filesystem)
    assert list(folder.iterdir()) == []


def test_commits_of_the_same_samples_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_set, "_LEAST", 50)
    writer = RunWriter.create(str(tmp_path))
    some = list(range(0, 100_000, 1_000))
    for epoch in range(3):
        key = {"run_id": [writer.run.run_id] * 100, "epoch": [epoch] * 100, "index": some, "visit": [0] * 100}
        writer.append({"samples": table_of("samples", key | {"status": ["ok"] * 100})})
        writer.flush()
    writer.finish("complete")
    assert len(list(tmp_path.glob("runs/*/index_pages/*"))) == 1
    with Reader(str(tmp_path)) as reader:
        assert len(reader.rows(SampleRow, reader.run().run_id, index=5_000)) == 3
        assert verify(reader) == []


def test_files_of_earlier_versions_have_no_pages(store: Path) -> None:
    (file,) = store.glob("runs/*/run.json")
    content = json.loads(file.read_bytes())
    del content["digest"]
    for part in content["parts"]:
        path = file.parent / part.pop("index_pages")
        numbers = read_index_set(f"index_pages/{path.name}", path.read_bytes())
        assert numbers is not None
        data = numbers.tobytes()
        part["indices"] = f"indices/{hashlib.sha256(data).hexdigest()}.u4"
        (file.parent / "indices").mkdir(exist_ok=True)
        (file.parent / part["indices"]).write_bytes(data)
    file.write_bytes(seal(content)[0])
    with Reader(str(store)) as reader:
        assert verify(reader) == []
        assert [row["index"] for row in reader.rows(SampleRow, reader.run().run_id, index=7)] == [7]
        clean(reader.filesystem)
        assert verify(reader) == []
    assert list(file.parent.glob("index_pages/*")) == []


@given(st.lists(st.lists(st.none() | st.integers(-(2**40), 2**40), max_size=30), max_size=3))
def test_it_holds_every_index(tables: list[list[int | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_set, "_LEAST", 1)
        patch.setattr(index_set, "_PAGE", 4)
        found = index_set_of([pa.table({"index": pa.array(values, pa.int64())}) for values in tables])
        distinct = sorted({value for values in tables for value in values if value is not None})
        if found is None:
            fewest = min((len(values) for values in tables if values), default=0)
            assert not distinct or max(fewest, len(distinct)) * 8 > distinct[-1] - distinct[0] + 1
            return
        file, data = found
        read = read_index_set(file, data)
        assert read is not None
        assert read.astype(np.int64).tolist() == distinct
        for other in (data + b"\0", data[:-4], data[:-4] + b"\7\7\7\7", bytes(len(data)), b""):
            assert read_index_set(file, other) is None

        def read_at(offset: int, count: int) -> bytes:
            return data[offset : offset + count]

        pages = IndexPages(file, read_at)
        for index in {*distinct, *(value + 1 for value in distinct), -1, 2**63}:
            assert pages.holds(index, read_at) == (index in distinct)


def test_a_run_in_order_has_none(tmp_path: Path) -> None:
    assert index_set_of([pa.table({"index": list(range(10_000))})]) is None
    assert index_set_of([pa.table({"name": ["a"]})]) is None
