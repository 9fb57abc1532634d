"""The cases of bench.planted: each makes a run, with one fault or none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from audit.api import record
from audit.api import run as audit_run

Array = np.ndarray[Any, Any]
MEAN, STD = (0.1307,), (0.3081,)


@dataclass
class Ground:
    """The pictures that all cases share: folders of class folders, and a model of the digits."""

    folder: Path
    mnist: Path
    cifar: Path

    @cached_property
    def digits(self) -> tuple[Array, Array]:
        """6,000 digits and their labels."""
        data = self.mnist / "data"
        # Neighbours in the file were written by one hand: in its order, splits would differ.
        chosen = np.random.default_rng(0).permutation(60_000)[:6_000]
        pixels = np.fromfile(data / "train-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 28, 28)[chosen]
        return pixels, np.fromfile(data / "train-labels-idx1-ubyte", np.uint8)[8:][chosen].astype(int)

    @cached_property
    def photographs(self) -> tuple[Array, Array]:
        """2,000 photographs and their labels."""
        import json

        Image.MAX_IMAGE_PIXELS = None
        pixels = np.asarray(Image.open(self.cifar / "data_batch_1.png").convert("RGB")).reshape(10_000, 32, 32, 3)
        labels = json.loads((self.cifar / "train_lables.json").read_text())[:10_000]
        return pixels[:2_000], np.array(labels[:2_000])

    def digit_folder(self, place: Path, first: int = 4_000, count: int = 400, classes: int = 10) -> Path:
        """Write digits as PNG into class folders."""
        pixels, labels = self.digits
        chosen = [n for n in range(first, 6_000) if labels[n] < classes][:count]
        return write(place, {n: Image.fromarray(pixels[n]) for n in chosen}, labels)

    def photo_folder(self, place: Path, count: int = 400, classes: int = 4, first: int = 0) -> Path:
        """Write photographs as PNG into class folders."""
        pixels, labels = self.photographs
        chosen = [n for n in range(first, 2_000) if labels[n] < classes][:count]
        return write(place, {n: Image.fromarray(pixels[n]) for n in chosen}, labels)

    @cached_property
    def model(self) -> nn.Module:
        """A small network that knows the digits, with dropout and batch normalisation."""
        torch.manual_seed(0)
        torch.set_num_threads(1)
        pixels, labels = self.digits
        x = ((torch.from_numpy(pixels[:4_000]).float() / 255 - MEAN[0]) / STD[0])[:, None]
        y = torch.from_numpy(labels[:4_000])
        net = make_model()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
        for _ in range(3):
            for batch in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return net.eval()

    @cached_property
    def checkpoint(self) -> Path:
        """The network's file, and the module that builds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.model.state_dict(), self.folder / "digits.pt")
        return self.folder / "digits.pt"


def make_model(outputs: int = 10) -> nn.Sequential:
    """Return an untrained network."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.6), nn.Conv2d(12, 24, 5, stride=2),
        nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(), nn.Linear(384, outputs),
    )  # fmt: skip


def write(place: Path, pictures: dict[int, Image.Image], labels: Array, suffix: str = "png", **options: Any) -> Path:
    """Write pictures into class folders."""
    for number, image in pictures.items():
        folder = place / f"{labels[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{number:05d}.{suffix}", **options)
    return place


@dataclass
class Case:
    """One run: how it is made, which checks must report something, and which may."""

    name: str
    make: Callable[[Ground, Path], dict[str, Any] | None]
    wanted: set[str]
    may: set[str] = field(default_factory=set)


CASES: list[Case] = []


def case(name: str, *wanted: str, may: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Register a case."""

    def register(make: Callable[[Ground, Path], dict[str, Any] | None]) -> Callable[..., Any]:
        CASES.append(Case(name, make, set(wanted), set(may)))
        return make

    return register


