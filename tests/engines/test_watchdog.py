"""A run ends, whatever its workers do: one that hangs or was stopped costs one sample, and the run says which."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import audit
from audit.recorders.problems import RecordingWarning
from audit.records import Progress

#: Without torchvision: each spawned worker would import it, for seconds.
HANGS = """
import os, signal, time
import numpy as np
import torch
def slow(value):
    value = torch.from_numpy(np.array(value)).permute(2, 0, 1)
    if int(value[0, 0, 0]) == PIXEL:
        ACTION
    return value
mode = "keep"
transform = [slow]
"""

CATCHES = """
        try:
            time.sleep(10_000)
        except TimeoutError:
            time.sleep(10_000)
"""


def hanging_pipeline(images: Path, action: str) -> Path:
    """A pipeline that does something bad at the eighth picture."""
    victim = sorted(images.rglob("*.png"))[7]
    with Image.open(victim) as picture:
        pixel = int(np.asarray(picture)[0, 0, 0])
    file = images.parent / f"hanging_{images.parent.name.replace('-', '_')}.py"
    file.write_text(HANGS.replace("PIXEL", str(pixel)).replace("ACTION", action))
    return file


def failures(store: Path) -> list[dict[str, Any]]:
    with audit.open(store) as opened:
        return opened.sql("SELECT index, failed_stage, error FROM failures ORDER BY index").dicts()


@pytest.mark.workers
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("action", ["time.sleep(10_000)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_worker_that_hangs_costs_one_sample(
    pictures: Callable[..., Path], tmp_path: Path, method: str, action: str
) -> None:
    images = pictures(count=12)
    reports: list[Progress] = []
    recorded = audit.run(
        images,
        pipeline=hanging_pipeline(images, action),
        store=tmp_path / "lineage",
        workers=2,
        batch_size=3,
        start_method=method,
        stall_timeout=3,
        progress=reports.append,
    )
    rows = failures(tmp_path / "lineage")
    assert recorded.status == "complete"
    assert recorded.samples == 12
    assert len(rows) == recorded.failed == 1
    assert rows[0]["failed_stage"] == "slow"
    assert rows[0]["error"].startswith("TimeoutError: the sample took longer than --stall-timeout allows")
    index = rows[0]["index"]
    assert any(progress.doing and f"waiting for sample {index}, stage slow, " in progress.doing for progress in reports)
    assert any(f"sample {index}, stage slow" in warning for warning in recorded.warnings)
    assert any(progress.note and f"sample {index}, stage slow" in progress.note for progress in reports)


@pytest.mark.workers
def test_a_worker_that_is_stopped_from_outside_costs_nothing(pictures: Callable[..., Path], tmp_path: Path) -> None:
    """Stopped once, at any place: its batch is made again."""
    marker = tmp_path / "stopped"
    action = f"""
        if not os.path.exists({str(marker)!r}):
            open({str(marker)!r}, "w").close()
            os.kill(os.getpid(), signal.SIGSTOP)"""
    images = pictures(count=12)
    pipeline = hanging_pipeline(images, action.strip())
    recorded = audit.run(
        images, pipeline=pipeline, store=tmp_path / "lineage", workers=2, batch_size=3, stall_timeout=2
    )
    assert (recorded.status, recorded.samples, recorded.failed) == ("complete", 12, 0)
    assert any("was stopped (SIGSTOP)" in warning for warning in recorded.warnings)


@pytest.mark.workers
def test_an_idle_worker_that_is_stopped_does_not_hang_the_run(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline("import time\ndef wait(v):\n    time.sleep(0.05)\n    return v\ntransform = [wait]\n")
    stopped: list[int] = []

    def children() -> set[int]:
        listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()  # of the main thread
        return {int(number) for number in listed.split()}

    others = children()  # what other tests have started and still use

    def stop_one(progress: Progress) -> None:
        workers = children() - others
        if progress.doing == "recording" and not stopped and workers:
            stopped.append(min(workers))
            os.kill(stopped[0], signal.SIGSTOP)

    recorded = audit.run(
        pictures(count=24),
        pipeline=pipeline,
        store=tmp_path / "lineage",
        workers=2,
        batch_size=2,
        stall_timeout=2,
        progress=stop_one,
    )
    assert stopped
    assert (recorded.status, recorded.samples, recorded.failed) == ("complete", 24, 0)


def test_without_workers_the_sample_is_interrupted(pictures: Callable[..., Path], tmp_path: Path) -> None:
    images = pictures(count=12)
    pipeline = hanging_pipeline(images, "time.sleep(10_000)")
    before = signal.getsignal(signal.SIGALRM)
    recorded = audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0, stall_timeout=1)
    rows = failures(tmp_path / "lineage")
    assert (recorded.status, recorded.samples, recorded.failed) == ("complete", 12, 1)
    assert rows[0]["failed_stage"] == "slow"
    assert rows[0]["error"].startswith("TimeoutError: the sample took longer than --stall-timeout allows")
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_sample_that_catches_the_interruption_is_interrupted_again(
    pictures: Callable[..., Path], tmp_path: Path
) -> None:
    images = pictures(count=12)
    pipeline = hanging_pipeline(images, CATCHES)
    recorded = audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0, stall_timeout=1)
    assert (recorded.status, recorded.samples, recorded.failed) == ("complete", 12, 1)
    assert failures(tmp_path / "lineage")[0]["failed_stage"] == "slow"
    assert len([text for text in recorded.warnings if "Without workers it can be stopped" in text]) == 1


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.workers)])
def test_a_run_that_is_broken_off_leaves_no_signal_handler(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, workers: int
) -> None:
    """Not even while the error is kept, which keeps the frames of the run."""
    pipeline = write_pipeline("transform = [transforms.ToTensor()]\n")
    kinds = (signal.SIGALRM, signal.SIGCHLD)
    iter(DataLoader(list(range(4)), num_workers=1))  # type: ignore[arg-type]  # torch sets a handler once in each process
    before = [signal.getsignal(kind) for kind in kinds]

    def stop(progress: Progress) -> None:
        if progress.doing == "recording" and progress.done:
            raise LookupError("stop")

    with pytest.raises(LookupError) as kept:
        audit.run(
            pictures(count=12),
            pipeline=pipeline,
            store=tmp_path / "lineage",
            workers=workers,
            batch_size=4,
            stall_timeout=30,
            progress=stop,
        )
    assert [signal.getsignal(kind) for kind in kinds] == before
    assert kept.value.__traceback__ is not None


def test_a_slow_sample_within_the_limit_is_a_sample_like_any_other(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images = pictures(count=12)
    pipeline = hanging_pipeline(images, "time.sleep(1.5)")
    recorded = audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=1, stall_timeout=60)
    assert (recorded.failed, recorded.warnings) == (0, [])


class Slow(Dataset[Any]):
    """Its sixth sample takes a few seconds, and until a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 5:
            time.sleep(3)
            for _ in range(600):
                if self.file.exists():
                    break
                time.sleep(0.1)
        return torch.full((3,), float(index)), 0


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 1])
def test_an_own_loop_is_warned_and_committed(tmp_path: Path, workers: int) -> None:
    seen = tmp_path / "seen"
    look = threading.Thread(target=wait_for_rows, args=(tmp_path / "lineage", seen))
    with pytest.warns(RecordingWarning, match=r"Sample 5 has taken .* in stage load"):
        iterate(tmp_path / "lineage", DataLoader(Slow(seen), batch_size=1, num_workers=workers), look)
    assert seen.exists(), "batches before the slow sample are in the store while the loop waits"
    with audit.open(tmp_path / "lineage") as store:
        found = store.runs()[-1]
        assert found.samples == 8
        assert any("Sample 5 has taken" in warning for warning in found.warnings)


def iterate(store: Path, loader: DataLoader[Any], look: threading.Thread) -> None:
    """Record a loop that waits for its sixth sample; somebody looks at the store meanwhile."""
    with audit.record(store, stall_timeout=1) as run:
        for number, _ in enumerate(run.loader(loader)):
            if number == 4:
                look.start()
        look.join()


def wait_for_rows(store: Path, seen: Path) -> None:
    """Write a file when a reader sees samples of a run that has not ended."""
    for _ in range(500):
        with audit.open(store) as opened:
            run = opened.runs()[-1]
        if run.samples and run.status == "running":
            seen.touch()
            return
        time.sleep(0.1)
