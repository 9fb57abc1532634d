"""A recorded model is still a module: copied, saved, compiled, wrapped; and a copy records nothing."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import WIDTH, Numbers, Questions, linear
from torch import nn
from torch.utils.data import DataLoader

import audit
from audit.recorders.problems import RecordingWarning


def loop(run: Any, model: Any, batch_size: int = 4) -> list[torch.Tensor]:
    return [model(x).detach() for x, _ in run.loader(DataLoader(Numbers(), batch_size=batch_size))]


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))


def test_copies_record_nothing(tmp_path: Path) -> None:
    model = two_layers()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        assert run.model(model, layers=["0"], backward=True) is model
        assert list(model.state_dict()) == list(two_layers().state_dict())
        loader = run.loader(DataLoader(Numbers(), batch_size=6))
        for x, _ in loader:
            copied = copy.deepcopy(model)
            shallow = copy.copy(model)
            copied(x)
            model(x)
            copied(x).sum().backward()
            shallow.training = False
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*), count(DISTINCT step) FROM predictions") == [(12, 2)]
    assert ask("SELECT DISTINCT direction FROM activations") == [("forward",)]
    assert ask.warnings == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.workers
def test_a_saved_model_loads_where_audit_is_not_installed(tmp_path: Path) -> None:
    model = two_layers()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model, layers=[nn.Linear], backward=True)
        loop(run, model)
        torch.save(model, tmp_path / "model.pt")
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
    code = (
        "import sys; sys.modules['audit'] = None\n"
        "import torch\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        f"print(model(torch.ones(1, {WIDTH})).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == str(model(torch.ones(1, WIDTH)).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["compiled first", "recorded first"])
def test_compiled_models(tmp_path: Path, order: str) -> None:
    torch._dynamo.reset()
    model = two_layers()
    expected = [model(x).detach() for x, _ in DataLoader(Numbers(), batch_size=4)]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        if order == "compiled first":
            used: Any = run.model(torch.compile(model, backend="eager"), layers=["0"])
        else:
            used = torch.compile(run.model(model, layers=["0"]), backend="eager")
        found = loop(run, used)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*), count(DISTINCT step) FROM predictions") == [(12, 3)]
    assert ask("SELECT count(*) FROM activations WHERE port = 'output.0'") == [(12,)], ask.warnings


def test_a_traced_model(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(two_layers(), layers=["0"])
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            # Traces twice and compares the graphs: nothing of ours may be in either.
            traced = torch.jit.trace(model, x)
            assert torch.equal(traced(x), model(x))
    # The tracer calls the model once more to compare: a call like any other.
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*), count(DISTINCT index) FROM graded_predictions") == [(12, 12)]
    assert ask("SELECT count(DISTINCT logits) FROM predictions GROUP BY index") == [(1,)] * 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    model = two_layers()
    with torch.autocast("cpu", dtype=dtype):
        expected = [model(x).detach() for x, _ in DataLoader(Numbers(), batch_size=4)]
    with audit.record(tmp_path / "lineage", strict=True) as run, torch.autocast("cpu", dtype=dtype):
        found = loop(run, run.model(model, layers=["0"]))
    assert all(a.dtype == dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*) FROM predictions WHERE isfinite(loss)") == [(12,)]
    assert ask("SELECT DISTINCT dtype FROM activations WHERE port = 'output.0'") == [
        (str(dtype).removeprefix("torch."),)
    ]


@pytest.mark.parametrize("order", ["outside", "inside"])
def test_data_parallel(tmp_path: Path, order: str) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        if order == "outside":
            used = run.model(nn.DataParallel(two_layers()), layers=["0"])
        else:
            used = nn.DataParallel(run.model(two_layers(), layers=["0"]))
        loop(run, used)
    assert Questions(tmp_path / "lineage")("SELECT count(*) FROM activations WHERE layer = '0'") == [(24,)]


Output = namedtuple("Output", ["loss", "logits"])


class Odd(nn.Module):
    """Returns its logits in one of the forms that libraries have."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.inner = linear()
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.inner(x)
        forms = {
            "dict": {"logits": logits},
            "named": Output(logits.sum(), logits),
            "tuple": (logits,),
            "one": logits[:, :1],
            "flat": logits[:, 0],
        }
        return forms[self.form]


@pytest.mark.slow
@pytest.mark.parametrize(
    # One number for each sample can be no prediction of three classes.
    ("form", "predicted"),
    [("dict", 12), ("named", 12), ("tuple", 12), ("one", 0), ("flat", 0)],
)
def test_outputs_of_many_forms(tmp_path: Path, form: str, predicted: int) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(Odd(form))
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=5)):
            model(x=x)
    assert Questions(tmp_path / "lineage")("SELECT count(*), count(predicted) FROM predictions") == [(12, predicted)]


def test_an_output_without_logits_is_reported_and_its_layers_recorded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Unflatten(1, (2, 2)))
    with (
        audit.record(tmp_path / "lineage") as run,
        pytest.warns(RecordingWarning, match="which axis is the class axis"),
    ):
        loop(run, run.model(model, layers=["0"]))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*) FROM predictions") == [(0,)]
    assert ask("SELECT count(*) FROM activations WHERE port = 'output.0' AND index IS NOT NULL") == [(12,)]


def test_teacher_and_student(tmp_path: Path) -> None:
    teacher, student = two_layers(), linear()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(student)
        run.model(teacher, layers=["0"])
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            student(x)
            teacher(x)
    ask = Questions(tmp_path / "lineage")
    models = "SELECT model, call, count(*), count(DISTINCT step) FROM predictions GROUP BY ALL ORDER BY ALL"
    assert ask(models) == [("Linear", 0, 12, 3), ("Sequential", 1, 12, 3)]
    assert ask("SELECT count(DISTINCT index), list(DISTINCT step ORDER BY step) FROM activations") == [(12, [0, 1, 2])]
    assert ask.warnings == []


@pytest.mark.workers
def test_a_forked_process_records_nothing(tmp_path: Path) -> None:
    import os

    model = linear()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        loader = run.loader(DataLoader(Numbers(), batch_size=4))
        child = os.fork()
        if child == 0:
            try:
                for x, _ in loader:
                    model(x)
                run.close()
                os._exit(0 if not run.open else 3)
            except BaseException:
                os._exit(4)
        assert os.waitpid(child, 0)[1] == 0
        for x, _ in loader:
            model(x)
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*) FROM predictions") == [(12,)]
    assert ask.status == "complete"


def test_training_steps(tmp_path: Path) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], lr=0.1
    )
    norms = []
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model, layers=["0"], backward=True)
        loader = run.loader(DataLoader(Numbers(), batch_size=3))
        for number, (x, y) in enumerate(loader):
            nn.functional.cross_entropy(model(x), y).backward()
            if number % 2:
                norms.append(
                    float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
                )
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for x, _ in loader:
                model(x)
    ask = Questions(tmp_path / "lineage")
    steps = ask("SELECT step, phase, learning_rate, gradient_norm, loss IS NOT NULL FROM steps ORDER BY step")
    assert [row[1] for row in steps] == ["train"] * 4 + ["eval"] * 4
    assert [row[2] for row in steps] == [None, 0.5, None, 0.5, None, None, None, None]
    assert [row[3] for row in steps if row[3] is not None] == pytest.approx(norms)
    ports = ask("SELECT DISTINCT port FROM activations WHERE direction = 'backward' ORDER BY 1")
    assert ports == [("output.0",), ("parameter.bias",), ("parameter.weight",)]
