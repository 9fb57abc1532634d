"""Datasets of every shape that people write, with the stages that a recording must find in each.

All of them make their pictures from a fixed seed, draw from the global generators where they are random, and give the
same items in every process.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, random_split
from torchvision import transforms
from torchvision.transforms import functional, v2

COUNT = 8
FoundStages = list[tuple[str, str]]


@dataclass(frozen=True)
class Shape:
    """One way to write a dataset, and what a recording finds in it, stage 0 left out."""

    name: str
    build: Callable[[], Any]
    stages: FoundStages
    #: A call by which the dataset's own code changes the value, where no stage can be seen.
    unseen: str | None = None


def picture(index: int) -> Image.Image:
    return Image.fromarray(np.random.RandomState(index).randint(0, 256, (8, 10, 3), dtype=np.uint8))


def standard() -> Any:
    return transforms.Compose([transforms.RandomCrop(6), transforms.RandomHorizontalFlip(), transforms.ToTensor()])


def flip(image: Any) -> Any:
    return functional.hflip(image)


def brighten(image: Any, factor: float = 1.5) -> Any:
    return functional.adjust_brightness(image, factor)


def prepare(image: Any) -> Any:
    image = functional.resize(image, [6, 6])
    return functional.to_tensor(image)


def apply(transform: Any, image: Any) -> Any:
    return transform(image)


class Pictures(Dataset):  # type: ignore[type-arg]
    """What the shapes have in common."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < COUNT:
            raise IndexError(index)
        return self.make(index), index % 3

    def make(self, index: int) -> Any:
        raise NotImplementedError


class NamedAttribute(Pictures):
    def __init__(self, name: str) -> None:
        self.name = name
        setattr(self, name, standard())

    def make(self, index: int) -> Any:
        return getattr(self, self.name)(picture(index))


class DictOfTransforms(Pictures):
    def __init__(self) -> None:
        self.steps = {"train": standard(), "test": transforms.ToTensor()}

    def make(self, index: int) -> Any:
        return self.steps["train"](picture(index))


class TupleOfTransforms(Pictures):
    def __init__(self) -> None:
        self.steps = (transforms.RandomCrop(6), flip, transforms.ToTensor(), nn.Flatten(0))

    def make(self, index: int) -> Any:
        value: Any = picture(index)
        for step in self.steps:
            value = step(value)
        return value


class SlottedHolder:
    __slots__ = ("tf",)

    def __init__(self) -> None:
        self.tf = standard()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < COUNT:
            raise IndexError(index)
        return self.tf(picture(index)), index % 3


class PropertyHeld(Pictures):
    def __init__(self) -> None:
        self._chosen = standard()

    @property
    def tf(self) -> Any:
        return self._chosen

    def make(self, index: int) -> Any:
        return self.tf(picture(index))


class PropertyMade(Pictures):
    @property
    def tf(self) -> Any:
        return transforms.Compose([transforms.Resize(6), transforms.ToTensor()])

    def make(self, index: int) -> Any:
        return self.tf(picture(index))


class Methods(Pictures):
    def __init__(self) -> None:
        self.scale = transforms.Normalize([0.5] * 3, [0.5] * 3)

    def load(self, index: int) -> Image.Image:
        return picture(index)

    def crop(self, image: Any) -> Any:
        left = random.randint(0, 3)
        return image.crop((left, 0, left + 6, 6))

    def finish(self, image: Any) -> Any:
        return self.scale(functional.to_tensor(image))

    def make(self, index: int) -> Any:
        return self.finish(self.crop(self.load(index)))


class StaticMethods(Pictures):
    @staticmethod
    def mirror(image: Any) -> Any:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    @classmethod
    def tensor(cls, image: Any) -> Any:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def make(self, index: int) -> Any:
        return self.tensor(self.mirror(picture(index)))


class Functions(Pictures):
    def make(self, index: int) -> Any:
        image = flip(picture(index))
        image = ImageOps.autocontrast(image)
        return prepare(brighten(image, factor=random.uniform(0.5, 1.5)))


