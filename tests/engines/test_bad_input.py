"""Broken files, broken transforms, dying workers: a failed sample is a row, and the rest of the run goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from places import CHECKPOINT, DIGITS, PIPELINE

import audit
from audit.errors import (
    AuditError,
    DatasetError,
    ModelError,
    NeedsTrust,
    PipelineError,
    RecordingError,
    StoreError,
    UnknownArchitecture,
    UsageError,
)


def samples(store: Path) -> list[dict[str, Any]]:
    with audit.open(store) as opened:
        return opened.sql("FROM samples ORDER BY index").dicts()


def hostile_folder(root: Path) -> dict[str, str]:
    """One file of each sort; gives what each must come to."""
    folder = root / "class_a"
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    (folder / "no_picture.png").write_text("this is not a picture")
    (folder / "empty.png").touch()
    picture.save(folder / "whole.png")
    (folder / "truncated.png").write_bytes((folder / "whole.png").read_bytes()[:700])
    Image.new("1", (20000, 20000)).save(folder / "bomb.png")
    Image.fromarray(np.arange(1024, dtype=np.uint16).reshape(32, 32) * 60).save(folder / "sixteen.png")
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    picture.convert("P").save(folder / "palette.png")
    picture.save(folder / "animated.gif", save_all=True, append_images=[picture.rotate(90)])
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.resize((40, 20)).save(folder / "rotated.jpg", exif=exif)
    picture.save(folder / "new\nline.png")
    picture.save(folder / "quote'\".png")
    picture.save(folder / "<script>.png")
    picture.save(folder / "emoji😀.png")
    picture.save(os.fsencode(folder) + b"/not-utf8-\xff.png", format="PNG")
    os.mkfifo(folder / "fifo.png")
    os.symlink(folder / "nowhere.png", folder / "broken_link.png")
    os.symlink(root, folder / "loop")
    fails = ("no_picture", "empty", "truncated", "bomb", "fifo", "broken_link")
    return {
        name: "failed" if name.split(".")[0] in fails else "ok" for name in sorted(os.listdir(folder)) if name != "loop"
    }


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 2])
def test_every_hostile_file_is_a_row(tmp_path: Path, write_pipeline: Callable[..., Path], workers: int) -> None:
    expected = hostile_folder(tmp_path / "images")
    pipeline = write_pipeline("transform = [transforms.Resize((8, 8)), transforms.PILToTensor()]")
    recorded = audit.run(
        tmp_path / "images", pipeline=pipeline, store=tmp_path / "lineage", workers=workers, batch_size=4
    )
    rows = samples(tmp_path / "lineage")
    assert recorded.status == "complete"
    assert len(rows) == recorded.samples == len(expected)
    found = {}
    for row in rows:
        raw = row["source_raw"] or os.fsencode(row["source"])
        found[os.fsdecode(raw).removeprefix("class_a/")] = row
    assert {name: row["status"] for name, row in found.items()} == expected
    for name, row in found.items():
        if expected[name] == "failed":
            assert row["failed_stage"] == "load", (name, row)
            assert row["error"]
        else:
            assert row["source_digest"]
    with audit.open(tmp_path / "lineage") as store:
        for row in rows:
            trace = store.trace(index=row["index"])
            assert trace.source_state in ("unchanged", "missing", "changed")
            if row["status"] == "ok":
                assert trace.source_state == "unchanged"
                assert len(trace.stages) == 3


BROKEN = """
def sometimes(value):
    value = transforms.functional.pil_to_tensor(value)
    if int(value.sum()) % 2:
        {action}
    return value
