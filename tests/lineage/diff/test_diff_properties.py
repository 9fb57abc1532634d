"""Whatever two runs hold: every sample is matched, added or removed; counts add up; swapping sides swaps the answer."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from diff_material import make_digest, write_run
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import AuditError, NotFound
from audit.lineage.diff.diff import Diff, diff
from audit.lineage.diff.stage_alignment import AlignmentStep
from audit.store.read.reader import Reader

NAMES = ["load", "Resize", "Normalize"]


def stages(names: list[str]) -> list[dict[str, Any]]:
    return [
        {"stage": n, "path": str(n), "name": name, "qualname": f"lib.{name}", "parameters": "{}"}
        for n, name in enumerate(names)
    ]


def outputs(depth: int) -> st.SearchStrategy[dict[int, str]]:
    """Digests of some of the first stages; few values, so that runs agree by chance."""
    digest = st.sampled_from(["d0", "d1"])
    return st.lists(digest, max_size=depth).map(lambda found: dict(enumerate(found)))


def rows(depth: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    row = st.fixed_dictionaries(
        {
            "source": st.sampled_from(["a.png", "b.png", "it's.png", "d|<e>\n.png", "ü.png"]),
            "content": st.none() | st.sampled_from([make_digest("x"), make_digest("y"), make_digest("z")]),
            "label": st.none() | st.integers(0, 2),
            "predicted": st.none() | st.integers(0, 2),
            "outputs": outputs(depth),
            "status": st.sampled_from(["ok", "ok", "failed"]),
            "error": st.sampled_from(["OSError: truncated", "ValueError: mode 1"]),
        }
    ).map(lambda row: row | {"predicted": None} if row["status"] == "failed" else row)
    return st.lists(row, min_size=1, max_size=12)


@contextmanager
def compared(a: list[dict[str, Any]], b: list[dict[str, Any]], **runs: Any) -> Iterator[tuple[Reader, Diff, Diff]]:
    """The diff of two synthetic runs, both ways."""
    with tempfile.TemporaryDirectory() as folder:
        write_run(
            folder, a, stages(runs.get("stages_a", NAMES)), name="a", classes=runs.get("classes_a"), model_digest="m"
        )
        write_run(
            folder, b, stages(runs.get("stages_b", NAMES)), name="b", classes=runs.get("classes_b"), model_digest="m"
        )
        with Reader(folder) as reader:
            yield reader, diff(reader, "a", "b"), diff(reader, "b", "a")


def expected_matches(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> tuple[int, int, int]:
    """How many are matched by source, how many of the rest by content, and how many of that rest by what was loaded."""
    a, b = ([row | {"index": index} for index, row in enumerate(rows)] for rows in (a, b))
    gone: list[dict[str, Any]] = []
    come: list[dict[str, Any]] = []
    for source in dict.fromkeys(map(_source, a + b)):
        of_a, of_b = ([row for row in rows if row["source"] == source] for rows in (a, b))
        if len(of_a) > 1 or len(of_b) > 1:
            of_a, of_b = (
                _without(these, [_loaded(row) for row in those], _loaded)
                for these, those in ((of_a, of_b), (of_b, of_a))
            )
        paired = min(len(of_a), len(of_b))
        gone += of_a[paired:]
        come += of_b[paired:]
    for left in (gone, come):  # of several with one content, the first is matched
        left.sort(key=_index)
    by_source = len(a) - len(gone)
    by_content = sum((Counter(map(_content, gone)) & Counter(map(_content, come))).values())
    by_content -= min(sum(_content(row) is None for row in gone), sum(_content(row) is None for row in come))
    rest = [
        _without(these, [_content(row) for row in those], _content) for these, those in ((gone, come), (come, gone))
    ]
    loaded = [Counter(row["outputs"][0] for row in left if 0 in row["outputs"]) for left in rest]
    return by_source, by_content, sum((loaded[0] & loaded[1]).values())


def _index(row: dict[str, Any]) -> int:
    return int(row["index"])


def _source(row: dict[str, Any]) -> str:
    return str(row["source"])


def _loaded(row: dict[str, Any]) -> str | None:
    found: str | None = row["outputs"].get(0)
    return found


def _content(row: dict[str, Any]) -> str | None:
    found: str | None = row["content"]
    return found


def _without(
    rows: list[dict[str, Any]], taken: list[Any], key: Callable[[dict[str, Any]], Any]
) -> list[dict[str, Any]]:
    """The rows for which no partner is left; what has no key has none."""
    room = Counter(value for value in taken if value is not None)
    found = []
    for row in rows:
        if room[key(row)]:
            room[key(row)] -= 1
        else:
            found.append(row)
    return found


@pytest.mark.slow
@settings(max_examples=examples(6))
@given(rows(3), rows(3))
def test_every_sample_is_matched_or_added_or_removed(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    with compared(a, b) as (reader, found, back):
        by_source, renamed, reencoded = expected_matches(a, b)
        assert found.matched == by_source + renamed + reencoded
        assert (found.counts["renamed"], found.counts["reencoded"]) == (renamed, reencoded)
        assert found.matched + found.counts["removed"] == len(a)
        assert found.matched + found.counts["added"] == len(b)
        assert len({row["index"] for row in found.removed}) == found.counts["removed"]
        assert sum(found.first_divergent_stage.values()) == found.divergent <= found.matched
        assert found.identical + found.divergent + found.same_failure == found.matched
        for kind, counts in found.flips.counts.items():
            assert sum(counts.values()) == len(found.flips.lists[kind])
        if found.flips.graded:
            change = (found.fixes - found.regressions) / found.flips.graded
            assert found.flips.accuracy_b == pytest.approx((found.flips.accuracy_a or 0) + change)
        _check_swapped(found, back)
        _check_macros(reader, found)


def causes(found: Diff, kind: str) -> dict[str, int]:
    """How often each cause occurs, without those that do not."""
    return {cause: count for cause, count in found.flips.counts[kind].items() if count}


def _check_swapped(found: Diff, back: Diff) -> None:
    for one, other in (("added", "removed"), ("regressions", "fixes"), ("newly_failed", "no_longer_failed")):
        assert (found.counts[one], found.counts[other]) == (back.counts[other], back.counts[one])
    for same in ("renamed", "reencoded", "failed_in_both", "source_changed", "label_changed", "other_changes"):
        assert found.counts[same] == back.counts[same]
    assert (found.matched, found.divergent) == (back.matched, back.divergent)
    assert found.flips.mcnemar_p == back.flips.mcnemar_p
    assert (found.flips.accuracy_a, found.flips.accuracy_b) == (back.flips.accuracy_b, back.flips.accuracy_a)


def _check_macros(reader: Reader, found: Diff) -> None:
    flips = reader.sql("SELECT flip, cause, count(*) FROM flips('a', 'b') GROUP BY ALL").fetchall()
    kinds = {"regression": "regressions", "fix": "fixes", "change": "other_changes"}
    counted = {(kinds[flip], cause): count for flip, cause, count in flips}
    assert counted == {(k, c): n for k, causes in found.flips.counts.items() for c, n in causes.items() if n}
    matches = reader.sql(
        "SELECT count(*) FILTER (index_a IS NOT NULL AND index_b IS NOT NULL), count(*) FILTER (index_a IS NULL), "
        "count(*) FILTER (index_b IS NULL) FROM matches('a', 'b')"
    ).fetchone()
    assert matches == (found.matched, found.counts["added"], found.counts["removed"])


@settings(max_examples=examples(3))
@given(rows(3))
def test_a_run_differs_from_itself_in_nothing(a: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_run(folder, a, stages(NAMES), name="a")
        with Reader(folder) as reader:
            found = diff(reader, "a", "a")
    assert found.same
    assert found.matched == len(a)


def walk(steps: list[AlignmentStep], a: dict[int, str], b: dict[int, str]) -> str | None:
    """The first divergent stage, reported once more in plain Python."""
    states = [(a.get(step.at_a or 0), b.get(step.at_b or 0)) for step in steps]
    last = max((n for n, (ours, theirs) in enumerate(states) if ours is not None and ours == theirs), default=-1)
    return next((steps[n].name for n, (ours, theirs) in enumerate(states) if n > last and ours != theirs), None)


PIPELINES = st.permutations(["Resize", "Crop", "Normalize", "Pad"]).flatmap(
    lambda names: st.integers(0, 4).map(lambda count: ["load", *names[:count]])
)


@pytest.mark.slow
@settings(max_examples=examples(6))
@given(PIPELINES, PIPELINES, st.data())
def test_the_first_divergent_stage_of_any_two_pipelines(a: list[str], b: list[str], data: st.DataObject) -> None:
    ours = [{"source": f"{n}.png", "content": make_digest(n), "outputs": data.draw(outputs(len(a)))} for n in range(10)]
    theirs = [
        {"source": f"{n}.png", "content": make_digest(n), "outputs": data.draw(outputs(len(b)))} for n in range(10)
    ]
    with compared(ours, theirs, stages_a=a, stages_b=b) as (_, found, back):
        pairs = zip(ours, theirs, strict=True)
        expected = Counter(walk(found.steps, x["outputs"], y["outputs"]) for x, y in pairs)
        expected.pop(None, None)
        assert found.first_divergent_stage == dict(expected)
        assert found.divergent == back.divergent


@pytest.mark.slow
@settings(max_examples=examples(3))
@given(st.lists(st.sampled_from(["x", "y", "z", "w"]), min_size=1, max_size=8, unique=True))
def test_renamed_files_are_found_by_content(contents: list[str]) -> None:
    a = [{"source": f"old/{c}.png", "content": make_digest(c), "label": 0} for c in contents]
    b = [{"source": f"new/{c}.png", "content": make_digest(c), "label": 0} for c in reversed(contents)]
    with compared(a, b) as (_, found, _back):
        assert found.matched == found.counts["renamed"] == len(contents)
        for row in found.lists["renamed"]:
            assert row["source"].removeprefix("old/") == row["source_b"].removeprefix("new/")


def test_different_class_lists_are_compared_by_name() -> None:
    a = [{"source": "1.png", "content": "1", "label": 0, "predicted": 0}]
    b = [{"source": "1.png", "content": "1", "label": 1, "predicted": 1}]
    with compared(a, b, classes_a=["cat", "dog"], classes_b=["ant", "cat", "dog"]) as (reader, found, _):
        assert found.counts["label_changed"] == found.regressions == found.counts["other_changes"] == 0
        assert [row["class"] for row in found.flips.per_class] == ["cat"]
        assert any("different class lists" in note for note in found.notes)
        assert reader.sql("FROM flips('a', 'b')").fetchall() == []


def test_samples_without_a_file_are_compared_by_what_was_loaded() -> None:
    a = [{"source": "dataset://0", "label": 0, "predicted": 0, "outputs": {0: "x", 1: "x"}}]
    b = [{"source": "dataset://0", "label": 0, "predicted": 1, "outputs": {0: "y", 1: "y"}}]
    with compared(a, b) as (_, found, _back):
        assert found.counts["source_changed"] == 1
        assert causes(found, "regressions") == {"data": 1}


def test_the_last_epoch_is_compared() -> None:
    early = [{"source": "1.png", "content": "1", "label": 0, "predicted": 1, "epoch": 0, "outputs": {0: "x"}}]
    late = [{"source": "1.png", "content": "1", "label": 0, "predicted": 0, "epoch": 2, "outputs": {0: "y"}}]
    with compared([*early, *late], late) as (reader, found, _):
        assert (found.a.epoch, found.b.epoch, found.matched) == (2, 2, 1)
        assert found.divergent == 0
        assert found.flips.accuracy_a == 1.0
        assert any("The last epoch (2)" in note for note in found.notes)
        assert reader.sql("FROM flips('a', 'b')").fetchall() == []


def test_lists_are_cut_and_counts_are_not() -> None:
    a = [{"source": f"{n}.png", "content": str(n), "label": 0, "predicted": 0} for n in range(9)]
    b = [{"source": f"{n}.png", "content": str(n), "label": 0, "predicted": 1} for n in range(9)]
    with tempfile.TemporaryDirectory() as folder:
        write_run(folder, a, stages(NAMES), name="a")
        write_run(folder, b, stages(NAMES), name="b")
        with Reader(folder) as reader:
            found = diff(reader, "a", "b", rows=2)
            assert (found.regressions, len(found.flips.lists["regressions"])) == (9, 2)
            assert len(diff(reader, "a", "b", rows=None).flips.lists["regressions"]) == 9
            assert diff(reader).a.run.name == "a"
            with pytest.raises(AuditError):
                diff(reader, "a", "b", rows=-1)


def test_bad_input_is_reported() -> None:
    a = [{"source": "1.png", "content": "1", "label": 0, "predicted": 0}]
    b = [{"source": "2.png", "content": "2", "label": 0}]
    with compared(a, b) as (reader, found, _):
        assert found.matched == 0
        assert any("nothing could be compared" in note for note in found.notes)
        assert any("no predictions" in note for note in found.notes)
        assert found.exceeded_limits(max_divergent=0) == [
            "no sample of one run is in the other, so nothing was compared",
        ]
        with pytest.raises(AuditError, match="no predictions"):
            found.exceeded_limits(max_regressions=0)
        with pytest.raises(NotFound):
            diff(reader, "a", "nowhere")


def test_a_run_without_samples_or_stages_is_reported() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_run(folder, [], stages(NAMES), name="empty")
        write_run(folder, [{"source": "1.png", "outputs": {0: "x"}}], stages(NAMES), name="b")
        write_run(folder, [{"source": "1.png", "outputs": {}}], [], name="bare")
        with Reader(folder) as reader:
            with pytest.raises(NotFound, match="no sample"):
                diff(reader, "empty", "b")
            found = diff(reader, "bare", "b")
    assert (found.matched, found.divergent) == (1, 0)
    assert any("recorded no stages" in note for note in found.notes)