class LibraryFunctions(Pictures):
    def make(self, index: int) -> Any:
        image = functional.resize(picture(index), [6, 6])
        value = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return functional.normalize(value, [0.5] * 3, [0.5] * 3)


def closure_shape() -> Any:
    transform = standard()

    class Closure(Pictures):
        def make(self, index: int) -> Any:
            return transform(picture(index))

    return Closure()


GLOBAL_TRANSFORM = standard()
REGISTRY = {"flip": flip, "tensor": transforms.ToTensor()}


class GlobalObject(Pictures):
    def make(self, index: int) -> Any:
        return GLOBAL_TRANSFORM(picture(index))


class GlobalRegistry(Pictures):
    def make(self, index: int) -> Any:
        value: Any = picture(index)
        for name in ("flip", "tensor"):
            value = REGISTRY[name](value)
        return value


class ClassAttribute(Pictures):
    aug = standard()

    def make(self, index: int) -> Any:
        return self.aug(picture(index))


class DefaultArgument(Pictures):
    def make(self, index: int, transform: Any = standard()) -> Any:  # noqa: B008
        return transform(picture(index))


class Partials(Pictures):
    def __init__(self) -> None:
        self.resize = functools.partial(functional.resize, size=[6, 6])
        self.last = functools.partial(apply, transforms.ToTensor())

    def make(self, index: int) -> Any:
        return self.last(self.resize(picture(index)))


class Lambdas(Pictures):
    def __init__(self) -> None:
        self.tensor = lambda image: torch.from_numpy(np.array(image)).float()
        self.noise: Any = lambda value: value + torch.rand_like(value)

    def make(self, index: int) -> Any:
        return self.noise(self.tensor(picture(index)))  # type: ignore[no-untyped-call]


class OwnCompose:
    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)

    def __call__(self, value: Any) -> Any:
        for step in self.steps:
            value = step(value)
        return value


class OwnContainer(Pictures):
    def __init__(self, attribute: str = "aug") -> None:
        inner = OwnCompose(transforms.ToTensor(), nn.Sequential(nn.Flatten(0), nn.Identity()))
        self.attribute = attribute
        setattr(self, attribute, OwnCompose(transforms.RandomCrop(6), flip, inner))

    def make(self, index: int) -> Any:
        return getattr(self, self.attribute)(picture(index))


class ReferencePreset:
    """As in torchvision's reference scripts."""

    def __init__(self) -> None:
        self.transforms = transforms.Compose(
            [transforms.RandomResizedCrop(6), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        )

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class PresetInTransform(Pictures):
    def __init__(self) -> None:
        self.transform = ReferencePreset()

    def make(self, index: int) -> Any:
        return self.transform(picture(index))


class Collaborator:
    def __init__(self) -> None:
        self.tensor = transforms.ToTensor()

    def run(self, image: Any) -> Any:
        return self.tensor(flip(image))


class CollaboratorHeld(Pictures):
    def __init__(self) -> None:
        self.preprocessor = Collaborator()

    def make(self, index: int) -> Any:
        return self.preprocessor.run(picture(index))


class MakesOnTheSpot(Pictures):
    def make(self, index: int) -> Any:
        return transforms.Compose([transforms.Resize(6), transforms.ToTensor()])(picture(index))


class Conditional(Pictures):
    """A branch that only one sample takes."""

    def __init__(self) -> None:
        self.tf = transforms.ToTensor()

    def make(self, index: int) -> Any:
        image = picture(index)
        if index == 6:
            image = flip(image)
        return self.tf(image)


class TwoViews(Pictures):
    def __init__(self) -> None:
        self.view = standard()

    def __getitem__(self, index: int) -> Any:
        image = picture(index)
        return torch.cat([self.view(image), self.view(image)]), index % 3


class Segmentation(Pictures):
    def __init__(self) -> None:
        self.image_transform = transforms.Compose([transforms.Resize(6), transforms.ToTensor()])
        self.mask_transform = transforms.Compose([transforms.Resize(6), transforms.PILToTensor()])

    def __getitem__(self, index: int) -> Any:
        return self.image_transform(picture(index)), self.mask_transform(picture(index + 100))


class JointTransform(Pictures):
    def __init__(self) -> None:
        self.joint = v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage()])

    def __getitem__(self, index: int) -> Any:
        return self.joint(picture(index), {"label": index % 3})


