"""The committed digits are what their scripts make, and the checkpoint is as good as fixtures/README.md says."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path

import pytest
import torch

from audit.sources import open_dataset

REPOSITORY = Path(__file__).parents[2]
FIXTURES = REPOSITORY / "fixtures"


def digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob("*.png"))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_digits_come_out_byte_for_byte_the_same(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is needed to rebuild the digits")
    make = runpy.run_path(str(FIXTURES / "make_digits.py"))["make"]
    assert make(tmp_path) == {"train": 1297, "test": 500}
    assert digests(tmp_path) == digests(FIXTURES / "digits")


def test_the_checkpoint_is_right_mostly_and_wrong_sometimes() -> None:
    pipeline = runpy.run_path(str(REPOSITORY / "pipelines" / "digits.py"))
    checkpoint = torch.load(FIXTURES / "digits.pt", weights_only=True)
    dataset = open_dataset(FIXTURES / "digits" / "test", transform=pipeline["transform"])
    assert checkpoint["classes"] == dataset.classes
    assert checkpoint["arch"] == "DigitsNet"
    assert (FIXTURES / "digits.pt").stat().st_size < 300_000
    model = pipeline["model"]()
    model.load_state_dict(checkpoint["state_dict"])
    pictures, labels = zip(*dataset, strict=True)
    with torch.inference_mode():
        right = (model.eval()(torch.stack(pictures)).argmax(1) == torch.tensor(labels)).sum().item()
    assert right == 486