transform = [transforms.Resize((8, 8)), sometimes, torch.Tensor.float]
"""


@pytest.mark.workers
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("raise ValueError('odd\\nvalue')", "ValueError: odd"),
        ("raise StopIteration", "StopIteration"),
        ("return None", "sometimes returned None"),
        ("raise type('Odd', (Exception,), {'__reduce__': None, '__str__': lambda s: 1 / 0})()", "Odd"),
        ("raise SystemError('deep')", "SystemError: deep"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_breaks(
    pictures: Callable[..., Path],
    write_pipeline: Callable[..., Path],
    tmp_path: Path,
    action: str,
    message: str,
    workers: int,
) -> None:
    images = pictures(count=14)
    pipeline = write_pipeline(BROKEN.format(action=action))
    recorded = audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=workers, batch_size=3)
    rows = samples(tmp_path / "lineage")
    failed = [row for row in rows if row["status"] == "failed"]
    assert [row["index"] for row in rows] == list(range(14))
    assert 0 < len(failed) == recorded.failed < 14
    assert all(row["failed_stage"] == "sometimes" and message in row["error"] for row in failed)
    assert all(row["source"] and row["source_digest"] for row in failed)
    with audit.open(tmp_path / "lineage") as store:
        counts = dict(store.sql("SELECT index, count(*) FROM stage_outputs GROUP BY index").fetchall())
        assert all(counts[row["index"]] == (2 if row["status"] == "failed" else 4) for row in rows)


def test_strict_stops_at_the_first(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(BROKEN.format(action="raise ValueError('odd')"))
    with pytest.raises(RecordingError, match="failed"):
        audit.run(
            pictures(count=14), pipeline=pipeline, store=tmp_path / "lineage", workers=0, batch_size=1, strict=True
        )
    with audit.open(tmp_path / "lineage") as store:
        assert [run.status for run in store.runs()] == ["failed"]
        assert store.sql("SELECT count(*) FROM failures").fetchone() == (1,)


@pytest.mark.workers
@pytest.mark.parametrize("always", [True, False])
def test_a_worker_that_is_killed(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, always: bool
) -> None:
    marker = tmp_path / "killed"
    pipeline = write_pipeline(
        f"import os, signal\n"
        f"def deadly(value):\n"
        f"    value = transforms.functional.pil_to_tensor(value)\n"
        f"    if int(value[0, 0, 0]) == PIXEL and ({always} or not os.path.exists({str(marker)!r})):\n"
        f"        open({str(marker)!r}, 'w').close()\n"
        f"        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"    return value\n"
        f"transform = [deadly]\n"
    )
    images = pictures(count=12)
    victim = images / "class_1" / "img_007.png"
    pixel = int(np.asarray(Image.open(victim))[0, 0, 0])
    pipeline.write_text(pipeline.read_text().replace("PIXEL", str(pixel)))
    recorded = audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=2, batch_size=3)
    rows = samples(tmp_path / "lineage")
    assert recorded.status == "complete"
    assert [row["index"] for row in rows] == list(range(12))
    failed = [row for row in rows if row["status"] == "failed"]
    assert [row["source"] for row in failed] == (["class_1/img_007.png"] if always else [])
    if always:
        assert failed[0]["failed_stage"] == "worker"
        assert "killed" in failed[0]["error"]


@pytest.mark.workers
def test_a_worker_that_dies_with_a_batch_in_its_hands(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    """What it had made and not handed over is gone with it: the loader then finds a connection that nobody answers."""
    marker, died = tmp_path / "begun", tmp_path / "died"
    pipeline = write_pipeline(
        f"import os, signal, time\n"
        f"def deadly(value):\n"
        f"    time.sleep(0.1)\n"  # it is still making a batch when the loop begins to wait
        f"    if os.path.exists({str(marker)!r}) and not os.path.exists({str(died)!r}):\n"
        f"        time.sleep(1)\n"
        f"        open({str(died)!r}, 'w').close()\n"
        f"        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"    return transforms.functional.pil_to_tensor(value)\n"
        f"transform = [deadly]\n"
    )

    def slow(progress: Any) -> None:
        if progress.done and not died.exists():
            # While the loop is busy the worker makes the next batches, and dies over one of them.
            marker.touch()
            for _ in range(600):
                if died.exists():
                    break
                time.sleep(0.1)
            time.sleep(0.5)

    recorded = audit.run(
        pictures(count=12), pipeline=pipeline, store=tmp_path / "lineage", workers=1, batch_size=2, progress=slow
    )
    assert died.exists()
    assert (recorded.status, recorded.failed) == ("complete", 0)
    assert [row["index"] for row in samples(tmp_path / "lineage")] == list(range(12))


def test_datasets_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere"):
        audit.run(tmp_path / "nowhere", store=tmp_path / "lineage")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError):
        audit.run(tmp_path / "empty", store=tmp_path / "lineage")
    assert not (tmp_path / "lineage").exists(), "nothing is recorded when there is nothing to record"


def test_an_imported_module_is_no_joint_transform(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    """`from torchvision import transforms`, which the written file has, beside a function that builds the dataset."""
    text = "from torchvision.datasets import ImageFolder\ndef dataset(root):\n    return ImageFolder(root, transforms.ToTensor())"
    recorded = audit.run(pictures(count=2), pipeline=write_pipeline(text), store=tmp_path / "lineage", workers=0)
    assert (recorded.status, recorded.samples, recorded.failed) == ("complete", 2, 0)


def test_pipelines_that_cannot_be(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images = pictures(count=2)
    for text, message in [
        ("x = 1", "defines no transform"),
        ("transform = 3", "not a transform"),
        ("transform = [transforms.ToTensor(), 3]", "cannot be called"),
        ("raise RuntimeError('deliberate')", "deliberate"),
        ("transform = (", "SyntaxError"),
    ]:
        with pytest.raises(PipelineError, match=message):
            audit.run(images, pipeline=write_pipeline(text), store=tmp_path / "lineage", workers=0)
    with pytest.raises(PipelineError, match="no pipeline file"):
        audit.run(images, pipeline=tmp_path / "none.py", store=tmp_path / "lineage")


@pytest.mark.slow
def test_checkpoints_that_cannot_be(pictures: Callable[..., Path], tmp_path: Path) -> None:
    images = pictures(count=2)
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"layer.weight": torch.zeros(3, 5, 7)}, tmp_path / "unknown.pt")
    (tmp_path / "truncated.pt").write_bytes(CHECKPOINT.read_bytes()[:5000])
    torch.save(torch.nn.Linear(2, 2), tmp_path / "pickled.pt")
    for name, error in [
        ("none.pt", ModelError),
        ("text.pt", ModelError),
        ("truncated.pt", ModelError),
        ("pickled.pt", NeedsTrust),
        ("unknown.pt", UnknownArchitecture),
    ]:
        with pytest.raises(error) as caught:
            audit.run(images, model=tmp_path / name, store=tmp_path / "lineage", workers=0)
        assert caught.value.hint, name
    assert not (tmp_path / "lineage").exists()


def test_a_model_that_does_not_fit_the_pipeline(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline("transform = [transforms.ToTensor()]\ndef model(): return torch.nn.Linear(7, 3)")
    torch.save(torch.nn.Linear(7, 3).state_dict(), tmp_path / "linear.pt")
    with pytest.raises(ModelError, match="could not be run on a batch of"):
        audit.run(
            pictures(count=4), pipeline=pipeline, model=tmp_path / "linear.pt", store=tmp_path / "lineage", workers=0
        )
    with audit.open(tmp_path / "lineage") as store:
        assert [run.status for run in store.runs()] == ["failed"]
        assert any("could not be run" in warning for warning in store.runs()[0].warnings)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("bad", ["odd", "value"])
def test_a_sample_that_the_model_cannot_take(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, batch_size: int, bad: str
) -> None:
    """By its shape, or by its content: it fails alone, also if it is the first."""
    images = pictures(count=6)
    first = sorted(path for path in images.rglob("*.png"))[0]
    Image.new("RGB", *((7, 5), (0, 0, 255)) if bad == "odd" else ((24, 18), (255, 0, 0))).save(first)
    pipeline = write_pipeline(
        """
