"""Each flip with its true cause, reported from what was recorded and never guessed; failures and renamed files too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from diff_material import make_digest, write_run
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.cli.main import cli
from audit.lineage.diff.diff import Diff, diff
from audit.store.read.reader import Reader

STAGES = [
    {"stage": n, "path": str(n), "name": name, "qualname": name, "parameters": "{}"} for n, name in enumerate("lrn")
]
OTHER = [STAGES[0], STAGES[1] | {"parameters": '{"size": 9}'}, STAGES[2]]


def sample(**facts: Any) -> dict[str, Any]:
    """One right prediction; a test changes what it is about."""
    source = facts.get("source", "1.png")
    plain = {
        "source": source,
        "content": make_digest(source),
        "label": 0,
        "predicted": 0,
        "outputs": {0: "l", 1: "r", 2: "n"},
    }
    return plain | facts


def failing(stage: str, error: str, **facts: Any) -> dict[str, Any]:
    outputs = {0: "l"} if stage != "load" else {}
    failure = {"status": "failed", "failed_stage": stage, "error": error}
    return sample(**{"predicted": None, "outputs": outputs, **failure, **facts})


def compared(folder: Path, a: list[dict[str, Any]], b: list[dict[str, Any]], **runs: Any) -> Diff:
    write_run(str(folder), a, runs.get("stages_a", STAGES), name="a", model_digest=runs.get("model_a", "m"))
    write_run(str(folder), b, runs.get("stages_b", STAGES), name="b", model_digest=runs.get("model_b", "m"))
    with Reader(str(folder)) as reader:
        found = diff(reader, "a", "b")
        listed = reader.sql("SELECT flip, cause FROM flips('a', 'b')").fetchall()
    kinds = {"regressions": "regression", "fixes": "fix", "other_changes": "change"}
    rows = [(kinds[kind], row["cause"]) for kind, rows in found.flips.lists.items() for row in rows]
    assert sorted(listed) == sorted(rows)
    return found


def cause(folder: Path, a: dict[str, Any], b: dict[str, Any], kind: str = "regressions", **runs: Any) -> str:
    found = compared(folder, [a], [b], **runs)
    (row,) = found.flips.lists[kind]
    return str(row["cause"])


CHANGED = {"outputs": {0: "l", 1: "R", 2: "N"}}
REPLACED = {"content": make_digest("other"), "outputs": {0: "L", 1: "R", 2: "N"}}


@pytest.mark.parametrize(
    ("b", "runs", "expected"),
    [
        ({"predicted": 1, **CHANGED}, {}, "pipeline"),
        ({"predicted": 1}, {"model_b": "other"}, "model"),
        ({"predicted": 1}, {}, "model"),
        ({"predicted": 1, **CHANGED}, {"model_b": "other"}, "undetermined"),
        ({"predicted": 1, **CHANGED}, {"model_b": None}, "undetermined"),
        ({"predicted": 1, **REPLACED}, {}, "data"),
        ({"predicted": 1, **REPLACED}, {"stages_b": OTHER}, "undetermined"),
        ({"predicted": 1, **REPLACED}, {"model_b": "other"}, "undetermined"),
        # Other bytes that decode to the same value cannot have changed a prediction.
        ({"predicted": 1, "content": make_digest("png again"), **CHANGED}, {}, "pipeline"),
        ({"label": 1}, {}, "labels"),
        ({"label": 1, "predicted": 0, **CHANGED}, {"model_b": "other"}, "labels"),
        ({"label": 1, "predicted": 2, **CHANGED}, {}, "both"),
    ],
)
def test_the_cause_of_a_regression(tmp_path: Path, b: dict[str, Any], runs: dict[str, Any], expected: str) -> None:
    assert cause(tmp_path, sample(), sample(**b), **runs) == expected


def test_the_cause_of_a_fix_by_label(tmp_path: Path) -> None:
    assert cause(tmp_path, sample(label=1), sample(), "fixes") == "labels"
    both = cause(tmp_path / "both", sample(label=1), sample(label=2, predicted=2, **CHANGED), "fixes")
    assert both == "both"


def test_equal_scores_for_equal_inputs_show_that_the_model_is_the_same(tmp_path: Path) -> None:
    """A loop of one's own records no digest of its model; what it predicted for the same input tells."""
    a = [sample(confidence=0.75), sample(source="2.png", confidence=0.75)]
    b = [sample(predicted=1, **CHANGED), sample(source="2.png", confidence=0.75)]
    found = compared(tmp_path / "same", a, b, model_a=None, model_b=None)
    assert found.flips.lists["regressions"][0]["cause"] == "pipeline"
    b[1]["confidence"] = 0.7500001
    found = compared(tmp_path / "other", a, b, model_a=None, model_b=None)
    assert found.flips.lists["regressions"][0]["cause"] == "undetermined"
    assert any("more than one possible cause" in note for note in found.notes)


