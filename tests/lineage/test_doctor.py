"""`audit doctor` and `audit.doctor` say what a recording will hold before it is made."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner
from dataset_shapes import Arithmetic, NamedAttribute, Stream, picture
from rich.console import Console
from torch.utils.data import Dataset
from torchvision.transforms import v2

import audit
from audit.cli.main import cli
from audit.records import Run
from audit.report.doctor_text import doctor_text
from audit.report.run_text import run_summary

_FILE = """
import torch
from torch.utils.data import Dataset


class Numbers(Dataset):
    def __len__(self):
        return 6

    def double(self, x):
        return x * 2

    def __getitem__(self, index):
        if index == 2 and {fails}:
            raise ValueError("no such number")
        return self.double(torch.full((3,), float(index))){more}, index % 2


def dataset():
    return Numbers()
"""


def test_a_dataset_that_is_seen_whole() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    found = audit.doctor(NamedAttribute("aug"), samples=3)
    assert found.is_complete
    assert found.stages == [
        *(("0", "load"), ("call.aug.1", "RandomCrop"), ("call.aug.2", "RandomHorizontalFlip")),
        ("call.aug.3", "ToTensor"),
    ]
    assert found.random_stages == ["RandomCrop", "RandomHorizontalFlip"]
    assert (found.samples, found.identical, found.labels) == (3, 3, [0, 1, 2])
    assert "torch" in found.generators
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1], states[2]) == (np.random.get_state()[1].tolist(), random.getstate())


def test_what_is_not_seen_is_named() -> None:
    found = audit.doctor(Arithmetic())
    assert not found.is_complete
    assert "torch.from_numpy" in found.unrecorded[0]


def test_a_missing_extension_is_named() -> None:
    console = Console(width=400)
    for native, is_named in (("no", True), ("yes", False)):
        run = Run("20260101-000000-000000", versions={"native": native})
        with console.capture() as shown:
            console.print(run_summary(run, "lineage", []))
        assert ("without its C extension" in shown.get()) == is_named


def test_an_iterable_is_not_replayed() -> None:
    found = audit.doctor(Stream(), samples=2)
    assert (found.samples, found.identical) == (2, None)
    assert [name for _, name in found.stages][1:] == ["RandomCrop", "RandomHorizontalFlip", "ToTensor"]


class Odd(Dataset):  # type: ignore[type-arg]
    """A dataset without a length."""

    def __getitem__(self, index: int) -> Any:
        if index > 2:
            raise IndexError(index)
        return torch.full((3,), float(index)), index % 2


class Failing(Odd):
    def __getitem__(self, index: int) -> Any:
        raise OSError("no disk")

    def __len__(self) -> int:
        return 2


class Empty(Odd):
    def __len__(self) -> int:
        return 0


def test_odd_datasets() -> None:
    without_length = audit.doctor(Odd(), samples=2)
    assert (without_length.samples, without_length.identical, without_length.is_complete) == (2, 2, True)
    failing = audit.doctor(Failing())
    assert (failing.samples, failing.identical, failing.is_complete) == (2, None, False)
    assert "OSError: no disk" in failing.failures[0]
    empty = audit.doctor(Empty())
    assert (empty.samples, empty.is_complete) == (0, False)
    assert "gave no sample" in doctor_text(empty)
    keyed: Any = {"a": 1}
    assert "KeyError" in audit.doctor(keyed).failures[0]


class Typed(Odd):
    """A dataset whose values have a class of their own, which digests of this version hold."""

    def __init__(self) -> None:
        self.steps = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip()])

    def __getitem__(self, index: int) -> Any:
        return self.steps(picture(index)), index

    def __len__(self) -> int:
        return 4


def test_a_replay_follows_the_recipe_of_the_digests() -> None:
    found = audit.doctor(Typed())
    assert (found.identical, found.notes, found.is_complete) == (4, [], True)


_KEEPING = """
import torch
from torch.utils.data import Dataset


class Keeping(Dataset):
    def __init__(self):
        self.kept = {}

    def __len__(self):
        return 3

    def double(self, x):
        return x * 2

    def shift(self, x):
        return x + 1

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = self.double(torch.full((3,), float(index)))
        return self.shift(self.kept[index]), index


def dataset():
    return Keeping()
"""


def test_a_dataset_that_keeps_its_items_is_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "kept_to_diagnose.py"
    file.write_text(_KEEPING)
    found = audit.doctor(f"{file}:dataset")
    assert (found.identical, found.notes) == (3, [])


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "numbers_to_diagnose.py"
    file.write_text(_FILE.format(fails=False, more=""))
    done = CliRunner().invoke(cli, ["doctor", f"{file}:dataset", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["complete"]
    assert said["stages"] == [["0", "load"], ["call.double", "double"]]
    shown = CliRunner().invoke(cli, ["doctor", f"{file}:dataset"])
    assert "double (call.double)" in shown.stdout
    assert "4 of 4 identical" in shown.stdout


def test_the_command_exits_with_1_where_something_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "numbers_that_change.py"
    file.write_text(_FILE.format(fails=True, more=".neg()"))
    done = CliRunner().invoke(cli, ["doctor", f"{file}:dataset"])
    assert done.exit_code == 1, done.output
    assert "Tensor.neg" in done.stdout
    assert "no such number" in done.stdout
    missing = CliRunner().invoke(cli, ["doctor", str(tmp_path / "nothing.py")])
    assert missing.exit_code == 2
