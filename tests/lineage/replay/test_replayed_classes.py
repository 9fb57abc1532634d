"""A model that is run again gives the classes that were recorded, whatever its numbers mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import audit
from audit.lineage.replay.model import ReplayModel

CODE = """
import torch

class Items(torch.utils.data.Dataset):
    def __len__(self): return 20
    def __getitem__(self, index):
        return torch.randn(6, generator=torch.Generator().manual_seed(index)), index % 2

class Net(torch.nn.Module):
    def __init__(self, outputs, ending):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.ending = torch.nn.Linear(6, outputs), ending
    def forward(self, x): return self.ending(self.last(x))

def items(): return Items()
def logit(): return Net(1, torch.nn.Identity()).eval()
def share(): return Net(1, torch.nn.Sigmoid()).eval()
def shares(): return Net(3, torch.nn.Softmax(1)).eval()
"""


@pytest.mark.parametrize("model", ["logit", "share", "shares"])
def test_classes_of_a_model_that_is_run_again(tmp_path: Path, model: str) -> None:
    code = tmp_path / "again.py"
    code.write_text(CODE)
    run = audit.run(f"{code}:items", model=f"{code}:{model}", store=tmp_path / "x", workers=0, trust=True)
    inputs = [torch.randn(6, generator=torch.Generator().manual_seed(index)) for index in range(20)]
    with audit.open(tmp_path / "x") as store:
        recorded = [row[0] for row in store.sql("SELECT predicted FROM predictions ORDER BY index").fetchall()]
    assert len(set(recorded)) > 1
    assert ReplayModel(run, str(tmp_path / "x"), None, trust=True).predict(list(inputs)) == recorded
