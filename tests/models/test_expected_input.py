"""What a checkpoint, or the preset of its architecture, states about the normalisation of its input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import models

from audit.models import load
from audit.models.expected_input import find_stated_input

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.2, 0.25]


@pytest.mark.parametrize(
    "checkpoint",
    [
        {"mean": MEAN, "std": STD},
        {"normalize": {"mean": torch.tensor(MEAN), "std": torch.tensor(STD)}},
        {"config": {"image_mean": [255 * value for value in MEAN], "image_std": [255 * value for value in STD]}},
    ],
)
def test_a_checkpoint_states_mean_and_std(checkpoint: dict[str, Any]) -> None:
    stated = find_stated_input(checkpoint)
    assert stated is not None
    assert stated["mean"] == pytest.approx(MEAN)
    assert stated["std"] == pytest.approx(STD)


@pytest.mark.parametrize(
    "checkpoint", [{}, {"mean": 0.91, "std": None}, {"mean": "high", "std": "low"}, {"std": [0, 1]}]
)
def test_other_entries_state_nothing(checkpoint: dict[str, Any]) -> None:
    assert find_stated_input(checkpoint) is None


def test_a_published_architecture_has_the_mean_of_its_preset_unless_the_file_states_its_own(tmp_path: Path) -> None:
    weights = models.resnet18().state_dict()
    torch.save(weights, tmp_path / "plain.pt")
    torch.save({"state_dict": weights, "arch": "resnet18", "mean": MEAN, "std": STD}, tmp_path / "own.pt")
    plain, own = (load(str(tmp_path / name)).expected for name in ("plain.pt", "own.pt"))
    assert plain is not None
    assert plain["mean"] == pytest.approx([0.485, 0.456, 0.406])
    assert own == {"mean": MEAN, "std": STD, "says": "the checkpoint"}
