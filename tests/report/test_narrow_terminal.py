"""What a narrow terminal shows: ids that can be typed again, and no picture without colours."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from places import DIGITS, PIPELINE
from rich.console import Console

import audit
from audit.records import Run
from audit.report.runs_text import runs_table


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place: Path = tmp_path_factory.mktemp("narrow") / "lineage"
    return audit.run(DIGITS, pipeline=PIPELINE, store=place, workers=0, limit=2, name="baseline")


def shown(runs: list[Run], width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(runs_table(runs, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [25, 40, 60, 80, 120, 200])
def test_every_width_shows_whole_ids_on_one_line(run: Run, width: int) -> None:
    runs = [run, replace(run, name="a name that is much longer than the others", accuracy=0.5)]
    header, *lines = shown(runs, width)
    assert len(lines) >= 2
    assert sum(run.run_id in line for line in lines) == 2
    assert all(len(line) <= width for line in lines)
    if width >= 40:
        assert "name" in header
    if width == 200:
        assert header.split() == [
            "run",
            "name",
            "status",
            "samples",
            "failed",
            "accuracy",
            "capture",
            "dataset",
            "begun",
        ]
        assert len(lines) == 2
