"""Writes docs/DATASETS.md from the shapes that tests/recorders/test_calls.py records and replays.

PYTHONPATH=tests/support python tests/support/datasets_page.py
"""

from __future__ import annotations

from pathlib import Path

from dataset_shapes import SHAPES, Shape
from torch.utils.data import IterableDataset

PAGE = Path(__file__).parents[2] / "docs" / "DATASETS.md"
_INTRODUCTION = """# Datasets

How a dataset may keep its transforms, and what a recording in a loop of your own (`run.loader`, `run.dataset`) finds. Each
row is a test: the items and random numbers are those of the dataset alone, the stages are exactly these, and a replay gives
every stage again. `load` comes first in each. What is not seen is in `runs.unrecorded`, in a warning at the end of the run,
and in the check `stage_coverage`, with the function, file and line; `audit doctor FILE.py:dataset` says it before.

A stage is a call that was given a value of the sample (a picture, a tensor, an array, a text) and returned one. Operators
(`x / 255`), methods of the value itself (`image.convert`) and functions in C that the dataset's code calls directly
(`torch.from_numpy`) are not stages: put them into a function or method, or wrap them in `audit.stage`.

| shape | stages (path) | not seen | replay |
| --- | --- | --- | --- |
"""


def datasets_page() -> str:
    """Return the whole page."""
    return _INTRODUCTION + "".join(f"{_row(shape)}\n" for shape in SHAPES)


def _row(shape: Shape) -> str:
    stages = ", ".join(f"{_text(name)} (`{path}`)" for path, name in shape.stages)
    replayed = "in order only" if isinstance(shape.build(), IterableDataset) else "identical"
    return f"| {_text(shape.name)} | {stages or '–'} | {f'`{shape.unseen}`' if shape.unseen else ''} | {replayed} |"


def _text(name: str) -> str:
    return f"`{name}`" if "_" in name or "<" in name else name


if __name__ == "__main__":
    PAGE.write_text(datasets_page(), encoding="utf-8")
