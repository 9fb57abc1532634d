"""A label number that means another class in another split is an error; splits with the same classes are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks_pictures import picture
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import PILToTensor

from audit.api import record
from audit.checks.runner import run_checks


@pytest.mark.parametrize("missing", ["", "bee"])
def test_folders_that_each_split_numbers_by_itself(tmp_path: Path, missing: str) -> None:
    for split in ("train", "test"):
        for number in range(60):
            name = ("ant", "bee", "fly")[number % 3]
            if split == "train" or name != missing:
                target = tmp_path / split / name
                target.mkdir(parents=True, exist_ok=True)
                picture(number + 100 * (split == "test"), (24, 24)).save(target / f"{number:03d}.png")
    with record(tmp_path / "lineage") as run:
        for split in ("train", "test"):
            data = ImageFolder(tmp_path / split, transform=PILToTensor())
            for _ in run.loader(DataLoader(data, batch_size=20), split=split):
                pass
    report = run_checks(tmp_path / "lineage", only=["class_names", "missing_classes"], record=False)
    names, classes = report.outcome("class_names"), report.outcome("missing_classes")
    if not missing:
        assert (names.status, classes.status) == ("pass", "pass")
        return
    assert (names.status, names.severity) == ("fail", "error")
    assert "The label 1 means 'fly' in the split test, and in train 'bee'" in names.message
    assert classes.status == "skip"
