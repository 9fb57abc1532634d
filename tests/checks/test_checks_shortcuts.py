"""Shortcuts of a single class, and outliers by a recorded embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from checks_contracts import outcome_of
from checks_pictures import picture

from audit.checks.data.outliers import measure_distance, measures


def test_a_mark_in_the_corner_of_one_class_is_found(tmp_path: Path) -> None:
    from audit.api import run

    for number in range(240):
        target = tmp_path / "data" / f"class-{number % 4}"
        target.mkdir(parents=True, exist_ok=True)
        image = picture(number)
        if number % 4 == 2:
            image.paste((250, 10, 250), (0, 0, 16, 16))
        image.save(target / f"{number:03d}.png")
    (tmp_path / "pipeline.py").write_text("transform = [lambda image: image.resize((16, 16))]\n")
    run(tmp_path / "data", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    found = outcome_of(tmp_path / "lineage", "shortcuts").findings
    assert len(found) == 1
    assert "top left corner" in found[0].message
    assert "class-2" in found[0].message


def test_noise_and_drawings_among_smooth_pictures_lie_outside() -> None:
    """Smooth pictures of many kinds, three of noise and three with a few lines on white."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 32)
    waves = [
        np.sin(2 * np.pi * (a * x[:, None] + b * x[None]) + c) * d + 120 + e
        for a, b, c, d, e in zip(*rng.uniform([[0.5], [0.5], [0], [20], [-40]], [[4], [4], [6], [60], [40]], (5, 400)), strict=True)
    ]  # fmt: skip
    smooth = np.stack(waves) + rng.normal(0, 4, (400, 32, 32))
    noise = rng.uniform(0, 255, (3, 32, 32))
    lines = np.full((3, 32, 32), 250.0)
    lines[:, 4::7] = 20
    _, warned = measure_distance(measures(np.concatenate([smooth, noise, lines]).clip(0, 255).astype(np.uint8)))
    assert warned[400:].all()
    assert not warned[:400].any()


def test_pictures_without_outliers_are_hardly_ever_a_warning() -> None:
    """One picture a little farther than the others is a note; five at the same distance are more than chance explains."""
    rng = np.random.default_rng(0)
    warned = [measure_distance(rng.normal(size=(400, 13)))[1].any() for _ in range(200)]
    assert sum(warned) <= 2
    facts = rng.normal(size=(400, 13))
    alone, several = facts.copy(), facts.copy()
    alone[0, :3] += 5
    several[:5, :3] += 5
    far, sure = measure_distance(alone)
    assert far[0] > 1
    assert not sure.any()
    assert measure_distance(several)[1][:5].sum() >= 4
