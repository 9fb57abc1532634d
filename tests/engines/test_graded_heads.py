"""`audit run` with a model whose outputs each have a target of their own: the same rows as in a loop of the user's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import audit
from audit.cli.main import cli
from audit.errors import StoreDamaged, UsageError

#: A dataset of tensors with three targets, a model with three outputs; sample 5 fails.
CODE = """
import torch
from torch import nn

class Items(torch.utils.data.Dataset):
    def __init__(self, form):
        self.form = form
    def __len__(self):
        return 10
    def __getitem__(self, index):
        if index == 5 and self.form != "whole":
            raise ValueError("unreadable")
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        digit, angle, tags = index % 3, index / 10, torch.tensor([index % 2, index % 5 == 0, 1.0])
        if self.form == "tuple":
            return x, digit, angle, tags
        return x, {"digit": digit, "angle": angle, "tags": tags}

def whole(): return Items("whole")
def named(): return Items("dict")
def listed(): return Items("tuple")

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.digit, self.angle, self.tags = nn.Linear(6, 3), nn.Linear(6, 1), nn.Linear(6, 3)
    def forward(self, x):
        return {"digit": self.digit(x), "angle": self.angle(x)[:, 0], "tags": self.tags(x)}

class Positions(Heads):
    def forward(self, x):
        return tuple(super().forward(x).values())

