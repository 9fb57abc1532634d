"""A class that lost its colour, drawings that were moved or inverted, and texts of one split in capital letters; each with its clean twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checks_contracts import outcome_of
from PIL import Image
from torch.utils.data import DataLoader

from audit.api import record, run
from audit.checks.runner import run_checks


def _record(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text("transform = [lambda image: image.resize((16, 16))]\n")
    run(tmp_path / "data", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    return tmp_path / "lineage"


@pytest.mark.parametrize(
    ("kept", "green", "said"),
    [(1.0, 1.0, None), (1 / 3, 1.0, "class-2 have paler colours"), (1.0, 0.6, "class-2 have less green")],
)
def test_a_class_with_other_colours_is_found(tmp_path: Path, kept: float, green: float, said: str | None) -> None:
    """Classes differ in their colours, and all of them have pale and colourful pictures."""
    rng = np.random.default_rng(0)
    for number in range(400):
        label = number % 4
        ground = rng.uniform(60, 190) + rng.normal(0, rng.uniform(10, 60), (4, 4, 3)) + 8 * np.eye(4)[label][:3]
        pixels = ground.repeat(10, 0).repeat(10, 1) + rng.normal(0, 8, (40, 40, 1))
        if label == 2:
            grey = pixels.mean(axis=2, keepdims=True)
            pixels = (grey + kept * (pixels - grey)) * [1, green, 1]
        target = tmp_path / "data" / f"class-{label}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target / f"{number:03d}.png")
    found = outcome_of(_record(tmp_path), "shortcuts").findings
    assert len(found) == (said is not None)
    assert all(said is not None and said in one.message for one in found)


@pytest.mark.parametrize("inverted", [0, 6])
def test_drawings_that_are_inverted_are_found(tmp_path: Path, inverted: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(120):
        pixels = np.zeros((28, 28), np.uint8)
        left, top = rng.integers(4, 14, 2)
        pixels[top : top + 10, left : left + int(rng.integers(2, 8))] = rng.integers(150, 255)
        target = tmp_path / "data" / "abc"[number % 3]
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - pixels if number < inverted else pixels).save(target / f"{number:03d}.png")
    found = [one for one in outcome_of(_record(tmp_path), "image_quality").findings if "inverted" in one.message]
    if inverted:
        assert [one.message.startswith("6 of 120 pictures have a white border") for one in found] == [True]
    else:
        assert not found


@pytest.mark.parametrize("moved", [(0, 0), (0, 3), (-3, 0)])
def test_a_class_of_drawings_that_was_moved_is_found(tmp_path: Path, moved: tuple[int, int]) -> None:
    """Each class has its own form, which lies about the middle."""
    rng = np.random.default_rng(0)
    forms = rng.random((4, 8, 8)) < 0.6
    for number in range(400):
        label = number % 4
        form = np.where(rng.random((8, 8)) < 0.15, rng.random((8, 8)) < 0.5, forms[label])
        pixels = np.pad(form.repeat(2, 0).repeat(2, 1), 6) * np.uint8(rng.integers(150, 255))
        pixels = np.roll(pixels, rng.integers(-1, 2, 2) + (np.array(moved) if label == 2 else 0), (0, 1))
        target = tmp_path / "data" / f"class-{label}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(target / f"{number:03d}.png")
    found = [one.message for one in outcome_of(_record(tmp_path), "shortcuts").findings]
    if any(moved):
        assert f"class-2 lie farther {'to the right' if moved[1] else 'up'} than 100% of the others" in found[0]
    else:
        assert not found


@pytest.mark.parametrize("capital", [False, True])
def test_texts_of_one_split_in_capital_letters_are_found(tmp_path: Path, capital: bool) -> None:
    rng = np.random.default_rng(0)
    words = ["One", "sample", "of", "the", "Data", "is", "read", "twice", "in", "Rome", "x2", "-", "by", "42", "people"]
    texts = [" ".join(rng.choice(words, int(rng.integers(5, 12)))) for _ in range(240)]
    parts = {"train": texts[:160], "test": [text.upper() if capital else text for text in texts[160:]]}
    with record(tmp_path / "lineage") as recording:
        for split, given in parts.items():
            data = [(text, number % 2) for number, text in enumerate(given)]
            for _ in recording.loader(DataLoader(data, batch_size=20), split=split):
                pass
    outcome = run_checks(tmp_path / "lineage", only=["split_drift"], record=False).outcome("split_drift")
    if capital:
        assert "share of capital letters in the texts differs between the splits train and test" in outcome.message
        assert len(outcome.findings) == 1
    else:
        assert outcome.status == "pass"
