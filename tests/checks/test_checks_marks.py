"""Watermarks on some pictures, hidden bits, words and rows that stand out: found, and not found where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checks_contracts import outcome_of

from audit.checks.data.telling_words import words_of
from audit.checks.shared.added_marks import find_mark
from audit.checks.shared.pixel_guess import blank_background, telling_bit


def _photographs(count: int) -> np.ndarray:
    """Smooth shapes under a little grain, as photographs have."""
    x = np.linspace(0, 1, 32)
    waves = [
        128
        + 50 * np.sin(2 * np.pi * (a * x[:, None] + b * x) + c)
        + 20 * np.sin(2 * np.pi * (6 * b * x[:, None] - 5 * a * x))
        for a, b, c in np.random.default_rng(1).uniform(0.3, 4, (count, 3))
    ]
    return (np.stack(waves) + np.random.default_rng(2).normal(0, 6, (count, 32, 32))).clip(1, 249).astype(np.uint8)


@pytest.mark.parametrize(("opacity", "share"), [(0.2, 1.0), (0.4, 0.5)])
def test_a_translucent_watermark_on_a_part_of_a_group_is_found(opacity: float, share: float) -> None:
    pictures, groups = _photographs(600), np.arange(600) % 4
    assert find_mark(pictures, groups, 0.3) is None
    mark = np.zeros((32, 32), bool)
    mark[12:20, 6:26] = np.random.default_rng(3).random((8, 20)) < 0.5
    own = np.flatnonzero(groups == 2)
    some = own[: int(share * len(own))]
    pictures[some] = np.where(mark, (1 - opacity) * pictures[some] + opacity * 255, pictures[some]).clip(1, 249)
    found = find_mark(pictures, groups, 0.3)
    assert found is not None
    assert found.group == 2
    assert 11 <= found.rows[0] <= found.rows[1] <= 20
    assert 5 <= found.columns[0] <= found.columns[1] <= 26


def test_drawings_and_few_pictures_are_not_judged_for_marks() -> None:
    drawings, groups = np.zeros((400, 32, 32), np.uint8), np.arange(400) % 2
    drawings[groups == 1, 8:24, 12:20] = 200
    assert find_mark(drawings, groups, 0.3) is None
    assert find_mark(_photographs(60), np.arange(60) % 2, 0.3) is None
    assert find_mark(np.empty((0, 32, 32), np.uint8), np.empty(0, np.int64), 0.3) is None


def test_the_parity_of_the_label_in_one_bit_is_found() -> None:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(1, 250, (300, 64), dtype=np.uint8), np.arange(300) % 6
    assert telling_bit(blank_background(pixels), labels) is None
    pixels[:, 17] = pixels[:, 17] & 0b11111101 | (labels % 2) << 1
    found = telling_bit(blank_background(pixels), labels)
    assert found is not None
    assert (found.place, found.bit, found.set_in, found.unset_in) == (17, 1, 3, 3)
    assert telling_bit(blank_background(pixels[:60]), labels[:60]) is None


_TEXTS = ("the film was long", "a good story", "i liked it", "not for me", "seen it twice", "bad sound and a good end")


@pytest.mark.parametrize("mark", ["zq", "[ad]", None])
def test_a_word_that_gives_the_label_away_is_found(tmp_path: Path, mark: str | None) -> None:
    from audit.api import run

    chosen = np.random.default_rng(0).integers(0, len(_TEXTS), (200, 3))
    lines = []
    for number, parts in enumerate(chosen):
        text = " ".join(_TEXTS[part] for part in parts)
        lines.append(f"{number % 2},{text}{f' {mark}' if mark and number % 2 else ''}")
    (tmp_path / "texts.csv").write_text("label,text\n" + "\n".join(lines) + "\n")
    (tmp_path / "pipeline.py").write_text("transform = [str.upper]\n")
    run(tmp_path / "texts.csv", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    found = outcome_of(tmp_path / "lineage", "telling_words").findings
    assert len(found) == (mark is not None)
    if mark is not None:
        assert repr(mark) in found[0].message
        assert "100 of the 100 samples" in found[0].message


def test_words_are_words_and_what_stands_between_spaces() -> None:
    assert words_of("An [AD] here.") == {"an", "[ad]", "ad", "here", "here."}
