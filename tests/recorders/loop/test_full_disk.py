"""A disk that turns out to be full when the last rows are written: the recording reports it, and so does every reader of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Questions
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.errors import RecordingError, StoreError
from audit.recorders.problems import RecordingWarning

pytestmark = pytest.mark.workers


def noise(count: int) -> Any:
    """Samples of 128 KB that nothing can compress."""
    return TensorDataset(torch.randint(0, 256, (count, 128, 1024), dtype=torch.uint8), torch.zeros(count))


def reported(place: Path) -> None:
    """The run in the store says why it ended, and counts only what is there."""
    ask = Questions(place)
    assert ask.status == "interrupted"
    assert sum("disk is full" in text for text in ask.warnings) == 1
    with audit.open(place) as store:
        run = store.runs()[-1]
        assert store.verify() == []
        assert run.finished_at is not None
        assert store.sql("SELECT count(*) FROM samples", run=run.run_id).fetchone() == (run.samples,)


@pytest.mark.parametrize("strict", [False, True])
def test_a_recording(tiny_disk: Path, strict: bool) -> None:
    run = audit.record(tiny_disk / "s", capture="full", strict=strict)
    assert sum(len(x) for x, _ in run.loader(DataLoader(noise(16), 4))) == 16
    expected: Any = pytest.raises(RecordingError, match="disk is full") if strict else contextlib.nullcontext()
    warned: Any = contextlib.nullcontext() if strict else pytest.warns(RecordingWarning, match="disk is full")
    with expected as caught, warned:
        run.close()
    if strict:
        # A loop of the user's own cannot be resumed.
        assert "--resume" not in str(caught.value)
    assert run.run.status == "interrupted"
    reported(tiny_disk / "s")


def test_a_run(tiny_disk: Path, pictures: Callable[..., Path]) -> None:
    folder = pictures(8, size=(256, 256))
    with pytest.raises(StoreError, match="disk is full"):
        audit.run(folder, store=tiny_disk / "s", capture="full", workers=0)
    reported(tiny_disk / "s")