def tensors(*extra: Any) -> v2.Compose:
    """Return a pipeline of grey digits with more stages in its middle."""
    return v2.Compose(
        [v2.Grayscale(), *extra, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )


def loop(
    place: Path, dataset: Dataset[Any], model: nn.Module | None = None, *, epochs: int = 1, name: str | None = None,
    split: str | None = None, train: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Record a loop of one's own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4) if train and model is not None else None
    with record(place / "lineage", name=name) as run:
        loader = run.loader(DataLoader(dataset, batch_size=32, **options), split=split)
        network = run.model(model) if model is not None else None
        for _ in run.epochs(epochs):
            for x, y in loader:
                if network is not None and optimizer is not None:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                elif network is not None:
                    with torch.no_grad():
                        network(x)


# -- 1. randomness that repeats ------------------------------------------------------------------------


class Jitter:
    """A user's own augmentation, with a generator made once."""

    def __init__(self, seed: int | None) -> None:
        self.rng = np.random.default_rng(seed) if seed is not None else None

    def __call__(self, image: Image.Image) -> Image.Image:
        shift = self.rng.integers(-3, 4) if self.rng is not None else np.random.randint(-3, 4)
        return Image.fromarray(np.roll(np.asarray(image), int(shift), axis=1))


STATE = np.random.RandomState(5)


def module_noise(image: Image.Image) -> Image.Image:
    """Draw from a generator of the module."""
    noise = STATE.randint(-20, 21, (28, 28))
    return Image.fromarray((np.asarray(image).astype(int) + noise).clip(0, 255).astype(np.uint8))


def global_noise(image: Image.Image) -> Image.Image:
    """Draw from numpy's global generator."""
    noise = np.random.randint(-20, 21, (28, 28))
    return Image.fromarray((np.asarray(image).astype(int) + noise).clip(0, 255).astype(np.uint8))


def seed_all(_: int) -> None:
    """Give every worker the same seed, as copied from somewhere."""
    np.random.seed(42)
    random.seed(42)


class Cutout(Dataset[Any]):
    """A dataset that draws in `__getitem__` and has no transform."""

    def __init__(self, root: Path, own: bool) -> None:
        self.inner = ImageFolder(str(root))
        self.chance = random.Random(3) if own else random

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.inner[index]
        pixels = np.array(image.convert("L"))
        top, left = self.chance.randrange(20), self.chance.randrange(20)
        pixels[top : top + 8, left : left + 8] = 0
        return torch.from_numpy((pixels / 255 - MEAN[0]).astype(np.float32)[None] / STD[0]), label


class Flip:
    """A flip with a probability, and a mistake in it."""

    def __init__(self, p: float, wrong: bool) -> None:
        self.p, self.wrong = p, wrong

    def __call__(self, image: Image.Image) -> Image.Image:
        fires = random.random() < self.p and (not self.wrong or random.random() < self.p)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if fires else image


def train_epochs(*extra: Any, **options: Any) -> Callable[[Ground, Path], None]:
    """Two epochs of training with two forked workers."""

    def make(ground: Ground, place: Path) -> None:
        data = ImageFolder(str(ground.digit_folder(place / "train")), tensors(*extra))
        loop(place, data, epochs=2, shuffle=True, num_workers=2, multiprocessing_context="fork", **options)

    return make


case("random: a generator in a callable, forked", "repeated_draws")(train_epochs(Jitter(0)))
case("random: a generator of the module, forked", "repeated_draws")(train_epochs(module_noise))
case("random: the same seed in every worker", "repeated_draws")(train_epochs(global_noise, worker_init_fn=seed_all))
case("random: clean, global numpy, forked")(train_epochs(Jitter(None)))
case("random: clean, torch's own")(train_epochs(v2.RandomHorizontalFlip(), v2.RandomRotation(10)))
case("random: fires less often than its p", "augmentation")(train_epochs(Flip(0.5, True)))
case("random: clean, fires as often as its p")(train_epochs(Flip(0.5, False)))


@case("random: a generator in the dataset's __getitem__", "repeated_draws", may=("stage_coverage",))
def _(ground: Ground, place: Path) -> None:
    data = Cutout(ground.digit_folder(place / "train"), own=True)
    loop(place, data, epochs=2, shuffle=True, num_workers=2, multiprocessing_context="fork")


@case("random: clean, the dataset draws from random", may=("stage_coverage",))
def _(ground: Ground, place: Path) -> None:
    data = Cutout(ground.digit_folder(place / "train"), own=False)
    loop(place, data, epochs=2, shuffle=True, num_workers=2, multiprocessing_context="fork")


# -- 2. losses of accuracy without a baseline ------------------------------------------------------------

_MODULE = """
import torch
from torch import nn
from bench.planted_cases import make_model
def model():
    net = make_model()
    net.load_state_dict(torch.load({checkpoint!r}, weights_only=True))
    {mode}
    return net
"""
_PIPELINE = """
import numpy as np, torch
from torchvision.transforms import v2
def again(x):
    return (x - {mean}) / {std}
def invert(x):
    return x * -1
tensor = [v2.Grayscale(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
normalise = [v2.Normalize([{mean}], [{std}])]
transform = v2.Compose({stages})
"""


def digits_run(stages: str, *, mode: str = "", probe: bool = True, **options: Any) -> Callable[[Ground, Path], Any]:
    """`audit run` with the network's own module, and a pipeline."""

    def make(ground: Ground, place: Path) -> dict[str, Any]:
        code = _MODULE.format(checkpoint=str(ground.checkpoint), mode=mode)
        (place / "net.py").write_text(code)
        (place / "pipeline.py").write_text(_PIPELINE.format(mean=MEAN[0], std=STD[0], stages=stages))
        audit_run(
            ground.digit_folder(place / "test", count=600), model=f"{place / 'net.py'}:model", trust=True,
            pipeline=place / "pipeline.py", store=place / "lineage", workers=0, **options,
        )  # fmt: skip
        return {"probe": probe}

    return make


case("accuracy: clean, as trained")(digits_run("[*tensor, *normalise]"))
case("accuracy: another mean and std", "probe", may=("calibration", "per_class_accuracy", "accuracy", "head"))(
    digits_run("[*tensor, v2.Normalize([0.9], [0.05])]")
)
case(
    "accuracy: normalised again by a function", "scale", may=("probe", "calibration", "per_class_accuracy", "accuracy")
)(digits_run("[*tensor, *normalise, again, again]"))
case("accuracy: inverted", "probe", may=("calibration", "per_class_accuracy", "accuracy", "head"))(
    digits_run("[*tensor, *normalise, invert]")
)


def _own_training(mode: str) -> Callable[[Ground, Path], None]:
    def make(ground: Ground, place: Path) -> None:
        net = make_model()
        net.load_state_dict(ground.model.state_dict())
        net.eval()
        if mode == "all":
            net.train()
        elif mode == "dropout":
            net[3].train()
        loop(place, ImageFolder(str(ground.digit_folder(place / "test")), tensors()), net)

    return make


case("mode: model left in training mode", "evaluation_mode", may=("accuracy", "calibration"))(_own_training("all"))
case("mode: dropout alone left in training mode", "evaluation_mode", may=("calibration",))(_own_training("dropout"))
case("mode: clean")(_own_training(""))


# -- 3. leakage -----------------------------------------------------------------------------------------


def leak_copies(change: Callable[[Image.Image], Image.Image] | None, *, pictures: str) -> Callable[[Ground, Path], Any]:
    """A manifest with two splits; ten test pictures are changed copies of training pictures."""

    def make(ground: Ground, place: Path) -> None:
        folder = ground.digit_folder if pictures == "digits" else ground.photo_folder
        folder(place / "data/train", first=0, count=400)
        folder(place / "data/test", first=1_200, count=200)
        files = sorted((place / "data/train").rglob("*.png"))[:200:20]
        for file in files if change else ():
            change(Image.open(file)).save(place / "data/test" / file.parent.name / f"new-{file.stem}.png")  # type: ignore[misc]
        rows = [
            f"{file.relative_to(place / 'data')},{file.parent.name},{file.parent.parent.name}"
            for file in sorted((place / "data").rglob("*.png"))
        ]
        (place / "data/all.csv").write_text("path,label,split\n" + "\n".join(rows) + "\n")
        (place / "pipeline.py").write_text(_PIPELINE.format(mean=0.5, std=0.5, stages="[*tensor]"))
        audit_run(place / "data/all.csv", pipeline=place / "pipeline.py", store=place / "lineage", workers=0)

    return make


def _cover(image: Image.Image) -> Image.Image:
    covered = image.copy()
    covered.paste(0 if image.mode == "L" else (0, 0, 0), (6, 10, 16, 20))
    return covered


for kind in ("digits", "photographs"):
    case(f"leakage: clean, {kind}")(leak_copies(None, pictures=kind))
    case(f"leakage: cropped, darker and mirrored {kind}", "leakage")(
        leak_copies(
            lambda image: (
                image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                .resize(image.size, Image.Resampling.BICUBIC, box=(1, 1, image.width, image.height))
                .point(lambda level: int(level * 0.8))
            ),
            pictures=kind,
        )
    )
    case(f"leakage: {kind} turned by 5 degrees", "leakage")(
        leak_copies(lambda image: image.rotate(5, Image.Resampling.BICUBIC), pictures=kind)
    )
    case(f"leakage: {kind} with a black square", "leakage")(leak_copies(_cover, pictures=kind))


# -- 4. shortcuts ---------------------------------------------------------------------------------------


def shortcut(change: Callable[[Image.Image, int], Image.Image], suffix: str = "png", **save: Any) -> Callable[..., Any]:
    """Photographs of four classes; each class is changed in its own way."""

    def make(ground: Ground, place: Path) -> None:
        pixels, labels = ground.photographs
        chosen = [n for n in range(2_000) if labels[n] < 4][:400]
        for n in chosen:
            given = {key: value(int(labels[n])) for key, value in save.items()}
            write(place / "data", {n: change(Image.fromarray(pixels[n]), int(labels[n]))}, labels, suffix, **given)
        (place / "pipeline.py").write_text(_PIPELINE.format(mean=0.5, std=0.5, stages="[v2.Resize((32, 32)), *tensor]"))
        audit_run(place / "data", pipeline=place / "pipeline.py", store=place / "lineage", workers=0)

    return make


def _frame(image: Image.Image, label: int) -> Image.Image:
    framed = Image.new("RGB", image.size, (60 * label, 60 * label, 60 * label))
    framed.paste(image.crop((2, 2, 30, 30)), (2, 2))
    return framed


def _tint(image: Image.Image, label: int) -> Image.Image:
    tint = np.eye(4)[label][:3] * 90
    return Image.fromarray((np.asarray(image) * 0.6 + tint).clip(0, 255).astype(np.uint8))


def _corner(image: Image.Image, label: int) -> Image.Image:
    marked = image.copy()
    marked.paste((250, 10, 250), (0, 0, 3, 3)) if label == 2 else None
    return marked


def _exif(label: int) -> Image.Exif:
    exif = Image.Exif()
    exif[271] = f"camera {label}"
    return exif


case("shortcut: clean")(shortcut(lambda image, label: image))
case("shortcut: a frame of its own for each class", "shortcuts")(shortcut(_frame))
case("shortcut: a tint of its own for each class", "shortcuts")(shortcut(_tint))
case("shortcut: JPEG quality", "shortcuts")(
    shortcut(lambda image, _: image, "jpg", quality=lambda label: 60 + 10 * label)
)
case("shortcut: camera in the EXIF data", "shortcuts")(shortcut(lambda image, _: image, "jpg", exif=_exif))
case("shortcut: size", "shortcuts")(shortcut(lambda image, label: image.resize((32 + 2 * label, 32 + 2 * label))))
case("shortcut: a mark in the corner of one class", "shortcuts")(shortcut(_corner))


# -- 5. state between visits ----------------------------------------------------------------------------


class CachedDataset(Dataset[Any]):
    """Keeps what it loaded; one step changes it in place."""

    def __init__(self, root: Path, in_place: bool) -> None:
        self.inner, self.kept, self.in_place = ImageFolder(str(root)), {}, in_place  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return len(self.inner)

    def load(self, index: int) -> Array:
        """Return the pixels, from memory if they are there."""
        if index not in self.kept:
            self.kept[index] = np.asarray(self.inner[index][0].convert("L"), dtype=np.float32)
        found: Array = self.kept[index]
        return found

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = self.load(index)
        pixels = brighten_in_place(pixels) if self.in_place else pixels * 0.9
        return torch.from_numpy(pixels[None] / 255), self.inner.targets[index]


def brighten_in_place(pixels: Array) -> Array:
    """Scale the array itself."""
    pixels *= 0.9
    return pixels


for bad in (True, False):

    @case(f"state: {'a cached array changed in place' if bad else 'clean, a cached array'}",
          *(("stable_load",) if bad else ()), may=("stage_coverage", "stage_contract"))  # fmt: skip
    def _(ground: Ground, place: Path, bad: bool = bad) -> None:
        loop(place, CachedDataset(ground.digit_folder(place / "train", count=100), bad), epochs=3, shuffle=True)


@case("state: files listed in another order in the same run again", "loader_order")
def _(ground: Ground, place: Path) -> dict[str, Any]:
    root = ground.digit_folder(place / "train", count=100)
    for name in ("one", "two"):
        data = ImageFolder(str(root), tensors())
        random.Random(name).shuffle(data.samples)
        data.targets = [label for _, label in data.samples]
        loop(place, data, name=name)
    return {"baseline": "one"}


# -- 6. files after the fact ----------------------------------------------------------------------------


@case("files: the checkpoint changed since", "model_unchanged")
def _(ground: Ground, place: Path) -> None:
    net = torch.jit.script(make_model().eval())  # type: ignore[no-untyped-call]
    net.save(str(place / "net.pt"))
    (place / "pipeline.py").write_text(_PIPELINE.format(mean=MEAN[0], std=STD[0], stages="[*tensor, *normalise]"))
    audit_run(
        ground.digit_folder(place / "test", count=40), model=place / "net.pt", trust=True,
        pipeline=place / "pipeline.py", store=place / "lineage", workers=0,
    )  # fmt: skip
    torch.jit.script(make_model().eval()).save(str(place / "net.pt"))  # type: ignore[no-untyped-call]


@case("files: a helper of the pipeline changed since", "code_unchanged", may=("reproducible",))
def _(ground: Ground, place: Path) -> None:
    (place / "helpers").mkdir()
    (place / "helpers/__init__.py").write_text("")
    (place / "helpers/tone.py").write_text("def tone(x):\n    return x * 1.0\n")
    code = "import sys, os\nsys.path.insert(0, os.path.dirname(__file__))\nfrom helpers.tone import tone\n"
    stages = "[*tensor, tone, *normalise]"
    (place / "pipeline.py").write_text(code + _PIPELINE.format(mean=MEAN[0], std=STD[0], stages=stages))
    root = ground.digit_folder(place / "test", count=40)
    audit_run(root, pipeline=place / "pipeline.py", store=place / "lineage", workers=0)
    (place / "helpers/tone.py").write_text("def tone(x):\n    return x * 1.001\n")


# -- 7. heads and classes -------------------------------------------------------------------------------


def make_headed(outputs: int, classes: int, count: int = 400, edit: str = "") -> Callable[[Ground, Path], Any]:
    """The network with other outputs than the folders have classes."""

    def make(ground: Ground, place: Path) -> None:
        net = make_model(outputs)
        state = {k: v.clone() for k, v in ground.model.state_dict().items()}
        keep = torch.arange(outputs) % 10
        state["8.weight"], state["8.bias"] = state["8.weight"][keep], state["8.bias"][keep]
        if outputs > classes:
            state["8.bias"][classes:] -= 9
        if edit == "shift":
            state["8.weight"], state["8.bias"] = state["8.weight"].roll(1, 0), state["8.bias"].roll(1)
        if edit == "swap":
            order = torch.tensor([0, 1, 2, 7, 4, 5, 6, 3, 8, 9])
            state["8.weight"], state["8.bias"] = state["8.weight"][order], state["8.bias"][order]
        if edit == "one":
            state["8.bias"][3] += 90
        net.load_state_dict(state)
        data = ImageFolder(str(ground.digit_folder(place / "test", count=count, classes=classes)), tensors())
        loop(place, data, net.eval(), split="test")

    return make


case("head: 7 outputs on 5 classes", "head")(make_headed(7, 5))
case("head: 10 outputs on 9 folders", "head")(make_headed(10, 9))
case("head: 10 outputs on 9 folders, 30 samples", "head")(make_headed(10, 9, 30))
case("head: one output takes all", "head", may=("accuracy", "calibration", "per_class_accuracy"))(
    make_headed(10, 10, edit="one")
)
case(
    "head: one output takes all, 30 samples",
    "head",
    may=("accuracy", "calibration", "per_class_accuracy", "missing_classes"),
)(make_headed(10, 10, 40, "one"))
case(
    "head: labels shifted by one", "class_order", may=("accuracy", "calibration", "per_class_accuracy", "label_issues")
)(make_headed(10, 10, edit="shift"))
case("head: labels shifted by one, 40 samples", "class_order",
     may=("accuracy", "calibration", "per_class_accuracy", "missing_classes"))(make_headed(10, 10, 40, "shift"))  # fmt: skip
case("head: two classes swapped", "class_order", may=("calibration", "per_class_accuracy", "label_issues"))(
    make_headed(10, 10, edit="swap")
)
case("head: clean")(make_headed(10, 10))


# -- 8. outliers and drift ------------------------------------------------------------------------------


def strangers(pictures: str, other: str | None) -> Callable[[Ground, Path], Any]:
    """Five pictures of another kind among 400."""

    def make(ground: Ground, place: Path) -> None:
        if pictures == "digits":
            ground.digit_folder(place / "data")
        else:
            ground.photo_folder(place / "data")
        rng = np.random.default_rng(0)
        size = 28 if pictures == "digits" else 32
        for number in range(5 if other else 0):
            if other == "noise":
                pixels = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
            elif other == "digits":
                pixels = ground.digits[0][number][..., None].repeat(3, axis=2)
            elif other == "photographs":
                pixels = ground.photographs[0][number]
            else:  # a scanned page: white with dark lines
                pixels = np.full((size, size, 3), 250, np.uint8)
                pixels[2 + number :: 5, 3:-3] = 30
            image = Image.fromarray(pixels).resize((size, size))
            (image.convert("L") if pictures == "digits" else image).save(place / "data/1" / f"odd-{number}.png")
        (place / "pipeline.py").write_text(_PIPELINE.format(mean=0.5, std=0.5, stages="[*tensor]"))
        audit_run(place / "data", pipeline=place / "pipeline.py", store=place / "lineage", workers=0)

    return make


case("outliers: photographs among digits", "outliers", may=("image_quality",))(strangers("digits", "photographs"))
case("outliers: noise among photographs", "outliers", may=("image_quality",))(strangers("photographs", "noise"))
case("outliers: digits among photographs", "outliers", may=("image_quality",))(strangers("photographs", "digits"))
case("outliers: scanned pages among photographs", "outliers", may=("image_quality",))(strangers("photographs", "page"))
case("outliers: clean photographs")(strangers("photographs", None))
case("outliers: clean digits")(strangers("digits", None))
