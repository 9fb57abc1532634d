"""Ten clean datasets of different kinds: no error, and nothing that would fail a build."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checks_pictures import folders, picture
from PIL import Image

from audit.checks.runner import run_checks

pytestmark = pytest.mark.slow

_HEAD = "mode = 'keep'\nfrom torchvision.transforms import v2\nimport torch\n"
_TENSOR = "v2.ToImage(), v2.ToDtype(torch.float32, scale=True)"
_NORMAL = "v2.Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])"
_RGB = f"transform = v2.Compose([v2.RGB(), v2.Resize((32, 32)), {_TENSOR}, {_NORMAL}])\n"


def _coloured(folder: Path) -> tuple[Path, str | None]:
    return folders(folder / "data"), _HEAD + _RGB


def _many_sizes(folder: Path) -> tuple[Path, str | None]:
    root = folder / "data"
    for number in range(36):
        target = root / f"class-{number % 3}"
        target.mkdir(parents=True, exist_ok=True)
        picture(number, (40 + number, 90 - number)).save(target / f"{number}.jpg", quality=90)
    return root, _HEAD + _RGB


def _grey_unlabelled(folder: Path) -> tuple[Path, str | None]:
    (folder / "data").mkdir()
    for number in range(24):
        picture(number, mode="L").save(folder / "data" / f"{number:02d}.jpg", quality=90)
    return folder / "data", _HEAD + f"transform = v2.Compose([v2.Resize(32), {_TENSOR}])\n"


def _manifest_with_splits(folder: Path) -> tuple[Path, str | None]:
    folders(folder / "pictures", 20)
    rows = ["path,label,split"]
    for number, file in enumerate(sorted((folder / "pictures").rglob("*.png"))):
        rows.append(f"pictures/{file.parent.name}/{file.name},{file.parent.name},{'train' if number % 4 else 'test'}")
    (folder / "data.csv").write_text("\n".join(rows) + "\n")
    return folder / "data.csv", _HEAD + _RGB


def _texts(folder: Path) -> tuple[Path, str | None]:
    (folder / "data.txt").write_text("\n".join(f"sentence number {n} of a small text" for n in range(40)) + "\n")
    return folder / "data.txt", None


def _arrays(folder: Path) -> tuple[Path, str | None]:
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.normal(0, 1, (60, 1, 12, 12)).astype(np.float32), y=np.arange(60) % 4)
    return folder / "data.npz", None


def _palettes(folder: Path) -> tuple[Path, str | None]:
    root = folder / "data"
    for number in range(30):
        target = root / f"class-{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        picture(number).convert("P", palette=Image.Palette.ADAPTIVE).save(target / f"{number}.png")
    return root, _HEAD + _RGB


def _opaque_alpha(folder: Path) -> tuple[Path, str | None]:
    root = folder / "data"
    for number in range(30):
        target = root / f"class-{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        picture(number).convert("RGBA").save(target / f"{number}.png")
    return root, _HEAD + _RGB


def _augmented_training(folder: Path) -> tuple[Path, str | None]:
    random = "v2.RandomHorizontalFlip(), v2.RandomCrop(28), v2.RandomRotation(10)"
    root = folders(folder / "train", 16)
    return root, _HEAD + f"transform = v2.Compose([v2.RGB(), v2.Resize((32, 32)), {random}, {_TENSOR}, {_NORMAL}])\n"


def _sixteen_bits_scaled(folder: Path) -> tuple[Path, str | None]:
    root = folder / "data"
    for number in range(30):
        target = root / f"class-{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        wide = np.asarray(picture(number, mode="L"), dtype=np.uint16) * 257
        Image.fromarray(wide).save(target / f"{number}.png")
    scale = (
        "import numpy\n"
        "def scaled(image):\n    return torch.from_numpy(numpy.asarray(image, dtype='float32')[None] / 65535)\n"
        "transform = [scaled]\n"
    )
    return root, _HEAD + scale


def _nested_json(folder: Path) -> tuple[Path, str | None]:
    folders(folder / "pictures", 12, ("x", "y"))
    rows = [
        {"path": f"pictures/{file.parent.name}/{file.name}", "label": file.parent.name}
        for file in sorted((folder / "pictures").rglob("*.png"))
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "data.jsonl", _HEAD + _RGB


KINDS = [
    *(_coloured, _many_sizes, _grey_unlabelled, _manifest_with_splits, _texts, _arrays, _palettes, _opaque_alpha),
    *(_augmented_training, _sixteen_bits_scaled, _nested_json),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_a_clean_dataset_passes(kind: Callable[[Path], tuple[Path, str | None]], tmp_path: Path) -> None:
    from audit.api import run

    dataset, code = kind(tmp_path)
    if code is not None:
        (tmp_path / "pipeline.py").write_text(code)
    recorded = run(dataset, pipeline=tmp_path / "pipeline.py" if code else None, store=tmp_path / "lineage", workers=0)
    assert recorded.failed == 0
    report = run_checks(tmp_path / "lineage", fail_on="warning")
    assert report.passed, [outcome.message for outcome in report.with_status("fail", "error")]


@pytest.mark.parametrize(("count", "seed"), [(12, 0), (30, 1), (100, 0), (300, 1), (600, 0), (600, 2), (1_797, 0)])
def test_digits_in_two_random_splits_pass(tmp_path: Path, count: int, seed: int) -> None:
    """Handwritten digits of 8×8 pixels: many are alike, some are odd, and a small split lacks classes by chance."""
    from sklearn.datasets import load_digits

    from audit.api import run

    given, rng, rows = load_digits(), np.random.default_rng(seed), ["path,label,split"]
    for number in rng.permutation(len(given.images))[:count]:
        name, split = f"{number:04d}.png", "train" if rng.random() < 0.7 else "test"
        Image.fromarray((given.images[number] * 15.9).astype(np.uint8)).save(tmp_path / name)
        rows.append(f"{name},{given.target[number]},{split}")
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "pipeline.py").write_text(_HEAD + f"transform = v2.Compose([{_TENSOR}])\n")
    run(tmp_path / "data.csv", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    report = run_checks(tmp_path / "lineage", fail_on="warning")
    assert report.passed, [outcome.message for outcome in report.with_status("fail", "error")]


def test_the_digits_and_their_model_pass(digits: Path) -> None:
    report = run_checks(digits)
    assert report.passed, [outcome.message for outcome in report.with_status("fail", "error")]


def test_a_training_loop_of_ones_own_passes(tmp_path: Path) -> None:
    """Shuffled, two epochs, random stages, hooked layers: nothing of that is a fault."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    from audit.api import record

    root = folders(tmp_path / "train", 12)
    steps = [v2.Resize((16, 16)), v2.RandomHorizontalFlip(), v2.RandomRotation(15), v2.ToImage()]
    transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with record(tmp_path / "lineage", name="own") as run:
        loader = run.loader(DataLoader(ImageFolder(str(root), transform), batch_size=8, shuffle=True))
        network = run.model(model, layers=["1", "3"])
        for _ in run.epochs(8):
            for inputs, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(inputs), labels).backward()
                optimizer.step()
    report = run_checks(tmp_path / "lineage", fail_on="error")
    assert report.passed, [outcome.message for outcome in report.with_status("fail", "error")]
    for name in ("hooks", "dead_layers", "exploding_layers", "alignment", "coverage", "augmentation"):
        assert report.outcome(name).status == "pass", report.outcome(name).message
