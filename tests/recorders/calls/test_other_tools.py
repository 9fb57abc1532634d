"""Profilers, debuggers and tools for coverage keep what they observe, and audit finds the same stages, or says what it did not see."""

from __future__ import annotations

import cProfile
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import audit


def scaler(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scale


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = torch.arange(48.0).reshape(4, 12)
        self.scale = scaler(3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.scale(self.rows[index]), index % 2


class Unseen(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.rows[index] / 255, index % 2


def record(folder: Path, dataset: Dataset[Any], workers: int) -> tuple[list[str], list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(folder, strict=True) as run:
            list(run.loader(DataLoader(dataset, 2, num_workers=workers)))
    with audit.open(folder) as store:
        paths = [path for (path,) in store.sql("SELECT path FROM stages ORDER BY stage").fetchall()]
    return paths, list(run.run.unrecorded or [])


WORKERS = [0, pytest.param(2, marks=pytest.mark.workers)]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_profiler_keeps_its_counts(workers: int, tmp_path: Path) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        paths, unseen = record(tmp_path / "a", Rows(), workers)
        alone, sentences = record(tmp_path / "b", Unseen(), workers)
    finally:
        profiler.disable()
    assert (paths, alone) == (["0", "call.scale"], ["0"])
    if sys.version_info < (3, 12):  # from 3.12 on, cProfile has a hook of its own beside ours
        assert "another profiler is active" in unseen[0]
        assert "another profiler is active" in sentences[0]
    else:
        assert unseen == []
        assert "__getitem__" in sentences[0]
    if not workers:
        made = [one for one in profiler.getstats() if getattr(one.code, "co_qualname", "") == "Rows.__getitem__"]
        assert [one.callcount for one in made] == [4]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_debugger_sees_the_users_code_and_its_variables(workers: int, tmp_path: Path) -> None:
    seen: set[tuple[str, int]] = set()
    variables: set[str] = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            seen.add((frame.f_code.co_name, frame.f_lineno))
            variables.update(frame.f_locals)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        paths, unseen = record(tmp_path, Rows(), workers)
    finally:
        sys.settrace(before)
    assert (paths, unseen) == (["0", "call.scale"], [])
    if not workers:
        line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "x * factor" in text)
        assert ("scale", line) in seen
        assert {"x", "factor"} <= variables
