"""docs/FORMAT.md and the code say the same: tables, columns, types, views, and the rules of the manifest."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_cases import record, stage_table, visit_tables

import audit
from audit.records import Part, Run
from audit.store.part_file import part_of
from audit.store.schema import FORMAT_NAME, FORMAT_VERSION, RUNS, SCHEMAS
from audit.store.views import MACROS, VIEWS
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

TEXT = (Path(__file__).parents[2] / "docs" / "FORMAT.md").read_text(encoding="utf-8")


def section(title: str, level: str = "###") -> str:
    found = re.search(rf"^{level} {title}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/FORMAT.md has no section {title}"
    return found[1]


def cells(text: str) -> list[list[str]]:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]
    return rows[2:]


DOCUMENTED = {
    title: [(row[0].strip("| "), row[1]) for row in cells(section(title))]
    for title in re.findall(r"^### (\w+)$", TEXT, re.MULTILINE)
}
_VIEWS = {row[0].strip("| "): row[1].strip("| ").split(", ") for row in cells(section("Views and macros", "##"))}
DOCUMENTED_VIEWS = {
    name: _VIEWS[columns[0].removeprefix("as ")] if columns[0].startswith("as ") else columns
    for name, columns in _VIEWS.items()
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An empty store, one whose run has no model, and one with a full run."""
    folder = tmp_path_factory.mktemp("stores")
    RunWriter.create(str(folder / "empty")).abandon()
    with audit.open(folder / "empty") as store:
        store.remove(store.runs()[0].run_id)
    record(folder / "without-model", samples=3, model=False)
    record(folder / "full", samples=6, name="a")
    record(folder / "full", samples=6, name="b")
    return {name: folder / name for name in ("empty", "without-model", "full")}


@pytest.mark.parametrize("kind", ["empty", "without-model", "full"])
def test_every_table_has_exactly_the_documented_columns(kind: str, stores: dict[str, Path]) -> None:
    assert set(DOCUMENTED) == {"runs", *SCHEMAS}
    with audit.open(stores[kind]) as store:
        for table, columns in DOCUMENTED.items():
            found = store.sql(f'DESCRIBE FROM "{table}"').fetchall()
            assert [(row[0], row[1]) for row in found] == columns, (
                f"{table} has other columns: write docs/FORMAT.md again with docs/make_format.py"
            )
            store.sql(f'FROM "{table}"').fetchall()


@pytest.mark.parametrize("kind", ["empty", "without-model", "full"])
def test_every_view_has_exactly_the_documented_columns(kind: str, stores: dict[str, Path]) -> None:
    with audit.open(stores[kind]) as store:
        for view, columns in DOCUMENTED_VIEWS.items():
            # Described, not asked: the runs that a macro compares must be there when it is.
            assert [row[0] for row in store.sql(f"DESCRIBE FROM {view}").fetchall()] == columns, (
                f"{view} has other columns: write docs/FORMAT.md again with docs/make_format.py"
            )
        shown = {row[0] for row in store.sql("SHOW TABLES").fetchall()}
        assert shown == {*DOCUMENTED, *(view for view in DOCUMENTED_VIEWS if "(" not in view)}
    assert {view for view in DOCUMENTED_VIEWS if "(" not in view} == {*VIEWS, "latest"}
    for macro in MACROS:
        assert macro.split("(")[0] + "(" in TEXT


def test_the_manifest_has_exactly_the_documented_fields(stores: dict[str, Path]) -> None:
    [manifest, _] = sorted(stores["full"].glob("runs/*/run.json"))
    content = json.loads(manifest.read_bytes())
    text = section("run.json", "##")
    documented = [name for row in cells(text) for name in re.findall(r"`(\w+)`", row[0])]
    assert set(documented) == {*content, *(f.name for f in fields(Part))}
    assert list(content["parts"][0]) == [f.name for f in fields(Part)]
    assert set(content["run"]) == {f.name for f in fields(Run)} == {*RUNS.names, "graded", "expected"}
    assert content["format"] == {"name": FORMAT_NAME, "version": FORMAT_VERSION}
    assert json.loads((stores["full"] / "audit.json").read_bytes()) == content["format"]
    assert f"format version {FORMAT_VERSION}" in TEXT


