"""Several models and several calls: each prediction with its model and its number, one of each visit graded."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import WIDTH, Numbers, Questions, linear
from torch import nn
from torch.utils.data import DataLoader

import audit
from audit.recorders.model.unpredicted_batch import UnpredictedBatch
from audit.recorders.problems import RecordingWarning

EACH = "SELECT model, call, count(*), count(DISTINCT index) FROM predictions GROUP BY ALL ORDER BY call, model"


def two(run: Any) -> tuple[nn.Module, nn.Module]:
    return run.model(linear()), run.model(linear(), name="teacher")


def test_an_ensemble(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        members = [run.model(linear()) for _ in range(3)]
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            torch.stack([member(x) for member in members]).mean(0)
    ask = Questions(tmp_path / "lineage")
    assert ask(EACH) == [("Linear", 0, 12, 12), ("Linear-2", 1, 12, 12), ("Linear-3", 2, 12, 12)]
    assert ask("SELECT DISTINCT model FROM lineage") == [("Linear",)]
    assert ask("SELECT samples FROM runs") == [(12,)]


def test_the_first_recorded_model_is_graded_whoever_is_called_first(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        student, teacher = two(run)
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            with torch.no_grad():
                teacher(x)
            student(x)
    ask = Questions(tmp_path / "lineage")
    assert ask(EACH) == [("Linear", 0, 12, 12), ("teacher", 1, 12, 12)]
    assert ask(
        "SELECT graded, (SELECT count(*) FROM confusion) > 0 FROM (SELECT sum(samples) AS graded FROM per_class)"
    ) == [(12, True)]


def test_a_written_batch_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model, kept = run.model(linear()), []
        gc.disable()
        try:
            for x, _ in run.loader(DataLoader(Numbers(), batch_size=2)):
                model(x)
                kept.append(sum(type(one) is UnpredictedBatch for one in gc.get_objects()))
        finally:
            gc.enable()
    assert kept[0] >= 1
    assert kept[-1] <= kept[1]


def test_test_time_augmentation(tmp_path: Path) -> None:
    model = linear()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            model(torch.cat([x, x.flip(-1)]))
            model(x * 2)
    ask = Questions(tmp_path / "lineage")
    rows = ask("SELECT index, call, logits, operations FROM predictions ORDER BY index, call")
    assert [row[1] for row in rows] == [0, 1, 2] * 12
    for index, call, logits, operations in rows:
        x = Numbers()[index][0]
        given = [x, x.flip(-1), x * 2][call]
        assert torch.allclose(torch.tensor(logits), model(given[None])[0])
        assert (operations is None) == (call == 0)
    trace = audit.open(tmp_path / "lineage").trace(index=3)
    assert [row["call"] for row in trace.as_json()["other_predictions"]] == [1, 2]


def test_a_batch_that_the_loop_comes_back_to(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(linear())
        held = list(run.loader(DataLoader(Numbers(), batch_size=2)))
        for _ in range(3):
            for x, _ in held:
                model(x)
    ask = Questions(tmp_path / "lineage")
    assert ask(EACH) == [("Linear", call, 12, 12) for call in range(3)]
    assert ask("SELECT count(*) FROM lineage") == [(12,)]
    with audit.open(tmp_path / "lineage") as store:
        assert store.check().outcome("coverage").status == "pass"


@pytest.mark.parametrize("backend", ["eager"])
def test_compiled_after_another_instance_was(tmp_path: Path, backend: str) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).relu() - 1

    torch._dynamo.reset()
    other = torch.compile(Own(), backend=backend)
    for x, _ in DataLoader(Numbers(), batch_size=4):
        other(x)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = torch.compile(run.model(Own()), backend=backend)
        loader = run.loader(DataLoader(Numbers(), batch_size=4))
        for x, _ in loader:
            model(x / 2)
        for x, _ in loader:
            other(x)
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT model, count(*), count(DISTINCT epoch) FROM predictions GROUP BY ALL") == [("Own", 12, 1)]
    assert ask.warnings == []


def test_what_lies_between_the_last_stage_and_the_model_is_said(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(linear())
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            model((x.double() / 255).float().clamp(0, 1)[:])
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT DISTINCT operations FROM predictions") == [(["double", "div", "float", "clamp"],)]
    differing = """SELECT count(*) FROM predictions p JOIN stage_outputs o USING (run_id, epoch, index, visit)
                   WHERE p.input_digest = o.digest OR p.operations IS NULL"""
    assert ask(differing) == [(0,)]
    with audit.open(tmp_path / "lineage") as store:
        assert store.check().outcome("alignment").status == "pass"


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        run.model(linear(), name="a")
        with pytest.raises(audit.AuditError, match="the name 'a'"):
            run.model(linear(), name="a")


def test_batches_that_no_recorded_call_was_given_are_told(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(linear())
        for _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            pass  # a loader whose batches are for no model
        for number, (x, _) in enumerate(run.loader(DataLoader(Numbers(), batch_size=4))):
            model(x) if number == 1 else model.forward(x)
    [warning] = run.run.warnings
    assert warning.startswith("2 of 3 batches have no recorded model call")


class Difference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.linear(one - other)


def test_a_batch_that_is_another_argument_was_given_to_the_model(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model, loader = run.model(Difference()), run.loader(DataLoader(Numbers(), batch_size=4))
        batches = [x for x, _ in loader]
        model(batches[0], batches[1])
        model(batches[2], batches[1])
    assert run.run.warnings == []


def test_a_loop_over_another_loader_than_the_recorded_one_is_told(tmp_path: Path) -> None:
    run = audit.record(tmp_path / "lineage")
    model, loader = run.model(linear()), DataLoader(Numbers(), batch_size=4)
    run.loader(DataLoader(Numbers(), batch_size=4))
    for x, _ in loader:
        model(x)
    with pytest.warns(RecordingWarning, match="no sample was recorded: the loop iterates another loader"):
        run.close()


def test_logged_samples_beside_a_recorded_model_are_samples(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(linear())
        run.log(indices=[0, 1], logits=model(torch.zeros(2, WIDTH)).detach())
    assert run.run.warnings == ["1 model call came before any recorded batch and was not stored."]
