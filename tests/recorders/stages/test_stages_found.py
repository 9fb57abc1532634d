"""Every stage of an unmodified pipeline, in whatever library it is written, and what a random one drew."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording_material import Numbers, Questions, halve, negate
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms
from torchvision.transforms import v2

import audit
from audit.errors import PipelineError, UsageError
from audit.recorders.loop.recording import RecordingWarning
from audit.recorders.stages.describe import parameters_of
from audit.recorders.stages.discover import looks_random


class Pictures(Dataset):  # type: ignore[type-arg]
    """Eight pictures through a transform, called in one of the ways that libraries want."""

    def __init__(self, transform: Any, call: str = "tensor") -> None:
        self.transform = transform
        self.call = call

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        array = np.random.RandomState(index).randint(0, 256, (8, 10, 3)).astype(np.uint8)
        if self.call == "albumentations":
            return self.transform(image=array)["image"], index % 3
        image = torch.from_numpy(array).permute(2, 0, 1)
        if self.call == "monai":
            return self.transform({"image": image.float(), "label": index % 3})
        return self.transform(image.float() / 255 if self.call == "kornia" else image), index % 3


def nested_v1() -> Any:
    return transforms.Compose(
        [
            transforms.Resize(8),
            transforms.RandomApply([transforms.RandomRotation(20), halve], p=0.5),
            transforms.Compose([transforms.RandomCrop(4), transforms.Compose([transforms.RandomHorizontalFlip()])]),
            transforms.RandomChoice([transforms.Grayscale(3), transforms.ColorJitter(0.5)]),
            transforms.RandomOrder([transforms.RandomVerticalFlip(), transforms.RandomInvert()]),
            nn.Sequential(nn.Flatten(), nn.Identity()),
        ]
    )


def nested_v2() -> Any:
    return v2.Compose(
        [
            v2.RandomApply([v2.RandomAffine(10), v2.RandomPerspective()], p=0.5),
            v2.RandomChoice([v2.RandomCrop(4), v2.CenterCrop(4)]),
            v2.RandomOrder([v2.RandomHorizontalFlip(), v2.ColorJitter(0.5)]),
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomErasing(p=0.5),
        ]
    )


def albumentations_pipeline() -> Any:
    album = pytest.importorskip("albumentations")
    return album.Compose(
        [
            album.HorizontalFlip(p=0.5),
            album.RandomBrightnessContrast(p=0.5),
            album.OneOf([album.GaussNoise(p=1), album.Blur(p=1)], p=0.7),
            album.RandomCrop(6, 6),
            album.Normalize(),
            album.pytorch.ToTensorV2(),
        ],
        seed=5,
    )


def monai_pipeline() -> Any:
    monai = pytest.importorskip("monai.transforms")
    composed = monai.Compose(
        [
            monai.RandFlipd(keys=["image"], prob=0.5),
            monai.ScaleIntensityd(keys=["image"]),
            monai.RandGaussianNoised(keys=["image"], prob=0.5),
        ]
    )
    composed.set_random_state(3)
    return composed


def kornia_pipeline() -> Any:
    kornia = pytest.importorskip("kornia.augmentation")
    inner = kornia.AugmentationSequential(
        kornia.RandomHorizontalFlip(p=0.5), kornia.ColorJitter(0.2), data_keys=["input"]
    )
    return nn.Sequential(kornia.RandomRotation(15.0, p=0.5), inner)


PIPELINES = {
    "v1": (
        nested_v1,
        "tensor",
        [
            ("0", "load"), ("1", "Resize"), ("2.1", "RandomRotation"), ("2.2", "halve"), ("2", "RandomApply"),
            ("3.1", "RandomCrop"), ("3.2.1", "RandomHorizontalFlip"), ("4.1", "Grayscale"), ("4.2", "ColorJitter"),
            ("4", "RandomChoice"), ("5.1", "RandomVerticalFlip"), ("5.2", "RandomInvert"), ("5", "RandomOrder"),
            ("6.1", "Flatten"), ("6.2", "Identity"),
        ],
    ),
    "v2": (
        nested_v2,
        "tensor",
        [
            ("0", "load"), ("1.1", "RandomAffine"), ("1.2", "RandomPerspective"), ("1", "RandomApply"),
            ("2.1", "RandomCrop"), ("2.2", "CenterCrop"), ("2", "RandomChoice"), ("3.1", "RandomHorizontalFlip"),
            ("3.2", "ColorJitter"), ("3", "RandomOrder"), ("4", "ToDtype"), ("5", "RandomErasing"),
        ],
    ),
    "albumentations": (
        albumentations_pipeline,
        "albumentations",
        [
            ("0", "load"), ("1", "HorizontalFlip"), ("2", "RandomBrightnessContrast"), ("3.1", "GaussNoise"),
            ("3.2", "Blur"), ("3", "OneOf"), ("4", "RandomCrop"), ("5", "Normalize"), ("6", "ToTensorV2"),
            ("inside.item", "item"),
        ],
    ),
    "monai": (
        monai_pipeline,
        "monai",
        [
            ("0", "load"), ("1", "RandFlipd"), ("2", "ScaleIntensityd"), ("3", "RandGaussianNoised"),
            ("inside.item", "item"),
        ],
    ),
    "kornia": (
        kornia_pipeline,
        "kornia",
        [
            ("0", "load"), ("1", "RandomRotation"), ("2.1", "RandomHorizontalFlip"), ("2.2", "ColorJitter"),
            ("2", "AugmentationSequential"),
        ],
    ),
}  # fmt: skip


@pytest.mark.workers
@pytest.mark.parametrize("name", PIPELINES)
def test_stages_of_libraries(tmp_path: Path, name: str) -> None:
    build, call, expected = PIPELINES[name]

    def items() -> Any:
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        return Pictures(build(), call)

    dataset = items()
    plain = [dataset[n] for n in range(8)]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        original = items()
        held = getattr(original.transform, "transforms", None)
        dataset = run.dataset(original)
        recorded = [dataset[n] for n in range(8)]
        assert getattr(original.transform, "transforms", None) is held
    for a, b in zip(plain, recorded, strict=True):
        x, y = (a["image"], b["image"]) if isinstance(a, dict) else (a[0], b[0])
        assert type(x) is type(y)
        assert torch.equal(torch.as_tensor(x), torch.as_tensor(y))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT path, name FROM stages ORDER BY stage") == expected
    assert ask("SELECT DISTINCT count(*) FROM stage_outputs GROUP BY index") == [(len(expected),)]
    # A stage that did not fire changed nothing, and one that fired says with what.
    for stage, changed, params in ask("SELECT name, changed, params FROM stage_outputs WHERE params IS NOT NULL"):
        # MONAI and kornia make another kind of tensor of it, or one of another shape, even then.
        if json.loads(params).get("fired") is False and name not in ("monai", "kornia"):
            assert not changed, stage
    drawn = {n for (n,) in ask("SELECT DISTINCT name FROM stage_outputs WHERE params LIKE '%:%'")}
    assert len(drawn) >= 2, drawn


@pytest.mark.slow
def test_a_batch_goes_to_the_model_as_its_last_stage_says(tmp_path: Path) -> None:
    """Dictionary pipelines too, where the model is given one entry of the item."""
    for name in ("albumentations", "monai"):
        build, call, _ = PIPELINES[name]
        transform = build()
        if name == "albumentations":
            transform.transforms[3].p = 1.0
        with audit.record(tmp_path / name, strict=True) as run:
            model = run.model(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))
            for batch in run.loader(DataLoader(Pictures(transform, call), batch_size=4)):
                model(batch["image"] if isinstance(batch, dict) else batch[0])
        matched = Questions(tmp_path / name)(
            "SELECT count(*) FROM predictions JOIN (SELECT index, arg_max(digest, stage) AS last FROM stage_outputs GROUP BY index)"
            " USING (index) WHERE input_digest = last"
        )
        assert matched == [(8,)], name


def test_through_subset_and_concat(tmp_path: Path) -> None:
    shared = transforms.Compose([halve])
    parts = [Numbers(3, shared), Subset(Numbers(5, shared), [1, 4]), Numbers(2, transforms.Compose([negate, halve]))]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(ConcatDataset(parts))))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT path, name FROM stages ORDER BY stage") == [
        ("0", "load"), ("1", "halve"), ("1", "negate"), ("2", "halve"),
    ]  # fmt: skip
    names = ask("SELECT index, list(name ORDER BY stage) FROM stage_outputs GROUP BY index ORDER BY index")
    assert [row[1] for row in names] == [["load", "halve"]] * 5 + [["load", "negate", "halve"]] * 2


CHANGES: dict[str, Any] = {
    "another stage": lambda dataset: setattr(dataset, "transform", negate),
    "another list": lambda dataset: setattr(dataset, "transform", transforms.Compose([negate])),
    "one more": lambda dataset: dataset.transform.transforms.insert(0, halve),
    "one less": lambda dataset: dataset.transform.transforms.pop(0),
    "one other": lambda dataset: dataset.transform.transforms.__setitem__(1, halve),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_transforms_that_are_changed_later_are_those_that_run(tmp_path: Path, change: str) -> None:
    def loop(wrap: Any) -> list[Any]:
        dataset = Numbers(4, halve if change == "another stage" else transforms.Compose([halve, negate]))
        loader = wrap(DataLoader(dataset, 2))
        before = list(loader)
        CHANGES[change](dataset)
        return [before, list(loader)]

    with (
        audit.record(tmp_path / "lineage") as run,
        pytest.warns(RecordingWarning, match="changed after it was wrapped"),
    ):
        seen = loop(run.loader)
    torch.testing.assert_close(seen, loop(lambda loader: loader), rtol=0, atol=0)
    # Of what was not observed nothing is said.
    names = Questions(tmp_path / "lineage")("SELECT DISTINCT name FROM stage_outputs WHERE epoch = 1")
    assert names == [("load",)]


def test_what_v2_stages_say_of_themselves(tmp_path: Path) -> None:
    """RandAugment draws past `make_params`: that it was not asked does not mean that it did nothing."""
    stages = [v2.RandAugment(), v2.JPEG((5, 50)), v2.RandomHorizontalFlip(p=0.0), v2.PILToTensor()]
    stages += [v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(Pictures(v2.Compose(stages)), 2)))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT name, random FROM stages WHERE random IS NOT TRUE ORDER BY stage") == [
        ("load", None),  # the dataset's own code, which may draw
        ("PILToTensor", False),
        ("ToDtype", False),
    ]
    assert ask("SELECT DISTINCT params FROM stage_outputs WHERE name = 'RandAugment'") == [(None,)]
    assert ask("SELECT count(*) FROM stage_outputs WHERE name = 'JPEG' AND params IS NULL") == [(0,)]
    assert ask("SELECT DISTINCT params FROM stage_outputs WHERE name = 'RandomHorizontalFlip'") == [
        ('{"fired": false}',)
    ]


def test_what_cannot_be_a_stage(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        for stages in ("transform", [3], ["nowhere"]):
            with pytest.raises(PipelineError):
                run.dataset(Numbers(), stages=stages)
    with pytest.raises(UsageError, match="a stage's name, or a function"):
        audit.stage(3)  # type: ignore[call-overload]


@audit.stage
def lower(text: str) -> str:
    return text.lower()


class Sentences(Dataset):  # type: ignore[type-arg]
    """Text that is preprocessed inside, before a transform that is found."""

    def __init__(self) -> None:
        self.transform = transforms.Compose([self.pad, torch.tensor])
        self.words = {"a": 1, "cat": 2, "dog": 3}

    def pad(self, tokens: list[int]) -> list[int]:
        return tokens + [0] * (4 - len(tokens))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        text = lower(["A CAT", "a Dog a cat"][index])
        with audit.stage("tokenise") as s:
            tokens = s.out([self.words[word] for word in text.split()])
        return self.transform(tokens), index


@pytest.mark.workers
@pytest.mark.parametrize("wrap", ["loader", "dataset"])
def test_stages_from_inside_a_dataset(tmp_path: Path, wrap: str) -> None:
    with audit.record(tmp_path / "lineage", strict=True, capture="full") as run:
        if wrap == "loader":
            list(run.loader(DataLoader(Sentences(), num_workers=1)))
        else:
            list(DataLoader(run.dataset(Sentences()), num_workers=1))
    ask = Questions(tmp_path / "lineage")
    found = ask("SELECT name, kind FROM stage_outputs WHERE index = 0 ORDER BY stage")
    assert [name for name, _ in found] == ["load", "lower", "tokenise", "pad", "tensor"]
    assert [name for (name,) in ask("SELECT name FROM stages ORDER BY stage")] == [name for name, _ in found]
    assert run.run.unrecorded == []
    with audit.open(tmp_path / "lineage") as store:
        texts = [store.trace(index=0).value(stage) for stage in (0, 1)]
    assert texts == ["A CAT", "a cat"]
    # Outside a recording both forms do nothing.
    assert Sentences()[0][0].tolist() == [1, 2, 0, 0]


def test_a_stage_inside_that_fails(tmp_path: Path) -> None:
    class Broken(Sentences):
        def __getitem__(self, index: int) -> Any:
            with audit.stage("tokenise"):
                return {}["unknown"]

    with audit.record(tmp_path / "lineage") as run, pytest.raises(KeyError):
        list(run.loader(DataLoader(Broken())))
    assert Questions(tmp_path / "lineage")("SELECT failed_stage FROM failures") == [("tokenise",)]


class Methods(Dataset):  # type: ignore[type-arg]
    def clean(self, text: str) -> str:
        return text.strip()

    def __init__(self) -> None:
        self.tokenise = str.split

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.tokenise(self.clean(f" sample {index} ")), index


@pytest.mark.workers
def test_stages_that_are_named(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        dataset = run.dataset(Methods(), stages=["clean", "tokenise"])
        assert dataset[1] == (["sample", "1"], 1)
        with pytest.raises(audit.AuditError, match="no callable of that name"):
            run.dataset(Methods(), stages=["clean", "stem"])
    found = Questions(tmp_path / "lineage")("SELECT name, kind FROM stage_outputs ORDER BY stage")
    assert [name for name, _ in found] == ["load", "clean", "split"]


def test_target_transforms(tmp_path: Path, pictures: Any) -> None:
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(str(pictures(6)), transforms.ToTensor(), target_transform=lambda label: (label + 1) % 3)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(folder)))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT path, name FROM stages ORDER BY stage") == [
        ("0", "load"),
        ("1", "ToTensor"),
        ("target.1", "<lambda>"),
    ]
    assert ask("SELECT count(*) FROM samples WHERE source_digest IS NOT NULL AND source LIKE 'class_%/img_%.png'") == [
        (6,)
    ]


class Shift:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x, int(torch.randint(0, 3, (1,))))


def test_only_a_class_of_a_known_library_shows_that_it_draws_nothing() -> None:
    stages = [
        transforms.Normalize([0.5], [0.5]),
        v2.Resize(8),
        transforms.RandomCrop(4),
        v2.GaussianNoise(),
        transforms.Lambda(torch.neg),
        v2.Lambda(torch.neg),
        Shift(),
        torch.neg,
    ]
    assert [looks_random(stage) for stage in stages] == [False, False, True, True, None, None, None, None]


@pytest.mark.parametrize("library", ["albumentations", "monai", "torchvision"])
def test_what_a_call_drew_is_no_setting(library: str) -> None:
    """Otherwise a pipeline would be another one as soon as it was called."""
    stages: list[Any]
    array = np.full((12, 12, 3), 90, np.uint8)
    given: Any = {"image": array}
    if library == "albumentations":
        album = pytest.importorskip("albumentations")
        stages = [album.RandomSunFlare(p=1), album.RandomBrightnessContrast(p=1)]
    elif library == "monai":
        monai = pytest.importorskip("monai.transforms")
        stages = [monai.RandScaleIntensity(0.5, prob=1), monai.RandGaussianNoise(prob=1), monai.RandRotate(1.0, prob=1)]
        given = torch.from_numpy(array).permute(2, 0, 1).float()
    else:
        stages = [v2.RandomCrop(4), v2.ColorJitter(0.5)]
        given = torch.from_numpy(array).permute(2, 0, 1)
    for stage in stages:
        before = parameters_of(stage)
        stage(**given) if isinstance(given, dict) else stage(given)
        assert parameters_of(stage) == before
        assert json.loads(before)


class Hostile:
    """Raises whatever it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def tolist(self) -> Any:
        raise RuntimeError("no list")

    shape = property(lambda self: 1 / 0)


