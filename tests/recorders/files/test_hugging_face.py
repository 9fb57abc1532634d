"""What Hugging Face's datasets do to rows without a stage is said, with the function's name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import audit

datasets = pytest.importorskip("datasets")


def add_length(row: Any) -> Any:
    return {"x": [float(len(row["text"]))]}


def to_tensors(batch: Any) -> Any:
    return {"x": [torch.tensor([float(len(text))]) for text in batch["text"]]}


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": ["a b", "c d e"], "label": [0, 1]}).save_to_disk(tmp_path / "rows")
    return datasets.load_from_disk(tmp_path / "rows")


def record(store: Path, dataset: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with audit.record(store) as run:
            list(run.loader(DataLoader(dataset, batch_size=2)))
    if run.run.unrecorded:
        assert any("not recorded" in str(one.message) or "did not see" in str(one.message) for one in warned)
    return run.run.unrecorded or []


@pytest.mark.parametrize("in_memory", [False, True])
def test_map_before_the_recording(rows: Any, tmp_path: Path, in_memory: bool) -> None:
    rows = datasets.Dataset.from_dict(rows.to_dict()) if in_memory else rows
    assert record(tmp_path / "plain", rows.shuffle(seed=0)) == []
    (text,) = record(tmp_path / "mapped", rows.map(add_length).select([1, 0]))
    assert "Dataset.map before the recording" in text
    with audit.open(tmp_path / "mapped") as store:
        assert [one.status for one in store.check(only=["stage_coverage"]).outcomes] == ["fail"]


def test_a_function_that_runs_in_another_thread_is_named(rows: Any, tmp_path: Path) -> None:
    """The buffer of `shuffle` is filled by a thread."""
    stream = rows.to_iterable_dataset()
    (text,) = record(tmp_path / "mapped", stream.map(add_length).shuffle(seed=0, buffer_size=2))
    assert "another thread made it, whose calls are not observed; add_length (" in text
    assert record(tmp_path / "plain", stream.shuffle(seed=0, buffer_size=2)) == []


def shout(row: Any) -> Any:
    return {"text": row["text"].upper()}


def measure(row: Any) -> Any:
    return {"x": torch.tensor([len(row["text"]) * 1.0, 2.0]), "text": row["text"]}


@pytest.mark.parametrize("function", [shout, measure])
def test_a_text_that_map_returned_is_not_a_change(function: Any, rows: Any, tmp_path: Path) -> None:
    assert record(tmp_path / "lineage", rows.to_iterable_dataset().map(function)) == []
    with audit.open(tmp_path / "lineage") as store:
        names = store.sql("SELECT DISTINCT name FROM stage_outputs WHERE stage = 1").fetchall()
    assert names == [(function.__name__,)]


@pytest.mark.parametrize("method", ["set_transform", "with_transform"])
def test_a_transform_of_whole_batches_is_named(method: str, rows: Any, tmp_path: Path) -> None:
    dataset = getattr(rows, method)(to_tensors) or rows
    (text,) = record(tmp_path / "store", dataset)
    assert "Dataset with the transform to_tensors" in text
    assert "test_hugging_face.py:" in text


def sources(store: Path) -> list[Any]:
    with audit.open(store) as lineage:
        return lineage.sql("SELECT source FROM samples ORDER BY index").fetchall()


def test_a_sample_is_known_by_its_row_in_the_table_that_was_chosen_from(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"x": [[float(n)] for n in range(6)], "label": [0, 1] * 3}).with_format("torch")
    parts = {
        "filtered": (table.filter(lambda row: row["x"][0] > 3), [4, 5]),
        "selected": (table.select([5, 2]), [5, 2]),
        "a range": (table.select(range(3, 5)), [3, 4]),
        "of it": (table.select(range(2, 6)).select([3, 0]), [5, 2]),
        "joined": (datasets.concatenate_datasets([table, table.select([1])]).select([6, 5]), [6, 5]),
    }
    for name, (part, expected) in parts.items():
        record(tmp_path / name, part)
        assert sources(tmp_path / name) == [(f"dataset://{number}",) for number in expected], name


def test_rows_of_files_are_sources(rows: Any, tmp_path: Path) -> None:
    record(tmp_path / "store", rows.select([1, 0]))
    assert sources(tmp_path / "store") == [("data-00000-of-00001.arrow#1",), ("data-00000-of-00001.arrow#0",)]
    with audit.open(tmp_path / "store") as store:
        assert store.trace(index=0).source_state == "unchanged"
        changed = datasets.Dataset.from_dict({"text": ["a b", "c d f"], "label": [0, 1]})
        del rows
        changed.save_to_disk(tmp_path / "other")
        (tmp_path / "other" / "data-00000-of-00001.arrow").replace(tmp_path / "rows" / "data-00000-of-00001.arrow")
        assert [store.trace(index=index).source_state for index in (0, 1)] == ["changed", "unchanged"]


@pytest.mark.parametrize("change", ["removed", "renamed", "added"])
def test_the_digest_of_a_row_is_that_of_its_file(change: str, rows: Any, tmp_path: Path) -> None:
    """A replay said "source changed" of each row, if the dataset had other columns than the file."""

    def build() -> Any:
        if change == "removed":
            return rows.remove_columns("text")
        return rows.rename_column("label", "y") if change == "renamed" else rows.add_column("more", [5, 6])

    with audit.record(tmp_path / "lineage") as run:
        list(run.loader(DataLoader(build(), batch_size=2)))
    with audit.open(tmp_path / "lineage") as lineage:
        states = [lineage.trace(index=index).source_state for index in (0, 1)]
        replay = lineage.replay(dataset=build())
    assert (states, replay.identical, replay.different) == (["unchanged"] * 2, 2, [])


def to_grey(batch: Any) -> Any:
    return {
        "x": [torch.tensor(list(image.convert("L").getdata())) for image in batch["image"]],
        "label": batch["label"],
    }


def test_the_files_that_rows_name_are_sources(tmp_path: Path) -> None:
    """Batches are made in one call, in which files are opened that belong to no single sample."""
    files = [tmp_path / "pictures" / name for name in ("a/0.png", "b/0.png", "b/1.png")]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(file)
    table = datasets.Dataset.from_dict({"image": [str(file) for file in files], "label": [0, 1, 1]})

    def build() -> Any:
        return table.cast_column("image", datasets.Image()).select([2, 0, 1]).with_transform(to_grey)

    record(tmp_path / "store", build())
    assert sources(tmp_path / "store") == [("b/1.png",), ("a/0.png",), ("b/0.png",)]
    with audit.open(tmp_path / "store") as lineage:
        assert [lineage.trace(index=index).source_state for index in range(3)] == ["unchanged"] * 3
        assert lineage.replay(dataset=build()).identical == 3
        files[0].write_bytes(files[1].read_bytes())
        (changed,) = lineage.replay(dataset=build()).different
    assert (changed.source, changed.reason) == ("a/0.png", "source changed")


def test_a_row_of_parquet_can_be_named(tmp_path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.table({"x": [1.0, 2.0, 3.0]}), tmp_path / "rows.parquet", row_group_size=2)
    with audit.record(tmp_path / "store") as run:
        data = torch.utils.data.TensorDataset(torch.arange(3.0), torch.tensor([0, 1, 0]))
        list(run.loader(DataLoader(data), source=lambda index: f"{tmp_path}/rows.parquet#{index}"))
    assert sources(tmp_path / "store") == [(f"rows.parquet#{index}",) for index in range(3)]
    with audit.open(tmp_path / "store") as store:
        digests = store.sql("SELECT DISTINCT digest FROM sample_sources WHERE digest IS NOT NULL").fetchall()
        assert len(digests) == 3
        assert [store.trace(index=index).source_state for index in range(3)] == ["unchanged"] * 3
        parquet.write_table(arrow.table({"x": [1.0, 2.5]}), tmp_path / "rows.parquet")
        assert [store.trace(index=index).source_state for index in range(3)] == ["unchanged", "changed", "missing"]
