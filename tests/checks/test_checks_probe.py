"""`check --probe`: pipelines that prepare the input otherwise than in training, each reported by the change that undoes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from checks_contracts import outcome_of
from PIL import Image

from audit.api import open as open_store
from audit.api import run
from audit.checks.report import CheckOutcome

CLASSES = ("1", "10", "2")
MEAN, STD = "[0.485, 0.456, 0.406]", "[0.229, 0.224, 0.225]"
_HEAD = """
import torch
from torchvision.transforms import v2
def model():
    layers = [torch.nn.Linear(768, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)]
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Hardtanh(-2.2, 2.7), *layers)
def swap(tensor):
    return tensor.flip(0)
def invert(tensor):
    return 1 - tensor
def transpose(tensor):
    return tensor.transpose(1, 2)
def again(tensor):
    return (tensor - 1.5) / 0.2
tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
crop = [v2.Resize(16), v2.CenterCrop(16)]
normalise = [v2.Normalize(MEAN, STD)]
""".replace("MEAN", MEAN).replace("STD", STD)
FAULTS = {
    "channels": ("[*crop, *tensor, swap, *normalise]", "Red and blue"),
    "normalisation": ("[*crop, *tensor, v2.Normalize([0.1] * 3, [0.6] * 3)]", "Normalised as ImageNet"),
    "twice": ("[*crop, *tensor, *normalise, again]", "Normalised as ImageNet"),
    "inverted": ("[*crop, *tensor, invert, *normalise]", "inverted"),
    "transposed": ("[*crop, *tensor, transpose, *normalise]", "rows and columns"),
    "aspect": ("[v2.Resize((16, 16)), *tensor, *normalise]", "the aspect kept"),
}


def _picture(kind: int, rng: np.random.Generator) -> Image.Image:
    """A picture of 72×24 whose middle square shows the class; its sides show other classes."""
    fixed = np.random.default_rng(7)
    # The classes differ little from what they share, so that a network depends on how the shared part is scaled.
    shared, own = fixed.integers(60, 196, (1, 4, 4, 3)), fixed.choice([-30, 30], (3, 4, 4, 3))
    templates = (shared + own).astype(np.uint8)
    parts = [templates[(kind + 1) % 3], templates[kind], templates[(kind + 2) % 3]]
    side = [np.asarray(Image.fromarray(part).resize((24, 24), Image.Resampling.NEAREST)) for part in parts]
    whole = np.concatenate([side[0], side[1], side[2]], axis=1).astype(np.int16)
    return Image.fromarray((whole + rng.integers(-60, 61, whole.shape)).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three classes, and a small network that was trained on them with the pipeline of `_HEAD`."""
    folder = tmp_path_factory.mktemp("probe")
    rng, inputs, labels = np.random.default_rng(0), [], []
    for number in range(60):
        target = folder / "test" / CLASSES[number % 3]
        target.mkdir(parents=True, exist_ok=True)
        _picture(number % 3, rng).save(target / f"{number:03d}.png")
    torch.manual_seed(0)  # for the weights that the network begins with
    scope: dict[str, object] = {}
    exec(_HEAD + "transform = v2.Compose([*crop, *tensor, *normalise])", scope)
    transform, model = scope["transform"], scope["model"]()  # type: ignore[operator]
    for number in range(180):
        inputs.append(transform(_picture(number % 3, rng)))  # type: ignore[operator]
        labels.append(number % 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.stack(inputs)), torch.tensor(labels)).backward()
        optimizer.step()
    torch.save(model.state_dict(), folder / "model.pt")
    # Trained with the classes in the order of their numbers: 1, 2, 10.
    order = [CLASSES.index(name) for name in ("1", "2", "10")]
    moved = {name: value[order] if name.startswith("4.") else value for name, value in model.state_dict().items()}
    torch.save(moved, folder / "numeric.pt")
    return folder


def _record(place: Path, folder: Path, stages: str, model: str = "model.pt") -> Path:
    (folder / "pipeline.py").write_text(_HEAD + f"transform = {stages}\n")
    run(place / "test", model=place / model, pipeline=folder / "pipeline.py", store=folder / "lineage", workers=0)
    return folder / "lineage"


def _probe(store: Path, trust: bool = False) -> CheckOutcome:
    with open_store(store) as opened:
        return opened.check(only=["probe"], probe=True, trust=trust).outcome("probe")