def cyclic() -> Any:
    found: list[Any] = []
    found += [found] * 20
    return {"self": found}


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


SETTINGS: dict[str, Any] = {
    "a class with a shape": np.float32,
    "a class of arrays": np.ndarray,
    "a type of tensors": torch.float32,
    "a tensor without memory": torch.empty(3, device="meta"),
    "a sparse tensor": torch.eye(3).to_sparse(),
    "an object that raises": Hostile(),
    "a list that holds itself": cyclic(),
    "many lists": nested(5000),
    "a long number": 10**5000,
    "not a number": float("nan"),
    "a set of lists of objects": {("a", 1), ("b", None)},
    "half of a character": "\ud800",
}


class Set:
    """A transform with a setting that may be anything."""

    def __init__(self, setting: Any) -> None:
        self.setting = setting

    def __call__(self, value: Any) -> Any:
        return -value


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_may_be_anything(setting: str, tmp_path: Path) -> None:
    plain = [batch.tolist() for batch, _ in DataLoader(Pictures(Set(SETTINGS[setting])), batch_size=4)]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        loader = run.loader(DataLoader(Pictures(Set(SETTINGS[setting])), batch_size=4))
        assert [batch.tolist() for batch, _ in loader] == plain
    (parameters,) = audit.open(tmp_path / "lineage").sql("SELECT parameters FROM stages WHERE name = 'Set'").fetchall()
    assert "setting" in json.loads(parameters[0])


class Unasked:
    """Raises when it is asked for its class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ZeroDivisionError

    def __call__(self, value: Any) -> Any:
        return -value


def test_a_dataset_that_cannot_be_searched_is_used_unrecorded(tmp_path: Path) -> None:
    plain = [batch.tolist() for batch, _ in DataLoader(Pictures(Unasked()), batch_size=4)]
    with audit.record(tmp_path / "lineage") as run:
        with pytest.warns(RecordingWarning, match="Pictures is not recorded"):
            loader = run.loader(DataLoader(Pictures(Unasked()), batch_size=4))
        assert [batch.tolist() for batch, _ in loader] == plain
        assert run.dataset(Pictures(Unasked()))[0][0].tolist() == plain[0][0]
    assert "ZeroDivisionError" in str(audit.open(tmp_path / "lineage").runs()[0].warnings)
    with audit.record(tmp_path / "strict", strict=True) as run:  # noqa: SIM117
        with pytest.raises(audit.AuditError, match="Pictures is not recorded"):
            run.loader(DataLoader(Pictures(Unasked()), batch_size=4))