def test_parts_are_written_as_documented(stores: dict[str, Path]) -> None:
    for file in stores["full"].glob("runs/*/*/*.parquet"):
        metadata = pq.ParquetFile(file, page_checksum_verification=True).metadata
        assert metadata.schema.names[0] == "run_id"
        assert metadata.metadata is None or b"ARROW:schema" not in metadata.metadata
        columns = [metadata.row_group(0).column(n) for n in range(metadata.num_columns)]
        assert {column.compression for column in columns} == {"UNCOMPRESSED"}, "less than 64 KiB"
        for column in columns:
            assert column.path_in_schema != "index" or "DELTA_BINARY_PACKED" in column.encodings
    assert pq.SortingColumn is not None
    large = table_of("samples", {"run_id": ["a"] * 10_000, "index": list(range(10_000))})
    _, data = part_of("samples", large, 0)
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).compression == "ZSTD"


def test_views_say_what_the_documentation_says(stores: dict[str, Path]) -> None:
    with audit.open(stores["full"]) as store:
        newest = store.run("latest").run_id
        assert store.sql("SELECT count(*) FROM lineage").fetchone() == (12,)
        assert store.sql("SELECT count(*) FROM wrong_predictions").fetchone() == (4,)
        assert store.sql("SELECT DISTINCT run_id FROM latest").fetchall() == [(newest,)]
        assert store.sql("SELECT count(*) FROM flips('a', 'b')").fetchone() == (0,)
        assert store.sql("SELECT run_of('latest'), run_of('b'), run_of('none')").fetchone() == (newest, newest, None)
        assert store.sql("SELECT sum(count) FROM confusion", run="a").fetchone() == (6,)
        assert store.sql("SELECT sum(samples), sum(correct) FROM per_class", run="a").fetchone() == (6, 4)
    with audit.open(stores["without-model"]) as store:
        assert store.sql("SELECT count(*), count(predicted) FROM lineage").fetchone() == (3, 0)
        assert store.sql("FROM wrong_predictions").fetchall() == []


def test_flips_are_regressions_fixes_and_changes(tmp_path: Path) -> None:
    predicted: dict[str, list[int | None]] = {"a": [0, 1, 2, 0, None], "b": [0, 0, 1, 2, 1]}
    for name, classes in predicted.items():
        writer = RunWriter.create(str(tmp_path / "s"), Run("", name=name))
        tables = visit_tables(writer.run.run_id, [0, 1, 2, 3, 4])
        labels = [0, 1, 1, 1, 1]
        facts = {c: tables["predictions"][c].to_pylist() for c in ("run_id", "epoch", "index", "visit")}
        correct = [p == label for p, label in zip(classes, labels, strict=True)]
        tables["predictions"] = table_of(
            "predictions", facts | {"label": labels, "predicted": classes, "correct": correct}
        )
        writer.append({"stages": stage_table(writer.run.run_id), **tables})
        writer.finish("complete")
    with audit.open(tmp_path / "s") as store:
        found = dict(store.sql("SELECT index_a, flip FROM flips('a', 'b')").fetchall())
    assert found == {1: "regression", 2: "fix", 3: "change", 4: "fix"}


def test_runs_keep_their_row(tmp_path: Path) -> None:
    row = Run(
        "",
        name="n'\"☃",
        classes=["a", "b\n"],
        tags={"k": "v", "": "☃"},
        recipe={"x": [1, None]},
        versions={"p": "1"},
    )
    writer = RunWriter.create(str(tmp_path / "s"), row)
    writer.run.warnings.append("<b>careful</b>")
    writer.finish("failed")
    with audit.open(tmp_path / "s") as store:
        [found] = store.sql("FROM runs").dicts()
        assert store.run("n'\"☃").status == "failed"
    assert found["tags"] == {"k": "v", "": "☃"}
    assert (found["name"], found["classes"], found["warnings"]) == ("n'\"☃", ["a", "b\n"], ["<b>careful</b>"])
    assert json.loads(found["recipe"]) == {"x": [1, None]}
    assert found["started_at"] <= found["finished_at"]
    assert found["seconds"] >= 0
    assert (found["samples"], found["wrong"], found["accuracy"]) == (0, None, None)