class Wrapper(Pictures):
    def __init__(self) -> None:
        self.base = NamedAttribute("tf")
        self.after = transforms.Normalize([0.5] * 3, [0.5] * 3)

    def __getitem__(self, index: int) -> Any:
        value, label = self.base[index]
        return self.after(value), label


class Sentences(Pictures):
    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}

    def tokenise(self, text: str) -> list[str]:
        return text.split()

    def encode(self, tokens: list[str]) -> list[int]:
        return [self.vocabulary.setdefault(token, len(token)) for token in tokens]

    def __getitem__(self, index: int) -> Any:
        return self.encode(self.tokenise(f"sample number {index}")), index % 3


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, first: int = 0, count: int = COUNT) -> None:
        self.numbers = range(first, first + count)
        self.aug = standard()

    def __iter__(self) -> Iterator[Any]:
        for index in self.numbers:
            yield self.aug(picture(index)), index % 3


class Arithmetic(Pictures):
    """Changes its values by operators alone: there is no call that could be a stage."""

    def make(self, index: int) -> Any:
        return torch.from_numpy(np.asarray(picture(index)) / 255.0)


class UnreachableTransform(Pictures):
    """Makes its transform within the call, from code that nothing else holds."""

    def make(self, index: int) -> Any:
        def scale(image: Any) -> Any:
            return torch.from_numpy(np.array(image)).float() / 2

        return scale(picture(index))


def hugging_face(method: str) -> Any:
    import datasets as hf

    table = hf.Dataset.from_dict({"number": list(range(COUNT)), "label": [n % 3 for n in range(COUNT)]})
    return getattr(table, method)(pictures_of)


def pictures_of(batch: dict[str, Any]) -> dict[str, Any]:
    batch["image"] = [prepare(picture(number)) for number in batch.pop("number")]
    return batch


_STANDARD = [("1", "RandomCrop"), ("2", "RandomHorizontalFlip"), ("3", "ToTensor")]


def _at(prefix: str, stages: FoundStages = _STANDARD) -> FoundStages:
    return [(f"{prefix}.{path}", name) for path, name in stages]


_NAMES = (
    *("aug", "tf", "tfm", "preprocess", "train_transform", "image_transform", "processor", "augmentation"),
    *("augmentations", "pipeline", "preprocessing", "pre", "t", "_tf", "img_transforms"),
)
_OWN = [("1", "RandomCrop"), ("2", "flip"), ("3.1", "ToTensor"), ("3.2.1", "Flatten"), ("3.2.2", "Identity")]

