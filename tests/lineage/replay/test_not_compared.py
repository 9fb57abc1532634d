"""A replay says nothing of outputs that it cannot compare, and compares those of older runs with the right call."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import audit
from audit.records import Run
from audit.store.write.writer import RunWriter

COUNT = 3


class Locked:
    """An object that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Objects(Dataset[Any]):
    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.value(index)


def record(store: Path, dataset: Any) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store) as run:
            list(run.loader(DataLoader(dataset, batch_size=None)))
    return run.run


def test_values_without_a_digest_are_not_called_identical(tmp_path: Path) -> None:
    record(tmp_path, Objects(lambda index: Locked()))
    with audit.open(tmp_path) as store:
        replayed = store.replay(dataset=Objects(lambda index: Locked()))
    assert (replayed.checked, replayed.identical, replayed.different) == (0, 0, [])
    assert replayed.not_compared == {"0 (load)": COUNT}
    assert not replayed.passed
    assert replayed.as_json()["not_compared"] == {"0 (load)": COUNT}


def test_objects_that_hold_tensors_are_compared_by_their_content(tmp_path: Path) -> None:
    record(tmp_path, Objects(lambda index: deque([torch.full((2,), float(index))])))
    with audit.open(tmp_path) as store:
        digests = store.sql("SELECT count(DISTINCT digest) FROM stage_outputs").fetchone()
        same = store.replay(dataset=Objects(lambda index: deque([torch.full((2,), float(index))])))
        other = store.replay(dataset=Objects(lambda index: deque([torch.full((2,), float(index + 1))])))
    assert digests == (COUNT,)
    assert (same.checked, same.identical) == (COUNT, COUNT)
    assert (other.checked, other.identical) == (COUNT, 0)


class TwoViews(Objects):
    def __init__(self) -> None:
        self.transform = transforms.RandomCrop(2)

    def __getitem__(self, index: int) -> Any:
        image = torch.arange(64.0).reshape(1, 8, 8) + index
        return torch.stack([self.transform(image), self.transform(image)])


def test_a_run_with_one_output_for_two_calls_replays(tmp_path: Path) -> None:
    """Rebuild a run as versions before `1#2` recorded it: the last output, and `"calls": 2`."""
    torch.manual_seed(0)
    new = record(tmp_path / "new", TwoViews())
    folder = tmp_path / "new" / "runs" / new.run_id
    tables = {
        name: pa.concat_tables(map(pq.read_table, sorted((folder / name).glob("*.parquet"))))
        for name in ("samples", "stages", "stage_outputs", "rng")
    }
    stages = tables["stages"].to_pylist()
    first, second = (next(row["stage"] for row in stages if row["path"] == path) for path in ("1", "1#2"))
    outputs = tables["stage_outputs"].to_pylist()
    last = {row["index"]: row["digest"] for row in outputs if row["stage"] == second}
    old = [
        row | ({"digest": last[row["index"]], "params": '{"top": 1, "calls": 2}'} if row["stage"] == first else {})
        for row in outputs
        if row["stage"] != second
    ]
    run = Run("", recipe=new.recipe, versions=new.versions)
    writer = RunWriter.create(str(tmp_path / "old"), run)
    tables["stages"] = pa.Table.from_pylist([row for row in stages if row["stage"] != second], tables["stages"].schema)
    tables["stage_outputs"] = pa.Table.from_pylist(old, tables["stage_outputs"].schema)
    id_column = {name: pa.array([writer.run.run_id] * len(table)) for name, table in tables.items()}
    writer.append(
        {
            name: table.set_column(
                table.schema.get_field_index("run_id"),
                table.schema.field("run_id"),
                id_column[name].cast(table.schema.field("run_id").type),
            )
            for name, table in tables.items()
        }
    )
    writer.finish("complete")
    with audit.open(tmp_path / "old") as store:
        replayed = store.replay(dataset=TwoViews())
    assert (replayed.checked, replayed.identical) == (COUNT, COUNT), replayed.different