@pytest.mark.parametrize("name", FAULTS)
def test_the_change_that_undoes_a_fault_is_named(name: str, place: Path, tmp_path: Path) -> None:
    stages, says = FAULTS[name]
    outcome = _probe(_record(place, tmp_path, stages))
    assert outcome.status == "fail", outcome.message
    assert len(outcome.findings) == 1
    assert says.lower() in outcome.findings[0].message.split(",")[0].lower(), outcome.findings[0].message


def test_an_inverted_input_is_not_also_a_swap_of_classes(tmp_path: Path) -> None:
    """Bright pictures against dark ones: inverted, each class looks like the other, and only a probe shows which it is."""
    rng = np.random.default_rng(0)
    for number in range(60):
        target = tmp_path / "test" / ("dark", "light")[number % 2]
        target.mkdir(parents=True, exist_ok=True)
        level = 190 if number % 2 else 60
        Image.fromarray(rng.integers(level - 40, level + 40, (16, 16, 3), dtype=np.uint8)).save(
            target / f"{number}.png"
        )
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        light = x.mean((1, 2, 3)) - 0.5\n        return torch.stack([-light, light], 1) * 9\n"
        "def model():\n    return Net()\n"
    )
    (tmp_path / "pipeline.py").write_text(_HEAD + "transform = [*tensor, invert]\n")
    run(
        tmp_path / "test", model=f"{tmp_path / 'net.py'}:model", trust=True, pipeline=tmp_path / "pipeline.py",
        store=tmp_path / "lineage", workers=0,
    )  # fmt: skip
    with open_store(tmp_path / "lineage") as opened:
        unprobed = opened.check(only=["class_order"]).outcome("class_order")
        report = opened.check(only=["class_order", "probe"], probe=True, trust=True)
    assert (unprobed.status, unprobed.severity) == ("fail", "error")
    assert report.outcome("probe").severity == "error"
    assert (report.outcome("class_order").status, report.outcome("class_order").severity) == ("fail", "info")
    assert "consequence of what probe reports" in report.outcome("class_order").notes[-1]
    assert not report.passed


def test_another_order_of_classes_is_named(place: Path, tmp_path: Path) -> None:
    outcome = _probe(_record(place, tmp_path, "[*crop, *tensor, *normalise]", "numeric.pt"))
    assert "sorted by the numbers" in outcome.findings[0].message


def test_the_right_pipeline_passes_and_nothing_runs_unasked(place: Path, tmp_path: Path) -> None:
    store = _record(place, tmp_path, "[*crop, *tensor, *normalise]")
    outcome = _probe(store)
    assert (outcome.status, outcome.findings) == ("pass", []), outcome.message
    assert "60 samples predicted again, 60 of them as recorded" in outcome.notes[0]
    assert outcome_of(store, "probe").status == "skip"


def test_a_model_that_draws_in_evaluation_is_named(place: Path, tmp_path: Path) -> None:
    """Noise, or `functional.dropout` without `training=`, is on in evaluation mode too, and no module's mode shows it."""
    (tmp_path / "net.py").write_text(
        _HEAD
        + "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.inner = model()\n"
        f"        self.inner.load_state_dict(torch.load({str(place / 'model.pt')!r}))\n"
        "    def forward(self, x):\n        return self.inner(x + 20 * torch.randn_like(x))\n"
        "def net():\n    return Net()\n"
    )
    (tmp_path / "pipeline.py").write_text(_HEAD + "transform = [*crop, *tensor, *normalise]\n")
    run(
        place / "test", model=f"{tmp_path / 'net.py'}:net", trust=True, pipeline=tmp_path / "pipeline.py",
        store=tmp_path / "lineage", workers=0,
    )  # fmt: skip
    outcome = _probe(tmp_path / "lineage", trust=True)
    assert (outcome.status, outcome.severity) == ("fail", "warning"), outcome.notes
    assert "differ when they are made again" in outcome.message


def test_code_of_another_machine_runs_only_with_trust(place: Path, tmp_path: Path) -> None:
    store = _record(place, tmp_path, "[*crop, *tensor, *normalise]")
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(pipeline.read_text() + f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    refused = _probe(store)
    assert refused.status == "skip"
    assert "--trust" in refused.message
    assert not (tmp_path / "ran").exists()
    assert _probe(store, trust=True).status == "pass"
    assert (tmp_path / "ran").exists()
