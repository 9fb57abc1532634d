"""Training and test pipelines of one run that have stages in common, as most have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from audit.api import record
from audit.checks.report import Report
from audit.checks.runner import run_checks


class Pictures(Dataset[Any]):
    """Sixty soft pictures in memory."""

    def __init__(self, seed: int, transform: v2.Compose) -> None:
        rng = np.random.default_rng(seed)
        small = [Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)) for _ in range(60)]
        self.pictures = [one.resize((16, 16), Image.Resampling.BICUBIC) for one in small]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.pictures[index]), index % 3


def stages(second: Any, mean: float = 0.5, std: float = 0.25) -> v2.Compose:
    """Return a pipeline; all but the second and the last stage are the same for every argument."""
    to_float = v2.ToDtype(torch.float32, scale=True)
    return v2.Compose([v2.Resize(12), second, v2.ToImage(), to_float, v2.Normalize([mean] * 3, [std] * 3)])


def judge(place: Path, train: v2.Compose, test: v2.Compose, *, with_model: bool = True) -> Report:
    """Record both pipelines in one run, and judge it."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(3)).eval()
    with record(place / "lineage") as run:
        model = run.model(network)
        for split, transform in (("train", train), ("test", test)):
            data = Pictures(len(split), transform)
            for x, _ in run.loader(DataLoader(data, batch_size=20), split=split):
                if with_model:
                    model(x)
    return run_checks(place / "lineage", record=False)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (stages(v2.RandomCrop(8)), stages(v2.CenterCrop(8))),
        (stages(v2.CenterCrop(8)), stages(v2.CenterCrop(8), std=0.2501)),
    ],
    ids=["another crop", "another normalisation"],
)
def test_a_stage_of_the_second_pipeline_is_judged_with_those_that_both_have(
    tmp_path: Path, train: v2.Compose, test: v2.Compose
) -> None:
    report = judge(tmp_path, train, test)
    for name in ("scale", "preprocessing", "alignment", "stage_contract", "coverage"):
        outcome = report.outcome(name)
        assert outcome.status in ("pass", "skip"), f"{name}: {outcome.message}"


def test_a_split_on_another_scale_is_found(tmp_path: Path) -> None:
    report = judge(tmp_path, stages(v2.RandomCrop(8)), stages(v2.CenterCrop(8), mean=0.0, std=1.0), with_model=False)
    (finding,) = report.outcome("split_scale").findings
    assert "the split test" in finding.message or "the split train" in finding.message
    assert finding.stage in (4, 5, 6)
    assert report.outcome("scale").status == "pass"


def test_augmentation_is_not_another_scale(tmp_path: Path) -> None:
    jitter = v2.Compose([v2.RandomCrop(8), v2.ColorJitter(0.3, 0.3, 0.3)])
    report = judge(tmp_path, stages(jitter), stages(v2.CenterCrop(8)), with_model=False)
    assert report.outcome("split_scale").status == "pass"


def test_files_of_two_splits_with_the_same_names_are_told_apart(tmp_path: Path) -> None:
    """Both folders have 0/000.png: which split a picture is of follows from its loader, not from its name."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 30)):
        for n in range(count):
            file = tmp_path / split / str(n % 2) / f"{n:03}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).resize((32, 32), Image.Resampling.BICUBIC).save(
                file
            )
    # A copy within the training split, and one of a training picture in the test split.
    for original, copy in (("train/0/002.png", "train/0/008.png"), ("train/1/005.png", "test/1/015.png")):
        with Image.open(tmp_path / original) as image:
            image.point(lambda level: min(255, level + 6)).save(tmp_path / copy)
    with record(tmp_path / "lineage", capture="full") as run:
        for split in ("train", "test"):
            data = ImageFolder(str(tmp_path / split), transforms.ToTensor())
            for _ in run.loader(DataLoader(data, batch_size=20), split=split):
                pass
    report = run_checks(tmp_path / "lineage", only=["near_duplicates", "leakage"], record=False)
    assert [finding.message for finding in report.outcome("near_duplicates").findings] == [
        "0/008.png (index 4, split train) looks the same as 0/002.png (index 1)."
    ]
    assert [finding.message for finding in report.outcome("leakage").findings] == [
        "1/015.png (index 22, split test) looks the same as 1/005.png (index 22, split train)."
    ]