def heads(): return Heads().eval()
def positions(): return Positions().eval()
"""
OUTPUT = {"digit": "logits", "angle": "regression", "tags": "multilabel"}
COLUMNS = "head, call, index, label, predicted, correct, loss, logits, target, output"
QUERY = f"SELECT {COLUMNS} FROM predictions ORDER BY index, call"


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "several_heads.py"
    path.write_text(CODE)
    sys.path.insert(0, str(tmp_path))
    yield path
    sys.path.remove(str(tmp_path))
    sys.modules.pop("several_heads", None)


def ask(store: Path, query: str = QUERY) -> list[Any]:
    with audit.open(store) as opened:
        return opened.sql(query).fetchall()


def test_the_rows_are_those_of_a_loop_of_ones_own(tmp_path: Path, code: Path) -> None:
    import several_heads  # type: ignore[import-not-found]
    from torch.utils.data import DataLoader

    with audit.record(tmp_path / "own", strict=True) as run:
        model = run.model(several_heads.heads(), output=OUTPUT)
        for x, _ in run.loader(DataLoader(several_heads.whole(), batch_size=4)):
            model(x)
    audit.run(
        f"{code}:whole",
        model=f"{code}:heads",
        output=OUTPUT,
        store=tmp_path / "run",
        batch_size=4,
        workers=0,
        trust=True,
    )
    own, found = ask(tmp_path / "own"), ask(tmp_path / "run")
    assert [row[0] for row in found] == [*OUTPUT] * 10
    assert len(found) == len(own) == 30
    for mine, theirs in zip(own, found, strict=True):
        assert mine[:6] == theirs[:6]
        assert theirs[6] == pytest.approx(mine[6], rel=1e-5)
        assert all(theirs[n] == (mine[n] and pytest.approx(mine[n], rel=1e-5)) for n in (7, 8, 9))
    graded = "SELECT head, samples, graded, accuracy FROM heads ORDER BY ALL"
    assert ask(tmp_path / "own", graded) == ask(tmp_path / "run", graded)
    summary = "SELECT accuracy, output, task FROM runs"
    assert ask(tmp_path / "own", summary) == ask(tmp_path / "run", summary)
    ports = "SELECT index, port, digest FROM outputs ORDER BY ALL"
    assert ask(tmp_path / "own", ports) == ask(tmp_path / "run", ports)


@pytest.mark.workers
def test_the_command_with_positions_workers_and_a_failed_sample(tmp_path: Path, code: Path) -> None:
    store, by_name = tmp_path / "lineage", tmp_path / "by-name"
    audit.run(f"{code}:named", model=f"{code}:heads", output=OUTPUT, store=by_name, workers=0, trust=True)
    command = ["run", f"{code}:listed", "--model", f"{code}:positions", "--trust", "--store", str(store), "--json"]
    places = ["0=logits", "1=regression", "2=auto"]
    options = [*(word for one in places for word in ("--output", one)), "--batch-size", "3", "--workers", "2"]
    targets = [word for n in range(3) for word in ("--target", f"{n}={n + 1}")]
    done = CliRunner().invoke(cli, [*command, *options, *targets], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["failed"] == 1
    names = dict(enumerate(OUTPUT))
    found = [(names[int(row[0])], *row[1:6]) for row in ask(store)]
    assert found == [row[:6] for row in ask(by_name)]
    assert {row[2] for row in found} == {*range(10)} - {5}
    with audit.open(store) as opened:
        assert opened.replay(model=True).different == []
        recipe = opened.run().recipe
    assert recipe["graded_outputs"] == [[0, "logits", 1], [1, "regression", 2], [2, None, 3]]
    assert recipe["heads"] == {"Positions.0": "logits", "Positions.1": "regression", "Positions.2": "multilabel"}


def test_a_head_without_a_target_is_not_graded(tmp_path: Path, code: Path) -> None:
    run = audit.run(
        f"{code}:listed", model=f"{code}:heads", output={"digit": "logits"}, store=tmp_path / "x", workers=0, trust=True
    )
    assert any("digit: no item has a target for it" in one for one in run.warnings)
    assert ask(tmp_path / "x", "SELECT count(*), count(correct), count(label) FROM predictions") == [(9, 0, 0)]


def test_an_output_that_the_model_does_not_return_ends_the_run(tmp_path: Path, code: Path) -> None:
    with pytest.raises(audit.AuditError, match="without 'colour'"):
        audit.run(
            f"{code}:named", model=f"{code}:heads", output={"colour": None}, store=tmp_path / "x", workers=0, trust=True
        )
    assert ask(tmp_path / "x", "SELECT count(*) FROM predictions") == [(0,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "logits", "target": {"digit": 1}}, "several graded outputs"),
        ({"output": {}}, "empty dict"),
        ({"output": {0: "logits", "0": "logits"}}, "twice"),
        ({"output": OUTPUT, "target": {"colour": 1}}, "names colour"),
        ({"output": OUTPUT, "target": {"digit": len}}, "target of digit cannot be"),
        ({"output": {"digit": "numbers"}}, "The output digit cannot be 'numbers'"),
    ],
)
def test_refused_heads(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        audit.run("x", store=tmp_path, **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--output", "numbers"], "'numbers' is not one of"),
        (["--output", "logits", "--output", "angle=regression"], "'logits' has no name"),
        (["--output", "=logits"], "needs a name"),
        (["--output", "a=logits", "--output", "a=logits"], "a is given twice"),
        (["--target", "digit"], "not NAME=PLACE"),
    ],
)
def test_refused_options(given: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["run", "x", *given])
    assert done.exit_code == 2
    assert message in done.output


def test_a_recipe_from_a_stranger_is_checked(tmp_path: Path, code: Path) -> None:
    from audit.engines.request import RunRequest

    recipe = RunRequest(dataset="x", store="y", output=OUTPUT).recipe()
    again = RunRequest.from_recipe(json.loads(json.dumps(recipe)), "y", trust=False)
    assert (again.output, again.target) == (OUTPUT, {name: name for name in OUTPUT})
    for wrong in ([["digit", "numbers", 1]], [[None, None, None]], [["a"]], "text", [["a", None, ["b"]]]):
        with pytest.raises(StoreDamaged, match="graded_outputs"):
            RunRequest.from_recipe({**recipe, "graded_outputs": wrong}, "y", trust=False)


def test_a_configured_kind_of_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit.toml").write_text('[defaults.run]\noutput = "digit=logits"\n')
    command = ["run", f"{code}:named", "--model", f"{code}:heads", "--trust", "--store", "lineage", "--workers", "0"]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert ask(tmp_path / "lineage", "SELECT DISTINCT head FROM predictions") == [("digit",)]
