"""What people do to a run between recording and replaying it, and each way of asking for a replay."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from places import CHECKPOINT, DIGITS, PIPELINE
from store_cases import rewrite
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, WeightedRandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

import audit
from audit.cli.main import cli
from audit.errors import NotFound, UsageError

NOISE = "transform = [transforms.RandomCrop(12), transforms.ToTensor(), transforms.RandomErasing(0.5)]"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def noisy() -> Any:
    return transforms.Compose([transforms.RandomResizedCrop(10), transforms.ColorJitter(0.5), transforms.ToTensor()])


def record(store: Path, loader: DataLoader[Any], *, epochs: int = 1, split: str | None = None) -> None:
    with audit.record(store) as run:
        recorded = run.loader(loader, split=split)
        for _ in run.epochs(epochs):
            for _ in recorded:
                pass


def replayed_anew(store: Path, *modules: Path) -> dict[str, Any]:
    """With code that is read again: Python imports a file once."""
    for module in modules:
        sys.modules.pop(module.stem, None)
    importlib.invalidate_caches()
    done = invoke("replay", "--all", "--json", "--workers", 0, "--store", store)
    assert done.exit_code in (0, 1), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if found["checked"] == found["identical"] else 1)
    return found


@pytest.fixture
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is edited within the second that it was written in would be taken from the cache."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


# -- ways of asking ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("replay") / "lineage"
    audit.run(
        DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=store, workers=0, limit=70, name="first", capture="digest"
    )
    return store


@pytest.mark.slow
def test_the_command(digits: Path, tmp_path: Path) -> None:
    done = invoke("replay", "first", "--all", "--workers", 0, "--store", digits)
    assert (done.exit_code, "70 of 70 visits identical" in done.stdout) == (0, True)
    found = json.loads(invoke("replay", "first", 3, 5, "--json", "--workers", 0, "--store", digits).stdout)
    assert (found["checked"], found["identical"], found["different"]) == (2, 2, [])
    found = json.loads(
        invoke("replay", "--sample", 9, "--stage", 4, "--json", "--workers", 0, "--store", digits).stdout
    )
    assert (found["checked"], found["stage_outputs"]) == (9, 9)
    found = json.loads(invoke("replay", "--epoch", 0, "--json", "--workers", 0, "--store", digits).stdout)
    assert found["checked"] == 70
    out = tmp_path / "out"
    assert invoke("replay", 2, "--export", out, "--stage", 5, "--workers", 0, "--store", digits).exit_code == 0
    assert sorted(path.name for path in (out / "2-0-0").iterdir() if path.suffix == ".npy") == ["5.npy"]
    for refused, code in (
        (("--epoch", 4), 1), (("999",), 1), (("--stage", 77), 2), (("--all", "--sample", 3), 2), (("first", "x"), 2)
    ):  # fmt: skip
        assert invoke("replay", *refused, "--store", digits).exit_code == code, refused


@pytest.mark.workers
def test_progress_and_workers_in_parallel(digits: Path) -> None:
    reported: list[tuple[int, int]] = []
    with audit.open(digits) as store:
        result = store.replay(workers=2, progress=lambda now: reported.append((now.done, now.total)))
    assert (result.identical, reported[-1], len(reported)) == (70, (70, 70), 70)


@pytest.mark.workers
def test_logits_are_compared_in_batches_within_a_stated_tolerance(digits: Path) -> None:
    done = invoke("replay", "--model", "--workers", 0, "--store", digits)
    assert done.exit_code == 0
    assert "70 compared" in done.stdout
    assert "tolerance 0.0001" in done.stdout
    assert "the checkpoint is unchanged" in done.stdout
    with audit.open(digits) as store:
        result = store.replay(model=True, sample=40, workers=2)
    assert result.model is not None
    assert (result.model.compared, result.model.beyond) == (40, [])


def test_a_loop_of_ones_own_does_not_say_which_model(pictures: Callable[..., Path], tmp_path: Path) -> None:
    dataset = ImageFolder(str(pictures(count=4)), noisy())
    record(tmp_path / "lineage", DataLoader(dataset))
    with audit.open(tmp_path / "lineage") as store:
        with pytest.raises(UsageError, match="user's own loop") as refused:
            store.replay(dataset=dataset, model=True)
        assert "--model CKPT" in str(refused.value.hint)


# -- datasets ----------------------------------------------------------------------------------------------------------


class Items(Dataset):  # type: ignore[type-arg]
    """Tells of a stage from inside, and works on what its transform gave."""

    def __init__(self, count: int = 6) -> None:
        self.count = count
        self.transform = transforms.RandomErasing(1.0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        with audit.stage("noise") as stage:
            value = stage.out(torch.full((3, 8, 8), float(index)) + torch.rand(3, 8, 8))
        value = self.transform(value)
        return value * float(np.random.normal()), index % 2


class Numbers(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.workers
def test_repeated_indices(pictures: Callable[..., Path], tmp_path: Path) -> None:
    dataset = ImageFolder(str(pictures(count=5)), noisy(), target_transform=_label)
    sampler = WeightedRandomSampler([1.0, 5.0, 1.0, 9.0, 1.0], 20)
    record(tmp_path / "lineage", DataLoader(dataset, batch_size=3, sampler=sampler, num_workers=2), epochs=2)
    with audit.open(tmp_path / "lineage") as store:
        assert store.sql("SELECT max(visit) FROM samples").fetchone()[0] > 1  # type: ignore[index]
        result = store.replay(dataset=ImageFolder(dataset.root, noisy(), target_transform=_label), workers=0)
        assert (result.checked, result.identical) == (40, 40)
        assert {row[0] for row in store.sql("SELECT path FROM stages").fetchall()} >= {"target.1"}
        assert store.replay(dataset=dataset, epoch=1, workers=0).checked == 20


def _label(label: int) -> int:
    return label + int(np.random.randint(10))


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 2])
def test_stages_marked_inside_and_what_follows_the_transform(tmp_path: Path, workers: int) -> None:
    record(tmp_path / "lineage", DataLoader(Items(), batch_size=2, num_workers=workers, shuffle=True))
    with audit.open(tmp_path / "lineage") as store:
        paths = {row[0] for row in store.sql("SELECT path FROM stages").fetchall()}
        assert {"inside.noise", "inside.item"} <= paths
        result = store.replay(dataset=Items(), workers=0)
        assert (result.checked, result.identical, result.stage_outputs) == (6, 6, 18)
        assert result.not_compared == {"0 (load)": 6}, "what the first block was given is not known"


class Named(Items):
    """Does its own steps, in methods."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.second(self.first(torch.full((3, 8, 8), float(index)))), 0

    def first(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.rand(3, 8, 8)

    def second(self, value: torch.Tensor) -> torch.Tensor:
        return value * float(np.random.normal())


@pytest.mark.workers
def test_stages_pointed_out_by_name(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        for _ in DataLoader(run.dataset(Named(), stages=["first", "second"]), num_workers=1):
            pass
    with audit.open(tmp_path / "lineage") as store:
        assert {row[0] for row in store.sql("SELECT name FROM stages").fetchall()} >= {"load", "first", "second"}
        result = store.replay(dataset=Named(), workers=0)
        assert (result.checked, result.identical) == (6, 6), result.different[:2]


class Albumented(Dataset):  # type: ignore[type-arg]
    """Its transform is a pipeline of Albumentations, whose generators are seeded by the system."""

    def __init__(self) -> None:
        a = pytest.importorskip("albumentations")
        self.transform = a.Compose(
            [
                a.OneOf([a.HorizontalFlip(p=1), a.Rotate(30, p=1)], p=0.8),
                a.SomeOf([a.RandomGamma(p=1), a.GaussNoise(p=1), a.ChannelShuffle(p=1)], n=2, p=0.7),
                a.CoarseDropout(p=0.5),
            ]
        )

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        return torch.from_numpy(self.transform(image=picture)["image"]), index % 2


@pytest.mark.workers
def test_albumentations_by_itself(tmp_path: Path) -> None:
    record(tmp_path / "lineage", DataLoader(Albumented(), batch_size=3, num_workers=2, shuffle=True), epochs=2)
    with audit.open(tmp_path / "lineage") as store:
        result = store.replay(dataset=Albumented(), workers=0)
        assert (result.checked, result.identical) == (20, 20), result.different[:2]
        assert result.stage_outputs >= 100


def test_iterable_datasets_are_refused_with_a_reason(tmp_path: Path) -> None:
    record(tmp_path / "lineage", DataLoader(Numbers(), batch_size=2))
    with audit.open(tmp_path / "lineage") as store, pytest.raises(UsageError, match="only in order"):
        store.replay(dataset=Numbers())


@pytest.mark.workers
def test_subsets_concatenations_and_two_datasets_in_one_run(pictures: Callable[..., Path], tmp_path: Path) -> None:
    root = str(pictures(count=9))

    def built() -> Any:
        plain = ImageFolder(root, transforms.Compose([transforms.RandomCrop(9), transforms.ToTensor()]))
        return ConcatDataset([Subset(ImageFolder(root, noisy()), [7, 3, 1]), plain])

    record(tmp_path / "joined", DataLoader(built(), batch_size=1, num_workers=1, shuffle=True))
    with audit.open(tmp_path / "joined") as store:
        assert store.replay(dataset=built(), workers=0).identical == 12
    with audit.record(tmp_path / "both") as run:
        train = run.loader(DataLoader(ImageFolder(root, noisy())), split="train")
        test = run.loader(DataLoader(Items(), num_workers=1), split="test")
        for loader in (train, test):
            for _ in loader:
                pass
    with audit.open(tmp_path / "both") as store:
        both = {"train": ImageFolder(root, noisy()), "test": Items()}
        assert (store.replay(dataset=both, workers=0).checked, store.replay(dataset=both).identical) == (15, 15)
        with pytest.raises(UsageError, match="by split: test, train"):
            store.replay(dataset=Items())
        with pytest.raises(UsageError, match="'other'"):
            store.replay(dataset={"other": Items()})


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.workers
def test_spawned_workers(pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path) -> None:
    store_path = tmp_path / "lineage"
    audit.run(
        pictures(count=4),
        pipeline=write_pipeline(NOISE),
        store=store_path,
        workers=1,
        start_method="spawn",
        batch_size=3,
    )
    with audit.open(store_path) as store:
        assert store.replay(workers=0).identical == 4


@pytest.mark.workers
def test_failed_samples_in_a_loop_and_workers_that_die(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "import os\ndef deadly(value):\n    if value[1, 0, 0] > 0.85: os._exit(9)\n    if value[0, 0, 0] > 0.7: raise ValueError('too bright')\n"
        "    return value\ntransform = [transforms.ToTensor(), deadly]"
    )
    audit.run(pictures(count=12), pipeline=pipeline, store=tmp_path / "lineage", workers=1, batch_size=4)
    with audit.open(tmp_path / "lineage") as store:
        stages = {row[0] for row in store.sql("SELECT DISTINCT failed_stage FROM samples").fetchall()}
        assert {"worker", "deadly"} <= stages
        result = store.replay(workers=1)
        assert (result.checked, result.identical) == (12, 12)


# -- what changes in between -------------------------------------------------------------------------------------------


def test_files_added_removed_and_restored(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images = pictures(count=8)
    audit.run(images, pipeline=write_pipeline(NOISE), store=tmp_path / "lineage", workers=0)
    first, second = sorted(images.rglob("*.png"))[:2]
    Image.new("RGB", (24, 18)).save(images / "class_0" / "aaa_new.png")
    content, other = first.read_bytes(), second.read_bytes()
    with audit.open(tmp_path / "lineage") as store:
        # Every index means another file now; each sample is found by its source.
        assert store.replay(workers=0).identical == 8
        first.unlink()
        result = store.replay(workers=0)
        assert [(item.source, item.reason) for item in result.different] == [("class_0/img_000.png", "source missing")]
        Image.new("RGB", (24, 18)).save(second)
        result = store.replay(workers=0)
        assert {item.reason for item in result.different} == {"source missing", "source changed"}
        first.write_bytes(content)
        second.write_bytes(other)
        assert store.replay(workers=0).identical == 8


def test_a_dataset_that_has_become_shorter(tmp_path: Path) -> None:
    record(tmp_path / "lineage", DataLoader(Items(6)))
    with audit.open(tmp_path / "lineage") as store:
        result = store.replay(dataset=Items(4), workers=0)
        assert result.identical == 4
        assert [(item.index, item.reason) for item in result.different] == [
            (4, "source missing"),
            (5, "source missing"),
        ]
        assert "4 samples now" in result.different[0].detail


@pytest.mark.usefixtures("no_bytecode")
def test_library_changed(
    pictures: Callable[..., Path],
    write_pipeline: Callable[..., Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stage that calls a library, which is another version now: its code is not the pipeline's."""
    library = tmp_path_factory.mktemp("library") / "tinylibrary_of_replay.py"
    library.write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(str(library.parent))
    pipeline = write_pipeline(
        "import tinylibrary_of_replay\ndef scaled(value): return value * tinylibrary_of_replay.FACTOR\n"
        "transform = [transforms.ToTensor(), scaled]"
    )
    store = tmp_path / "lineage"
    audit.run(pictures(count=3), pipeline=pipeline, store=store, workers=0)
    library.write_text("FACTOR = 3\n")
    found = replayed_anew(store, pipeline, library)
    assert {(item["name"], item["reason"]) for item in found["different"]} == {("scaled", "not reproducible")}
    assert found["different"][0]["max_abs_diff"] == pytest.approx(1.0, abs=0.1)
    run_json = next((store / "runs").glob("*/run.json"))
    rewrite(run_json, lambda content: content["run"]["versions"].update(pillow="1.0"))
    found = replayed_anew(store, pipeline, library)
    assert {item["reason"] for item in found["different"]} == {"library changed"}
    assert "pillow 1.0 → " in found["different"][0]["detail"]
    library.write_text("FACTOR = 2\n")
    assert replayed_anew(store, pipeline, library)["identical"] == 3


@pytest.mark.usefixtures("no_bytecode")
def test_a_constant_or_a_stage_more_is_changed_code(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "FACTOR = 2\ndef scaled(value): return value * FACTOR\ntransform = [transforms.ToTensor(), scaled]"
    )
    text = pipeline.read_text()
    store = tmp_path / "lineage"
    audit.run(pictures(count=3), pipeline=pipeline, store=store, workers=0)
    pipeline.write_text(text.replace("FACTOR = 2", "FACTOR = 3"))
    found = replayed_anew(store, pipeline)
    assert {(item["name"], item["reason"]) for item in found["different"]} == {("scaled", "code changed")}
    pipeline.write_text(text.replace("scaled]", "scaled, transforms.Resize(5)]"))
    found = replayed_anew(store, pipeline)
    assert {item["reason"] for item in found["different"]} == {"code changed"}
    assert "one more stage" in found["different"][0]["detail"]
    pipeline.write_text(text)
    assert replayed_anew(store, pipeline)["identical"] == 3


@pytest.mark.workers
def test_set_order_is_caught_over_processes(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    """Python hashes text by a seed of the process; here it is another, and so is the order of a set."""
    pipeline = write_pipeline(
        "def ordered(value): return value + int(''.join({'1', '2', '3', '4', '5', '6', '7'}))\n"
        "transform = [transforms.ToTensor(), ordered]"
    )
    command = [sys.executable, "-m", "audit", "run", "--dataset", str(pictures(count=3)), "--pipeline", str(pipeline)]
    command += ["--store", str(tmp_path / "lineage"), "--workers", "0"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "1"}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = replayed_anew(tmp_path / "lineage")
    if os.environ.get("PYTHONHASHSEED") != "1":
        assert {(item["name"], item["reason"]) for item in found["different"]} == {("ordered", "not reproducible")}
        assert "agree with each other" in found["different"][0]["detail"]


def test_nothing_found_is_said_so(tmp_path: Path) -> None:
    record(tmp_path / "lineage", DataLoader(Items()))
    with audit.open(tmp_path / "lineage") as store:
        with pytest.raises(NotFound, match="no epoch 3"):
            store.replay(dataset=Items(), epoch=3)
        with pytest.raises(NotFound, match="index 99"):
            store.replay(dataset=Items(), indices=[1, 99])


class OpenedOnce(Dataset):  # type: ignore[type-arg]
    """Opens something that a process can open only once, as it is with an environment of LMDB."""

    opened_by: Any = None

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        if OpenedOnce.opened_by not in (None, self):
            raise RuntimeError("the environment is already open in this process.")
        OpenedOnce.opened_by = self
        return torch.full((2,), float(index))


def test_what_a_process_opens_only_once(tmp_path: Path) -> None:
    first = OpenedOnce()
    record(tmp_path / "lineage", DataLoader(first))
    with audit.open(tmp_path / "lineage") as store:
        found = store.replay(dataset=OpenedOnce()).different
        assert {one.reason for one in found} == {"not reproducible"}
        assert "fails now, in two replays in the same way: RuntimeError: the environment is already open" in str(
            found[0].detail
        )
        assert "close it, or replay in another process" in str(found[0].detail)
        OpenedOnce.opened_by = None
        assert store.replay(dataset=OpenedOnce()).identical == 2