def test_how_the_models_were_called_is_named(tmp_path: Path) -> None:
    recipe = {"kind": "run", "device": "cpu", "batch_size": 32}
    write_run(str(tmp_path), [sample()], STAGES, name="a", model_digest="m", recipe=recipe)
    other = recipe | {"batch_size": 8, "device": "cuda"}
    write_run(str(tmp_path), [sample(predicted=1)], STAGES, name="b", model_digest="m", recipe=other, phase="train")
    with Reader(str(tmp_path)) as reader:
        found = diff(reader, "a", "b")
        assert diff(reader, "a", "a").calls == {}
    assert found.as_json()["calls"] == {"device": ["cpu", "cuda"], "batch size": [32, 8]}
    assert any("device cpu → cuda, batch size 32 → 8" in note for note in found.notes)
    write_run(str(tmp_path), [sample()], STAGES, name="c", model_digest="m", recipe=other, phase="eval")
    with Reader(str(tmp_path)) as reader:
        found = diff(reader, "c", "b")
    assert any("mode evaluation → training" in note for note in found.notes)


def test_the_precision_of_a_model_is_named(tmp_path: Path) -> None:
    for name, dtype in (("a", torch.float32), ("b", torch.float64)):
        with audit.record(tmp_path, name=name, capture="digest") as run:
            data = TensorDataset(torch.arange(8.0)[:, None], torch.arange(8) % 2)
            model = run.model(torch.nn.Linear(1, 2).to(dtype))
            for x, _ in run.loader(DataLoader(data, batch_size=4)):
                model(x.to(dtype))
    with audit.open(tmp_path) as store:
        assert store.diff("a", "b").as_json()["calls"] == {"output dtype": ["float32", "float64"]}


def test_a_layer_in_training_mode_inside_a_model_in_evaluation_mode_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with audit.record(tmp_path, name=name, capture="digest") as run:
            data = TensorDataset(torch.arange(8.0)[:, None], torch.arange(8) % 2)
            model = run.model(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(1, 2)).eval())
            model[0].train(name == "b")
            for x, _ in run.loader(DataLoader(data, batch_size=4)):
                model(x)
    with audit.open(tmp_path) as store:
        assert store.diff("a", "b").as_json()["calls"] == {"layers in the other mode": ["none recorded", "0"]}
        assert store.diff("b", "b").as_json()["calls"] == {}


def test_a_sample_that_fails_anew_is_a_regression(tmp_path: Path) -> None:
    a = [sample(source=f"{n}.png", predicted=0 if n else 1) for n in range(4)]
    b = [*a[:3], failing("r", "ValueError: mode 1", source="3.png")]
    found = compared(tmp_path, a, b, stages_b=OTHER)
    (row,) = found.flips.lists["regressions"]
    assert (row["source"], row["predicted_a"], row["predicted_b"], row["cause"]) == ("3.png", 0, None, "pipeline")
    assert found.exceeded_limits(max_regressions=0) == ["1 regressions, more than the 0 allowed"]
    # Without the failure as a wrong answer the accuracy would have stayed the same.
    assert (found.flips.accuracy_a, found.flips.accuracy_b) == (0.75, 0.5)
    for form in ((), ("--markdown",)):
        result = ask("a", "b", "--store", str(tmp_path), "--max-regressions", "0", *form)
        assert result.exit_code == 1
        assert "fails" in result.stdout
        assert "fails in b: ValueError: mode 1" in result.stdout.replace("`", "")
    with Reader(str(tmp_path)) as reader:
        back = diff(reader, "b", "a")
    assert (back.fixes, back.regressions) == (1, 0)


def test_a_run_in_which_everything_fails_has_regressions(tmp_path: Path) -> None:
    found = compared(tmp_path, [sample()], [failing("load", "OSError: truncated", content=make_digest("cut"))])
    (row,) = found.flips.lists["regressions"]
    assert row["cause"] == "data"
    assert found.exceeded_limits(max_regressions=0)


def test_failing_in_both_is_not_identical(tmp_path: Path) -> None:
    bad = failing("load", "OSError: truncated", source="2.png")
    found = compared(tmp_path, [sample(), bad], [sample(), bad])
    assert (found.identical, found.divergent, found.same_failure) == (1, 0, 1)
    assert found.counts["failed_in_both"] == 1
    result = ask("a", "b", "--store", str(tmp_path))
    assert "1 fail in both with the same error" in result.stdout
    assert "every sample" not in result.stdout


