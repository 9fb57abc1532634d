"""Replay: every random source bit for bit, any number of workers, and an honest reason where it does not come out."""

from __future__ import annotations

import importlib
import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from places import CHECKPOINT, DIGITS, PIPELINE
from store_cases import rewrite
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import v2

import audit
from audit.cli.main import cli
from audit.errors import NotFound, UsageError


class Everything(Dataset):  # type: ignore[type-arg]
    """Draws from every kind of generator that people use."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(root.rglob("*.png"))
        self.numpy_generator = np.random.default_rng(3)
        self.torch_generator = torch.Generator().manual_seed(4)
        self.python_generator = random.Random(5)
        self.legacy = np.random.RandomState(6)
        self.philox = np.random.Generator(np.random.Philox(7))
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(12, antialias=True),
                transforms.RandomApply([transforms.ColorJitter(0.5, 0.5)], p=0.5),
                v2.RandomChoice([v2.RandomHorizontalFlip(1.0), v2.RandomRotation(20)]),
                transforms.ToTensor(),
                self.noise,
            ]
        )

    def noise(self, value: torch.Tensor) -> torch.Tensor:
        value = value + float(np.random.normal()) + random.gauss(0, 1) + float(torch.randn(()))
        value = value + self.numpy_generator.random() + self.python_generator.random() + self.legacy.normal()
        return value * float(torch.rand((), generator=self.torch_generator)) + self.philox.random()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.open(self.files[index])), index % 3


def record(dataset: Any, store: Path, *, workers: int, batch_size: int, epochs: int = 2, **options: Any) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    with audit.record(store, **options) as run:
        loader = run.loader(DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers))
        for _ in run.epochs(epochs):
            for _ in loader:
                random.random()


@pytest.mark.workers
@pytest.mark.parametrize(("workers", "batch_size", "replayed_with"), [(0, 4, 0), (0, 4, 2), (2, 3, 0), (2, 5, 1)])
def test_every_random_source_is_replayed_exactly(
    pictures: Callable[..., Path], tmp_path: Path, workers: int, batch_size: int, replayed_with: int
) -> None:
    images = pictures(count=14)
    record(Everything(images), tmp_path / "lineage", workers=workers, batch_size=batch_size)
    with audit.open(tmp_path / "lineage") as store:
        before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes())
        result = store.replay(dataset=Everything(images), workers=replayed_with)
        assert (result.checked, result.identical, result.different) == (28, 28, [])
        assert result.stage_outputs == store.sql("SELECT count(*) FROM stage_outputs").fetchone()[0]  # type: ignore[index]
        # Replaying is observing too: the caller's own random numbers go on as they were.
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1] == random.getstate()
        assert before[2] == np.random.get_state()[1].tobytes()
        # The draws really differ from visit to visit: equality is not an accident.
        digests = store.sql("SELECT count(DISTINCT digest) FROM stage_outputs WHERE name = 'noise'").fetchone()
        assert digests == (28,)


@pytest.mark.workers
def test_a_run_is_replayed_from_its_recipe(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "transform = v2.Compose([v2.RandomCrop(12), v2.AutoAugment(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),"
        " v2.RandomErasing(0.7)])"
    )
    audit.run(
        pictures(count=10), pipeline=pipeline, store=tmp_path / "lineage", workers=2, batch_size=3, capture="digest"
    )
    with audit.open(tmp_path / "lineage") as store:
        result = store.replay(workers=0)
        assert (result.checked, result.identical) == (10, 10)
        assert store.replay(indices=[3, 7]).checked == 2
        assert store.replay(sample=4).checked == 4
        with pytest.raises(NotFound):
            store.replay(indices=[99])


#: How far one thread counts before another stops it: 24 such numbers never come twice.
RACE = """
import threading
def race():
    stopped, count = threading.Event(), 0
    other = threading.Timer(0.0005, stopped.set)
    other.start()
    while not stopped.is_set():
        count += 1
    other.join()
    return count
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "name"),
    [
        ("value + int.from_bytes(__import__('os').urandom(2), 'little') / 65536", "os.urandom"),
        ("value + __import__('time').time_ns() % 1000003", "the clock"),
        ("value + next(COUNTER)", "a counter"),
        ("value + torch.tensor([race() for _ in range(24)])", "a race of threads"),
    ],
)
def test_hidden_randomness_is_never_called_identical(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, hidden: str, name: str
) -> None:
    pipeline = write_pipeline(
        f"import itertools\nCOUNTER = itertools.count()\n{RACE}\ndef hidden(value): return {hidden}\n"
        "transform = [transforms.ToTensor(), hidden]"
    )
    audit.run(pictures(count=6), pipeline=pipeline, store=tmp_path / "lineage", workers=0, capture="full")
    with audit.open(tmp_path / "lineage") as store:
        result = store.replay(workers=0)
        assert result.identical == 0, name
        assert {(item.name, item.reason) for item in result.different} == {("hidden", "not reproducible")}
        assert all(item.max_abs_diff is not None and item.max_abs_diff > 0 for item in result.different)