SHAPES = [
    *(Shape(f"attribute {name}", functools.partial(NamedAttribute, name), _at(f"call.{name}")) for name in _NAMES),
    Shape("dict", DictOfTransforms, _at("call.steps.train")),
    Shape(
        "tuple",
        TupleOfTransforms,
        _at("call.steps", [("1", "RandomCrop"), ("2", "flip"), ("3", "ToTensor"), ("4", "Flatten")]),
    ),
    Shape("__slots__", SlottedHolder, _at("call.tf")),
    Shape("property of a held transform", PropertyHeld, _at("call._chosen")),
    Shape("property that makes one", PropertyMade, _at("call.Compose", [("1", "Resize"), ("2", "ToTensor")])),
    Shape(
        "methods",
        Methods,
        [("call.crop", "crop"), ("call.finish.to_tensor", "to_tensor"), ("call.finish.scale", "Normalize")],
    ),
    Shape("static and class methods", StaticMethods, [("call.mirror", "mirror"), ("call.tensor", "tensor")]),
    Shape(
        "functions",
        Functions,
        [
            ("call.flip", "flip"), ("call.autocontrast", "autocontrast"), ("call.brighten", "brighten"),
            ("call.prepare.resize", "resize"), ("call.prepare.to_tensor", "to_tensor"),
        ],
    ),
    Shape(
        "functions of a library",
        LibraryFunctions,
        [("call.resize", "resize"), ("call.normalize", "normalize")],
        unseen="torch.from_numpy",
    ),
    Shape("closure", closure_shape, _at("call.transform")),
    Shape("module's global", GlobalObject, _at("call.GLOBAL_TRANSFORM")),
    Shape("module's registry", GlobalRegistry, [("call.REGISTRY.flip", "flip"), ("call.REGISTRY.tensor", "ToTensor")]),
    Shape("class attribute", ClassAttribute, _at("call.aug")),
    Shape("default argument", DefaultArgument, _at("call.transform")),
    Shape("partial", Partials, [("call.resize", "resize"), ("call.last", "apply")]),
    Shape("lambdas", Lambdas, [("call.tensor", "<lambda>"), ("call.noise", "<lambda>")]),
    Shape("own Compose", OwnContainer, _at("call.aug", _OWN)),
    Shape(
        "own Compose in transform",
        functools.partial(OwnContainer, "transform"),
        [*_at("1", _OWN), ("1", "OwnCompose")],
    ),
    Shape(
        "reference preset",
        PresetInTransform,
        [
            ("1.transforms.1", "RandomResizedCrop"), ("1.transforms.2", "RandomHorizontalFlip"),
            ("1.transforms.3", "PILToTensor"), ("1", "ReferencePreset"),
        ],
    ),
    Shape("object with a method", CollaboratorHeld, [("call.run.flip", "flip"), ("call.run.tensor", "ToTensor")]),
    Shape("made on the spot", MakesOnTheSpot, _at("call.Compose", [("1", "Resize"), ("2", "ToTensor")])),
    # Recorded item by item: what follows the stage that came late has a second ordinal.
    Shape("conditional", Conditional, [("call.tf", "ToTensor"), ("call.flip", "flip"), ("call.tf", "ToTensor")]),
    Shape("two views", TwoViews, [*_at("call.view"), *_at("call.view#2"), ("inside.item", "item")], unseen="torch.cat"),
    Shape(
        "image and mask",
        Segmentation,
        [
            *_at("call.image_transform", [("1", "Resize"), ("2", "ToTensor")]),
            *_at("target.call.mask_transform", [("1", "Resize"), ("2", "PILToTensor")]),
        ],
    ),
    Shape("joint transform", JointTransform, _at("call.joint", [("1", "RandomHorizontalFlip"), ("2", "ToImage")])),
    Shape("wrapper with .base", Wrapper, [*_at("call.tf"), ("call.after", "Normalize")]),
    Shape("text", Sentences, [("call.tokenise", "tokenise"), ("call.encode", "encode")]),
    Shape("iterable", Stream, _at("call.aug")),
    Shape("ChainDataset", lambda: ChainDataset([Stream(0, 4), Stream(4, 4)]), _at("call.aug")),
    Shape("Subset", lambda: Subset(NamedAttribute("tf"), [5, 1, 3]), _at("call.tf")),
    Shape(
        "random_split",
        lambda: random_split(NamedAttribute("tf"), [5, 3], torch.Generator().manual_seed(0))[0],
        _at("call.tf"),
    ),
    Shape("ConcatDataset", lambda: ConcatDataset([NamedAttribute("tf"), NamedAttribute("tf")]), _at("call.tf")),
    Shape("arithmetic", Arithmetic, [], unseen="torch.from_numpy"),
    Shape("function made in the call", UnreachableTransform, [], unseen="Tensor.float"),
]  # fmt: skip
#: Datasets that make whole batches by code of their own.
BATCHED_SHAPES = [
    Shape("StackDataset", lambda: StackDataset(NamedAttribute("tf"), NamedAttribute("tf")), []),
    Shape("Hugging Face set_transform", functools.partial(hugging_face, "with_transform"), []),
]
