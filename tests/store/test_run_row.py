"""A manifest may say anything of its run: what a table cannot hold is refused, and what no column explains is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from store_cases import record

import audit
from audit.errors import AuditError, StoreDamaged, StoreError
from audit.records import Run
from audit.store.commits import seal
from audit.store.schema import schema_at
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

FIELDS = sorted(Run.__dataclass_fields__)
PART = ("schema", "rows", "bytes", "first_index", "last_index", "sha256", "indices", "index_pages", "table", "file")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows") / "s"
    record(place, samples=6)
    return place


def change(place: Path, edit: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Edit run.json and seal it again, as anybody can; return what puts it back."""
    (file,) = place.glob("runs/*/run.json")
    before = file.read_bytes()
    content = json.loads(before)
    del content["digest"]
    edit(content)
    file.write_bytes(seal(content)[0])
    return lambda: file.write_bytes(before) and None  # type: ignore[return-value]


def columns(part: dict[str, Any], version: Any) -> list[str]:
    return schema_at(part["table"], version).names if isinstance(version, int) else []


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FIELDS), value=ANYTHING)
def test_a_value_of_any_kind_is_read_or_called_damage(place: Path, name: str, value: Any) -> None:
    restore = change(place, lambda content: content["run"].update({name: value}))
    try:
        with audit.open(place) as store:
            store.sql("FROM runs").fetchall()
            store.verify()
            assert store.run().digest_version
    except StoreError:
        pass
    finally:
        restore()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(PART), value=ANYTHING, number=st.integers(0, 3))
@example(name="schema", value=1, number=0)
def test_a_part_listed_with_anything_is_read_or_called_damage(place: Path, name: str, value: Any, number: int) -> None:
    before: dict[str, Any] = {}

    def edit(content: dict[str, Any]) -> None:
        before.update(content["parts"][number])
        content["parts"][number].update({name: value})

    restore = change(place, edit)
    try:
        with audit.open(place) as store:
            found = store.verify()
            store.sql("SELECT count(*) FROM samples, predictions").fetchall()
            # The columns of a table may be the same in several versions: another number then says nothing else.
            is_same = name == "schema" and columns(before, value) == columns(before, before["schema"])
            assert found or is_same or value in (None, 0) or isinstance(value, bool)
    except StoreError:
        pass
    finally:
        restore()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*("dataset", "seed", "limit", "code", "builders", "loaders", "layers", "model", "files")]),
    value=ANYTHING,
)
def test_a_recipe_of_anything_is_refused_in_a_sentence(place: Path, name: str, value: Any) -> None:
    recipe = {"kind": "run", "dataset": str(place), "seed": 0, name: value}
    restore = change(place, lambda content: content["run"].update(recipe=recipe))
    try:
        with audit.open(place) as store:
            store.attest()
            store.replay(workers=0)
    except AuditError:
        pass
    finally:
        restore()


@pytest.mark.parametrize("name", ["started_at", "seed", "host", "unrecorded", "sequence", "versions"])
def test_a_wrong_kind_is_named(place: Path, name: str) -> None:
    wrong = {"versions": {"digests": "x"}, "seed": 2**70, "sequence": None}.get(name, ["x", 1])
    restore = change(place, lambda content: content["run"].update({name: wrong}))
    try:
        with pytest.raises(StoreDamaged, match="not a readable manifest"):
            audit.open(place)
    finally:
        restore()


def test_tags_and_names_of_any_kind_leave_the_store_readable(tmp_path: Path) -> None:
    tags: dict[Any, Any] = {"epoch": 3, 1: None, "half\ud800": "\ud801"}
    with audit.record(tmp_path / "s", tags=tags):
        pass
    with audit.open(tmp_path / "s") as store:
        assert store.run().tags == {"epoch": "3", "1": "", "half\\ud800": "\\ud801"}
        assert store.tag("latest", {"more": 2.5}).tags["more"] == "2.5"  # type: ignore[dict-item]
        assert store.sql("SELECT tags['epoch'] FROM runs").fetchone() == ("3",)
    with (
        pytest.raises(audit.errors.UsageError, match="cannot be a run's name"),
        audit.record(tmp_path / "s", name="\ud800"),
    ):
        pass


def test_a_version_of_columns_that_hides_some_is_found(place: Path) -> None:
    """A reader takes columns that are newer than the listed version for NULL; a signature does not cover that number."""
    with audit.open(place) as store:
        before = store.sql("SELECT call FROM predictions").fetchall()
    assert before
    restore = change(
        place, lambda content: [part.update(schema=1) for part in content["parts"] if part["table"] == "predictions"]
    )
    try:
        with audit.open(place) as store:
            assert any("version 1 of its columns" in item.problem for item in store.verify())
    finally:
        restore()


def test_an_accuracy_of_a_better_epoch_is_found(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path / "s"), Run(""))
    for epoch, correct in ((0, [True, True]), (1, [True, False])):
        key = {"run_id": [writer.run.run_id] * 2, "epoch": [epoch] * 2, "index": [0, 1], "visit": [0, 0]}
        samples = table_of("samples", key | {"source": ["a", "b"], "status": ["ok", "ok"]})
        writer.append({"samples": samples, "predictions": table_of("predictions", key | {"correct": correct})})
        writer.flush()
    writer.finish("complete")
    with audit.open(tmp_path / "s") as store:
        assert (store.run().accuracy, store.verify()) == (0.5, [])
    change(tmp_path / "s", lambda content: content["run"].update(last_epoch=0, accuracy=1.0))
    with audit.open(tmp_path / "s") as store:
        assert [item.problem for item in store.verify()] == ["says last_epoch = 0, but its parts hold 1"]