transform = [transforms.ToTensor()]
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3 * 18 * 24, 2)
    def forward(self, x):
        if bool((x[:, 0] == 1).flatten(1).all(1).any()):
            raise ValueError("too red")
        return self.fc(x.flatten(1))
def model(): return Model()
"""
    )
    torch.manual_seed(0)
    torch.save(torch.nn.ModuleDict({"fc": torch.nn.Linear(3 * 18 * 24, 2)}).state_dict(), tmp_path / "model.pt")
    run = audit.run(
        images,
        pipeline=pipeline,
        model=tmp_path / "model.pt",
        store=tmp_path / "lineage",
        workers=0,
        batch_size=batch_size,
    )
    assert (run.status, run.samples, run.failed) == ("complete", 6, 1)
    with audit.open(tmp_path / "lineage") as store:
        ((index, stage, error),) = store.sql("SELECT index, failed_stage, error FROM failures").fetchall()
        assert (index, stage) == (0, "model")
        assert ("too red" if bad == "value" else "shapes cannot be multiplied") in error
        assert store.sql("SELECT index FROM predictions ORDER BY index").fetchall() == [(n,) for n in range(1, 6)]
        assert store.sql("SELECT count(*) FROM stage_outputs WHERE index = 0").fetchall() == [(2,)]
        assert store.replay(trust=True).identical == 6
        report = store.check(only=["coverage", "alignment", "unreadable"])
        found = {one.check: one.status for one in report.outcomes}
        assert found == {"coverage": "pass", "alignment": "pass", "unreadable": "fail"}


def test_more_classes_than_outputs(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "def model(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 18 * 24, 2))\n"
        "transform = [transforms.ToTensor()]\n"
    )
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 18 * 24, 2))
    torch.save(network.state_dict(), tmp_path / "two.pt")
    images = pictures(count=9, classes=3)
    manifest = tmp_path / "images" / "manifest.csv"
    files = sorted(images.rglob("*.png"))
    manifest.write_text("path,label\n" + "".join(f"{f.relative_to(images)},{n % 5}\n" for n, f in enumerate(files)))
    recorded = audit.run(manifest, pipeline=pipeline, model=tmp_path / "two.pt", store=tmp_path / "lineage", workers=0)
    assert any("outside" in warning for warning in recorded.warnings)
    with audit.open(tmp_path / "lineage") as store:
        rows = store.sql("SELECT label, loss, label_rank, correct FROM predictions").fetchall()
        assert all((loss is None and rank is None and not correct) for label, loss, rank, correct in rows if label >= 2)
        assert all(loss is not None for label, loss, _, _ in rows if label < 2)


def test_non_finite_logits_are_kept_and_flagged(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "class Broken(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.zeros(1))\n"
        "    def forward(self, x):\n"
        "        logits = x.mean((2, 3)) + self.w\n"
        "        logits[0, 1] = float('nan')\n"
        "        return logits\n"
        "model = Broken\n"
        "transform = [transforms.ToTensor()]\n"
    )
    torch.save({"w": torch.zeros(1)}, tmp_path / "nan.pt")
    audit.run(
        pictures(count=6),
        pipeline=pipeline,
        model=tmp_path / "nan.pt",
        store=tmp_path / "lineage",
        workers=0,
        batch_size=3,
    )
    with audit.open(tmp_path / "lineage") as store:
        rows = store.sql(
            "SELECT index, predicted, confidence, correct, logits FROM predictions ORDER BY index"
        ).fetchall()
        for index, predicted, confidence, correct, logits in rows:
            broken = index % 3 == 0
            assert bool(np.isnan(logits).any()) == broken
            assert (predicted is None) == (confidence is None) == broken
            assert not (broken and correct)


def test_stores_that_cannot_be_written(tmp_path: Path) -> None:
    options = {"model": CHECKPOINT, "pipeline": PIPELINE, "workers": 0, "limit": 5}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(StoreError, match="not an audit store"):
        audit.run(DIGITS, store=tmp_path / "full", **options)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        audit.run(DIGITS, store=tmp_path / "file", **options)
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "audit.json").write_text('{"name": "audit-lineage", "version": 99}')
    with pytest.raises(StoreError, match="version 99"):
        audit.run(DIGITS, store=newer, **options)


def test_wrong_options(tmp_path: Path) -> None:
    for options in (
        {"batch_size": 0},
        {"workers": -1},
        {"limit": 0},
        {"capture": "everything"},
        {"capture_where": "loss > 1"},
    ):
        with pytest.raises(UsageError):
            audit.run(DIGITS, store=tmp_path / "lineage", **options)
    with pytest.raises(UsageError, match="not a condition"):
        audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=tmp_path / "lineage", capture_where="nonsense > 1")
    with pytest.raises(UsageError):
        audit.run(DIGITS, store=tmp_path / "lineage", name="latest")


def test_errors_survive_pickling() -> None:
    import pickle

    error = NeedsTrust("message", hint="hint")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.hint, str(again)) == (NeedsTrust, "message", "hint", str(error))
    assert isinstance(again, AuditError)


@pytest.mark.workers
@pytest.mark.parametrize(
    ("action", "message"),
    [("raise ValueError('caf\\udce9.png')", "caf\\udce9.png"), ("raise SystemExit(3)", "SystemExit: 3")],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_odd_errors_of_a_transform_are_rows_too(
    pictures: Callable[..., Path],
    write_pipeline: Callable[..., Path],
    tmp_path: Path,
    action: str,
    message: str,
    workers: int,
) -> None:
    pipeline = write_pipeline(BROKEN.format(action=action))
    recorded = audit.run(pictures(count=8), pipeline=pipeline, store=tmp_path / "lineage", workers=workers)
    failed = [row for row in samples(tmp_path / "lineage") if row["status"] == "failed"]
    assert recorded.status == "complete"
    assert 0 < len(failed) < 8
    assert all(row["failed_stage"] == "sometimes" and message in row["error"] for row in failed)


def test_a_pipeline_with_a_memory_sees_each_sample_once(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "import itertools\nCOUNT = itertools.count()\n"
        "def counted(value): return value + next(COUNT)\ntransform = [transforms.PILToTensor(), torch.Tensor.long, counted]"
    )
    audit.run(pictures(count=5), pipeline=pipeline, store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        for index in range(5):
            trace = store.trace(index=index)
            assert int((trace.value(3) - trace.value(2)).max()) == index


def test_strict_names_the_sample(tmp_path: Path, pictures: Callable[..., Path]) -> None:
    images = pictures(count=4)
    (images / "class_1" / "img_001.png").write_bytes(b"no picture")
    with pytest.raises(RecordingError, match=r"class_1/img_001\.png.*failed at load"):
        audit.run(images, store=tmp_path / "lineage", workers=0, strict=True)


@pytest.mark.slow
def test_hostile_names_can_be_traced_by_name(tmp_path: Path) -> None:
    hostile_folder(tmp_path / "images")
    audit.run(tmp_path / "images", store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        for name in ("class_a/new\nline.png", os.fsdecode(b"class_a/not-utf8-\xff.png"), "class_a/emoji😀.png"):
            assert store.trace(source=name).sample["status"] == "ok"


@pytest.mark.parametrize("name", ["dataset", "model", "pipeline"])
def test_an_object_where_a_path_is_due_is_a_sentence(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {"dataset": str(DIGITS), name: torch.nn.Identity()}
    with pytest.raises(UsageError, match=f"{name}= is an object of the class Identity") as raised:
        audit.run(**given, store=tmp_path / "lineage")
    assert "audit.record" in str(raised.value.hint)
    assert not (tmp_path / "lineage").exists()