def test_the_reason_is_decided_by_evidence(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images = pictures(count=6)
    pipeline = write_pipeline(
        "def shade(value): return value * 2\ntransform = [transforms.Resize(8), transforms.ToTensor(), shade]"
    )
    store_path = tmp_path / "lineage"
    audit.run(images, pipeline=pipeline, store=store_path, workers=0)
    (images / "class_0" / "img_000.png").unlink()
    other = images / "class_1" / "img_001.png"
    Image.open(other).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(other)
    shutil.copy(images / "class_2" / "img_002.png", images / "class_0" / "img_000.png.bak")
    (images / "class_0" / "img_000.png.bak").unlink()
    # The missing file must still have its place in the listing, or every later index would mean another file.
    (images / "class_0" / "img_000.png").symlink_to(tmp_path / "gone.png")
    with audit.open(store_path) as store:
        result = store.replay(workers=0)
        reasons = {item.source: item.reason for item in result.different}
        assert reasons == {"class_0/img_000.png": "source missing", "class_1/img_001.png": "source changed"}
        assert result.identical == 4


def replayed_anew(store: Path, pipeline: Path) -> dict[str, Any]:
    """With the pipeline read again: Python imports a file once."""
    sys.modules.pop(pipeline.stem, None)
    importlib.invalidate_caches()
    command = ["replay", "--all", "--json", "--workers", "0", "--store", str(store)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code in (0, 1), done.output
    found: dict[str, Any] = json.loads(done.stdout) | {"exit": done.exit_code}
    return found


def test_changed_code_and_libraries_are_named(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file that is edited within the second that it was written in would be taken from the cache.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    images = pictures(count=3)
    pipeline = write_pipeline(
        "def shade(value): return value * 2\ntransform = [transforms.Resize(8), transforms.ToTensor(), shade]"
    )
    text = pipeline.read_text()
    audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0)
    assert replayed_anew(tmp_path / "lineage", pipeline)["exit"] == 0
    pipeline.write_text(text.replace("value * 2", "value * 3"))
    found = replayed_anew(tmp_path / "lineage", pipeline)
    assert {(item["name"], item["reason"]) for item in found["different"]} == {("shade", "code changed")}
    assert found["exit"] == 1
    pipeline.write_text(text.replace("Resize(8)", "Resize(9)"))
    found = replayed_anew(tmp_path / "lineage", pipeline)
    assert {(item["name"], item["reason"]) for item in found["different"]} == {("Resize", "code changed")}
    assert "[8]" in found["different"][0]["detail"] or "8" in found["different"][0]["detail"]
    pipeline.write_text(text)
    # A stage whose own description is unchanged, under another version of a library.
    run_json = next((tmp_path / "lineage" / "runs").glob("*/run.json"))
    rewrite(run_json, lambda content: content["run"]["versions"].update(pillow="1.0"))
    found = replayed_anew(tmp_path / "lineage", pipeline)
    assert found["identical"] == 3, "a library that makes no difference is not a difference"


def test_the_model_too(tmp_path: Path) -> None:
    audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0, limit=20)
    with audit.open(tmp_path / "lineage") as store:
        result = store.replay(model=True, workers=0)
        assert result.model is not None
        assert (result.model.checkpoint, result.model.compared, result.model.beyond) == ("unchanged", 20, [])
        changed = torch.load(CHECKPOINT, weights_only=True)
        changed["state_dict"]["fc2.bias"] += 1
        torch.save(changed, tmp_path / "other.pt")
        other = store.replay(model=str(tmp_path / "other.pt"), workers=0)
        assert other.model is not None
        assert (other.model.checkpoint, len(other.model.beyond), other.passed) == ("changed", 20, False)


def test_failed_samples_fail_again_the_same_way(pictures: Callable[..., Path], tmp_path: Path) -> None:
    images = pictures(count=5)
    (images / "class_0" / "img_000.png").write_bytes(b"no picture")
    audit.run(images, store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        assert store.replay(workers=0).identical == 5


def test_export_and_bad_requests(tmp_path: Path) -> None:
    audit.run(
        DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0, limit=4, capture="digest"
    )
    with audit.open(tmp_path / "lineage") as store:
        store.replay(indices=[2], export=str(tmp_path / "out"))
        array = np.load(tmp_path / "out" / "2-0-0" / "5.npy")
        assert np.array_equal(array, np.asarray(store.trace(index=2).value(5)))
    with audit.record(tmp_path / "own") as run:
        run.log(indices=[0], logits=[[1.0, 2.0]])
    with audit.open(tmp_path / "own") as store, pytest.raises(UsageError, match="dataset"):
        store.replay()
