"""`audit run` with a model whose output cannot be read: the run goes on, says which samples, and stores nothing false."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import audit
from audit.cli.main import cli
from audit.errors import AuditError, RecordingError, UnclearOutput

#: Ten vectors in batches of four; FORM is what the model returns in batch number `call`.
CODE = """
import torch
from torch import nn

class Items(torch.utils.data.Dataset):
    def __len__(self): return 10
    def __getitem__(self, index):
        return torch.randn(6, generator=torch.Generator().manual_seed(index)), index % 3

class Ragged(Items):
    def __getitem__(self, index):
        return torch.full((3 + index % 2,), float(index)), index % 3

class Heads(Items):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], {"kind": index % 3, "size": index % 2}

class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.calls = nn.Linear(1, 1), -1
    def forward(self, x):
        self.calls += 1
        call = self.calls
        return FORM

def items(): return Items()
def ragged(): return Ragged()
def heads(): return Heads()
def model(): return Changing().eval()
"""


def run(path: Path, form: str, dataset: str = "items", **options: Any) -> Any:
    code = path / "changing.py"
    code.write_text(CODE.replace("FORM", form))
    given = {"workers": 0, "batch_size": 4, "trust": True, **options}
    return audit.run(f"{code}:{dataset}", model=f"{code}:model", store=path / "lineage", **given)


def ask(path: Path, query: str) -> list[Any]:
    with audit.open(path / "lineage") as opened:
        return opened.sql(query).fetchall()


SECOND = {
    "none": ("None", "returned None"),
    "a generator": ("(row for row in x)", "returned a generator"),
    "more outputs": ("(x[:, :3], x[:, :2])", "more than one entry"),
    "another width": ("x[:, :4]", "gave 3 numbers for each sample, and now 4"),
    "another shape": ("x[:, :3].reshape(len(x), 1, 3)", "it is not clear which axis is the class axis"),
    "boxes": (
        "[{'boxes': torch.ones(4, 4), 'labels': torch.ones(4).long(), 'scores': torch.ones(4)} for _ in x]",
        "was logits, and now it returned a list",
    ),
    "too few rows": ("x[:1, :3]", "its first axis is not the batch"),
}


@pytest.mark.parametrize("name", SECOND)
def test_an_output_that_changes_its_form_in_the_middle(tmp_path: Path, name: str) -> None:
    form, says = SECOND[name]
    recorded = run(tmp_path, f"x[:, :3] if call != 1 else {form}")
    assert (recorded.status, recorded.samples, recorded.failed) == ("complete", 10, 0)
    (said,) = [one for one in recorded.warnings if "no prediction" in one]
    assert said.startswith("4 samples have no prediction (index 4, 5, 6, 7): ")
    assert says in said
    assert ask(tmp_path, "SELECT index FROM predictions ORDER BY index") == [(n,) for n in (0, 1, 2, 3, 8, 9)]
    assert ask(tmp_path, "SELECT count(*), count(DISTINCT index) FROM samples") == [(10, 10)]
    assert ask(tmp_path, "SELECT count(*) FROM calls") == [(3,)]
    assert ask(tmp_path, "SELECT count(*) FROM boxes") == [(0,)]
    ports = [(4, "0"), (4, "1")] if name == "more outputs" else []
    assert ask(tmp_path, "SELECT index, port FROM outputs WHERE index = 4 ORDER BY port") == ports


def test_the_exit_code_is_that_of_a_complete_run(tmp_path: Path) -> None:
    code = tmp_path / "changing.py"
    code.write_text(CODE.replace("FORM", "x[:, :3] if call != 1 else None"))
    command = ["run", f"{code}:items", "--model", f"{code}:model", "--trust", "--store", str(tmp_path / "lineage")]
    done = CliRunner().invoke(cli, [*command, "--workers", "0", "--batch-size", "4", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["status"] == "complete"
    assert any("4 samples have no prediction" in one for one in found["warnings"])
    checked = CliRunner().invoke(cli, ["check", "--store", str(tmp_path / "lineage"), "--format", "json"])
    (coverage,) = [one for one in json.loads(checked.stdout)["checks"] if one["check"] == "coverage"]
    assert coverage["status"] == "fail"


def test_strict_raises(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"4 samples have no prediction \(index 4, 5, 6, 7\): .* returned None"):
        run(tmp_path, "x[:, :3] if call != 1 else None", strict=True)
    assert ask(tmp_path, "SELECT status FROM runs") == [("failed",)]


def test_several_outputs_of_which_none_is_picked(tmp_path: Path) -> None:
    recorded = run(tmp_path, "((x, x * 2), {'a': [x[:, :3]]}, x.mean(0))")
    assert recorded.status == "complete"
    assert any("10 samples have no prediction" in one and "can be the logits" in one for one in recorded.warnings)
    found = ask(
        tmp_path, "SELECT port, count(DISTINCT index), min(call), max(call) FROM outputs GROUP BY port ORDER BY 1"
    )
    assert found == [("0.0", 10, 1, 1), ("0.1", 10, 1, 1), ("1.a.0", 10, 1, 1), ("2", 0, None, None)]
    assert ask(tmp_path, "SELECT number, shape FROM outputs WHERE port = '2' ORDER BY 1") == [
        (n, [6]) for n in range(3)
    ]
    assert ask(tmp_path, "SELECT count(*) FROM predictions") == [(0,)]
    assert ask(tmp_path, "SELECT output, accuracy FROM runs") == [(None, None)]
    with pytest.raises(RecordingError, match="can be the logits"):
        run(tmp_path, "(x, x * 2)", strict=True)


@pytest.mark.parametrize(
    ("form", "options"),
    [("None", {}), ("(x, x * 2)", {"output": "logits"}), ("x[:, :2]", {"output": "regression"})],
    ids=["none", "a declared output that is not evident", "targets of another number"],
)
def test_a_first_output_that_cannot_be_read_ends_the_run(tmp_path: Path, form: str, options: Any) -> None:
    """All batches would be the same: what is declared wrongly is better corrected at once."""
    with pytest.raises(UnclearOutput):
        run(tmp_path, form, **options)
    assert ask(tmp_path, "SELECT status FROM runs") == [("failed",)]
    assert ask(tmp_path, "SELECT count(*) FROM predictions") == [(0,)]


def test_samples_of_different_shapes(tmp_path: Path) -> None:
    """They go through the model one by one: the sixth call is a sample of the second batch."""
    recorded = run(tmp_path, "x[:, :3] if call != 5 else None", "ragged")
    assert recorded.status == "complete"
    assert any("4 samples have no prediction (index 4, 5, 6, 7)" in one for one in recorded.warnings)
    assert ask(tmp_path, "SELECT index FROM predictions ORDER BY index") == [(n,) for n in (0, 1, 2, 3, 8, 9)]


def test_one_head_of_several(tmp_path: Path) -> None:
    """The second head does not take the place of the first in the accuracy."""
    form = "{'kind': x[:, :3], 'size': x[:, :2]} if call != 1 else {'size': x[:, :2]}"
    recorded = run(tmp_path, form, "heads", output={"kind": "logits", "size": "logits"})
    assert any("have no prediction of kind (index 4, 5, 6, 7)" in one for one in recorded.warnings)
    found = ask(tmp_path, "SELECT head, call, count(*) FROM predictions GROUP BY ALL ORDER BY ALL")
    assert found == [("kind", 0, 6), ("size", 1, 10)]


def test_a_model_that_fails_still_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="could not be run"):
        run(tmp_path, "x[:, :3] if call != 1 else x @ x")
