"""Random pipelines for the campaign, each fully decided by its number: stages, containers, dataset, workers, batch sizes."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from bench.campaign import replay_stages as stages
from bench.campaign.replay_stages import BYTES, FLOATS, PIL, Entry

MODES = ("run", "loader", "dataset")
WORKERS = (0, 1, 2)
BATCHES = (1, 3, 8, 16)
_SHRINKING_STAGES = ("LinearTransformation", "CenterCrop", "FiveCrop", "TenCrop", "UniformTemporalSubsample")


@functools.cache
def catalogue() -> tuple[list[Entry], list[Entry]]:
    """(everything that must come out bit for bit, everything that cannot)."""
    known = [*stages.torchvision_entries(), *stages.generator_entries(), *stages.albumentations_entries()]
    return known, stages.hidden_entries()


@dataclass(frozen=True)
class Case:
    """One pipeline, recorded one way and replayed another."""

    seed: int
    number: int
    mode: str
    workers: int
    replay_workers: int
    batch_size: int
    start_method: str | None
    repeats: bool
    #: The name of a stage that no replay can get right, where there is one.
    hidden: str | None


def make_pictures(root: Path, count: int) -> Path:
    """Small pictures, PNG and JPEG, in class folders."""
    for number in range(count):
        folder = root / f"class_{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        data = np.random.default_rng(number).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        picture = Image.fromarray(data).resize((24, 20), Image.Resampling.BICUBIC)
        picture.save(folder / (f"{number:03d}.png" if number % 2 else f"{number:03d}.jpg"))
    return root


def case_of(seed: int, number: int) -> Case:
    """The case of this number."""
    r = random.Random(f"case {seed} {number}")
    workers = r.choice(WORKERS)
    spawn = number % 97 == 40
    hidden = number % 23 == 7 and not spawn
    return Case(
        seed,
        number,
        r.choice(MODES[:2]) if spawn else r.choice(MODES),
        1 if spawn else workers,
        r.choice([count for count in WORKERS if count != workers]),
        r.choice(BATCHES),
        "spawn" if spawn else None,
        r.random() < 0.3,
        stages_of(seed, number)[1] if hidden else None,
    )


@functools.lru_cache(maxsize=4)
def stages_of(seed: int, number: int) -> tuple[tuple[str, ...], str | None]:
    """The names of a pipeline's entries, and of the hidden one."""
    names: list[str] = []
    built = _stages(seed, number, names)
    return tuple(names), stages.stage_name(built[-1]) if number % 23 == 7 else None


def transform_of(seed: int, number: int) -> Any:
    """The pipeline of this number, made again, with generators that the system seeds."""
    r = random.Random(f"outer {seed} {number}")
    built = _stages(seed, number, [])
    return (v1.Compose if r.random() < 0.5 else v2.Compose)(built)


def _stages(seed: int, number: int, names: list[str]) -> list[Any]:
    r = random.Random(f"stages {seed} {number}")
    known, hidden = catalogue()
    if number % 97 == 40:
        # Workers that are spawned need what can be pickled.
        known = [entry for entry in known if entry.name.startswith(("v1.", "v2."))]
    chosen = [known[(number * 3 + offset) % len(known)] for offset in range(3)]
    chosen += r.sample(known, r.randint(1, 4))
    r.shuffle(chosen)
    kind = PIL
    built: list[Any] = []
    for entry in chosen:
        kind = _add(built, entry, kind, r, names)
    if kind == PIL or number % 23 == 7:
        kind = _fit(built, kind, FLOATS, r)
    if number % 23 == 7:
        _add(built, hidden[(number // 23) % len(hidden)], kind, r, names)
    return built


def _add(built: list[Any], entry: Entry, kind: str, r: random.Random, names: list[str]) -> str:
    if kind not in entry.takes:
        kind = _fit(built, kind, r.choice(entry.takes), r)
    stage = entry.build(r)
    if entry.gives is None and not entry.hidden and r.random() < 0.3:
        stage = _contain(stage, kind, r, names)
    built.append(stage)
    names.append(entry.name)
    if entry.name.endswith(_SHRINKING_STAGES):
        built.append(v2.Resize((stages.SIDE, stages.SIDE), antialias=True))
    return entry.gives or kind


def _contain(stage: Any, kind: str, r: random.Random, names: list[str]) -> Any:
    """Inside a random container with others that take and give the same, perhaps nested."""
    fitting = [e for e in catalogue()[0] if kind in e.takes and e.gives is None and e.name.startswith(("v1.", "v2."))]
    others = r.sample(fitting, r.randint(1, 2))
    names.extend(other.name for other in others)
    inside = [stage, *(other.build(r) for other in others)]
    r.shuffle(inside)
    module = r.choice((v1, v2))
    made = r.choice(
        [
            lambda: module.RandomApply(inside, p=0.6),
            lambda: module.RandomChoice(inside),
            lambda: module.RandomOrder(inside),
            lambda: module.Compose(inside),
            lambda: v1.RandomApply([v2.RandomOrder(inside)], p=0.7),
            lambda: v2.RandomChoice([v1.Compose(inside), v2.Identity()]),
        ]
    )
    return made()


def _fit(built: list[Any], kind: str, wanted: str, r: random.Random) -> str:
    if kind == wanted:
        return kind
    if kind == FLOATS:
        built.append(as_bytes)
        kind = BYTES
    if kind == PIL and wanted == BYTES:
        built.append(r.choice((v1.PILToTensor, v2.PILToTensor, v2.ToImage))())
    elif kind == PIL:
        built.append(v1.ToTensor())
    elif wanted == PIL:
        built.append(r.choice((v1, v2)).ToPILImage())
    elif wanted == FLOATS:
        built.append(v2.ToDtype(torch.float32, scale=True))
    return wanted


def as_bytes(value: Any) -> Any:
    """Floats as a uint8 picture of three channels."""
    plain = torch.as_tensor(value)
    plain = (
        plain[:3]
        if plain.dim() == 3 and plain.shape[0] >= 3
        else plain.reshape(1, -1, plain.shape[-1]).expand(3, -1, -1)
    )
    return (plain.clamp(0, 1) * 255).to(torch.uint8)


class Pictures(Dataset):  # type: ignore[type-arg]
    """A dataset of one's own: opens files, holds a generator, works on what the transform gave."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.files = sorted(root.rglob("*.*"))
        self.transform = transform
        self.generator = np.random.default_rng()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self.files[index]) as opened:
            picture = opened.convert("RGB")
        value = self.transform(picture)
        return stages.shift(value, self.generator.random()), index % 3


def noisy_label(label: int) -> int:
    """A random target transform."""
    return label if random.random() < 0.8 else random.randrange(3)


def dataset_of(case: Case, root: Path) -> Any:
    """The dataset of a case that is recorded in a loop of its own."""
    transform = transform_of(case.seed, case.number)
    r = random.Random(f"dataset {case.seed} {case.number}")
    form = r.choice(("folder", "own", "subset", "concat"))
    if form == "own" and case.hidden is None:
        return Pictures(root, transform)
    folder = ImageFolder(str(root), transform, target_transform=noisy_label if r.random() < 0.5 else None)
    if form == "subset":
        return Subset(folder, range(len(folder) - 1, 0, -1))
    if form == "concat":
        return ConcatDataset([Subset(folder, range(5)), folder])
    return folder