def test_two_errors_are_two_groups(tmp_path: Path) -> None:
    names = [f"{n}.png" for n in range(5)]
    a = [sample(source=name) for name in names]
    addresses = [
        "OSError: cannot read <BytesIO at 0x7f01> of /a/0.png",
        "OSError: cannot read <BytesIO at 0x7f02> of /b/1.png",
    ]
    errors = [*addresses, "ValueError: mode 1", "ValueError: mode 4"]
    b = [*(failing("r", error, source=name) for error, name in zip(errors, names, strict=False)), a[4]]
    found = compared(tmp_path / "new", a, b)
    assert [(group.reason, group.count) for group in found.divergences] == [("fails in b", 2), *[("fails in b", 1)] * 2]
    assert {group.detail.rsplit(": ", 1)[1] for group in found.divergences[1:]} == {"mode 1", "mode 4"}

    before = [failing("r", "KeyError: 'width'")]
    found = compared(tmp_path / "both", before, [failing("r", "KeyError: 'height'")])
    (group,) = found.divergences
    assert (group.reason, group.count, found.identical) == ("fails in both", 1, 0)
    assert "'width'" in group.detail
    assert "'height'" in group.detail


def test_more_kinds_of_errors_than_anyone_reads_share_a_group(tmp_path: Path) -> None:
    a = [sample(source=f"{n}.png") for n in range(30)]
    b = [failing("r", f"ValueError: {chr(65 + n)}", source=f"{n}.png") for n in range(30)]
    found = compared(tmp_path, a, b)
    assert len(found.divergences) == 11
    assert sum(group.count for group in found.divergences) == 30
    assert "20 different errors" in found.divergences[-1].detail


def test_renamed_and_stored_again_are_called_what_they_are(tmp_path: Path) -> None:
    a = [sample(source="cat/1.png"), sample(source="cat/2.png"), sample(source="cat/3.png", outputs={0: "own"})]
    b = [
        sample(source="old/1.png", content=make_digest("cat/1.png")),
        sample(source="cat/2.jpg", content=make_digest("jpg"), outputs={0: "lossy", 1: "x", 2: "y"}),
        sample(source="three.bmp", content=make_digest("bmp"), outputs={0: "own"}),
    ]
    found = compared(tmp_path, a, b)
    assert (found.matched, found.counts["renamed"], found.counts["reencoded"]) == (3, 1, 2)
    assert {(row["source"], row["source_b"]) for row in found.lists["reencoded"]} == {
        ("cat/2.png", "cat/2.jpg"),
        ("cat/3.png", "three.bmp"),
    }
    assert found.counts["source_changed"] == 2
    result = ask("a", "b", "--store", str(tmp_path))
    assert "2 reencoded" in result.stdout


def test_samples_of_one_file_are_matched_by_their_values(tmp_path: Path) -> None:
    slices = [
        sample(source="v.nii", label=n, predicted=n, outputs={0: f"s{n}", 1: f"r{n}", 2: f"n{n}"}) for n in range(4)
    ]
    other = [*reversed(slices[1:]), sample(source="v.nii", label=7, outputs={0: "s7", 1: "r7", 2: "n7"})]
    found = compared(tmp_path, slices, other)
    assert (found.matched, found.identical, found.divergent) == (4, 3, 1)
    assert (found.counts["label_changed"], found.counts["renamed"]) == (1, 0)
    with Reader(str(tmp_path)) as reader:
        pairs = reader.sql("SELECT index_a, index_b FROM matches('a', 'b') ORDER BY ALL").fetchall()
    assert pairs == [(0, 3), (1, 2), (2, 1), (3, 0)]


def test_accuracies_are_those_of_the_matched_samples(tmp_path: Path) -> None:
    a = [sample(source=f"{n}.png", predicted=1 if n < 2 else 0, outputs={0: str(n)}) for n in range(4)]
    b = [sample(source=f"{n}.png", outputs={0: str(n)}) for n in range(2, 8)]
    found = compared(tmp_path, a, b)
    assert (found.flips.accuracy_a, found.flips.accuracy_b) == (1.0, 1.0)
    assert found.as_json()["run_accuracy_a"] == 0.5
    assert [(row["samples_a"], row["accuracy_a"]) for row in found.flips.per_class] == [(2, 1.0)]


@pytest.mark.parametrize("form", [(), ("--markdown",), ("--json",)])
def test_nothing_compared_is_the_first_line_and_an_error(tmp_path: Path, form: tuple[str, ...]) -> None:
    found = compared(tmp_path, [sample(outputs={0: "x"})], [sample(source="other/2.png", outputs={0: "y"})])
    assert (found.matched, found.same) == (0, False)
    result = ask("a", "b", "--store", str(tmp_path), *form)
    assert result.exit_code == 1
    assert "nothing was compared" in result.stderr
    if form != ("--json",):
        first = next(line for line in result.stdout.splitlines() if line and not line.startswith("#"))
        assert "Nothing was compared" in first


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["diff", *arguments])
