"""What the campaign's pipelines are made of: every torchvision transform for pictures, Albumentations, and callables
that draw from every kind of generator, wherever people keep them.

Each entry says what it takes and gives: a PIL picture, a uint8 tensor or a float tensor. Generators are seeded by the system,
so that a replay that is exact owes it to the recorded states alone.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

warnings.filterwarnings("ignore", message=".*(antialias|deprecated|ToTensor|ConvertImageDtype).*")

try:
    import albumentations
except ImportError:  # an extra; the campaign says when it is missing
    albumentations = None

Build = Callable[[random.Random], Any]

PIL, BYTES, FLOATS = "pil", "uint8", "float"
SIDE = 16


@dataclass(frozen=True)
class Entry:
    """One thing that a pipeline can be made of."""

    name: str
    build: Build
    takes: tuple[str, ...]
    #: None when it gives what it takes.
    gives: str | None = None
    #: Never the same twice, and rightly called not reproducible.
    hidden: bool = False


# -- torchvision -------------------------------------------------------------------------------------------------------

ANY, PICTURES, TENSORS = (PIL, BYTES, FLOATS), (PIL, BYTES), (BYTES, FLOATS)
_P = 0.6


def _both() -> dict[str, tuple[Callable[[Any, random.Random], Any], tuple[str, ...], str | None]]:
    """Transforms that v1 and v2 have under one name: (constructor, takes, gives)."""
    s = SIDE
    return {
        "AugMix": (lambda t, r: t.AugMix(severity=r.randint(1, 5), mixture_width=2), PICTURES, None),
        "AutoAugment": (lambda t, r: t.AutoAugment(r.choice(list(v1.AutoAugmentPolicy))), PICTURES, None),
        "CenterCrop": (lambda t, r: t.CenterCrop(r.randint(s - 4, s + 4)), ANY, None),
        "ColorJitter": (lambda t, r: t.ColorJitter(0.5, 0.4, 0.3, 0.2), ANY, None),
        "Compose": (lambda t, r: t.Compose([t.RandomHorizontalFlip(), t.RandomVerticalFlip()]), ANY, None),
        "ConvertImageDtype": (lambda t, r: t.ConvertImageDtype(torch.float32), TENSORS, FLOATS),
        "ElasticTransform": (lambda t, r: t.ElasticTransform(20.0, 1.0), ANY, None),
        "FiveCrop": (lambda t, r: t.Compose([t.FiveCrop(s - 4), stack_crops]), ANY, FLOATS),
        "GaussianBlur": (lambda t, r: t.GaussianBlur(3, (0.1, 2.0)), ANY, None),
        "Grayscale": (lambda t, r: t.Grayscale(3), ANY, None),
        "Lambda": (lambda t, r: t.Lambda(same), ANY, None),
        "LinearTransformation": (lambda t, r: t.Compose([v2.Resize((4, 4)), make_whitening(t)]), (FLOATS,), None),
        "Normalize": (lambda t, r: t.Normalize([0.5] * 3, [0.2] * 3, inplace=r.random() < 0.5), (FLOATS,), None),
        "PILToTensor": (lambda t, r: t.PILToTensor(), (PIL,), BYTES),
        "Pad": (lambda t, r: t.Pad(r.randint(1, 3), padding_mode=r.choice(["constant", "edge", "reflect"])), ANY, None),
        "RandAugment": (lambda t, r: t.RandAugment(r.randint(1, 3), r.randint(3, 12)), PICTURES, None),
        "RandomAdjustSharpness": (lambda t, r: t.RandomAdjustSharpness(2.0, _P), ANY, None),
        "RandomAffine": (lambda t, r: t.RandomAffine(30, (0.1, 0.2), (0.8, 1.2), 10), ANY, None),
        "RandomApply": (lambda t, r: t.RandomApply([t.ColorJitter(0.5), t.RandomRotation(9)], p=_P), ANY, None),
        "RandomAutocontrast": (lambda t, r: t.RandomAutocontrast(_P), ANY, None),
        "RandomChoice": (lambda t, r: t.RandomChoice([t.RandomInvert(), t.RandomRotation(9)], p=[0.3, 0.7]), ANY, None),
        "RandomCrop": (lambda t, r: t.RandomCrop(s - 2, padding=2, pad_if_needed=True), ANY, None),
        "RandomEqualize": (lambda t, r: t.RandomEqualize(_P), PICTURES, None),
        "RandomErasing": (
            lambda t, r: t.RandomErasing(_P, value=r.choice([0, 1]), inplace=r.random() < 0.5),
            (FLOATS,),
            None,
        ),
        "RandomGrayscale": (lambda t, r: t.RandomGrayscale(_P), ANY, None),
        "RandomHorizontalFlip": (lambda t, r: t.RandomHorizontalFlip(_P), ANY, None),
        "RandomInvert": (lambda t, r: t.RandomInvert(_P), ANY, None),
        "RandomOrder": (lambda t, r: t.RandomOrder([t.RandomInvert(), t.RandomAutocontrast(), same]), ANY, None),
        "RandomPerspective": (lambda t, r: t.RandomPerspective(0.4, _P), ANY, None),
        "RandomPosterize": (lambda t, r: t.RandomPosterize(3, _P), PICTURES, None),
        "RandomResizedCrop": (lambda t, r: t.RandomResizedCrop(s, (0.3, 1.0)), ANY, None),
        "RandomRotation": (lambda t, r: t.RandomRotation(40, expand=r.random() < 0.3), ANY, None),
        "RandomSolarize": (lambda t, r: t.RandomSolarize(0.5, _P), PICTURES, None),
        "RandomVerticalFlip": (lambda t, r: t.RandomVerticalFlip(_P), ANY, None),
        "Resize": (lambda t, r: t.Resize((s, s + r.randint(0, 3)), antialias=True), ANY, None),
        "TenCrop": (lambda t, r: t.Compose([t.TenCrop(s - 4, vertical_flip=True), stack_crops]), ANY, FLOATS),
        "ToPILImage": (lambda t, r: t.ToPILImage(), (BYTES,), PIL),
        "ToTensor": (lambda t, r: t.ToTensor(), (PIL,), FLOATS),
        "TrivialAugmentWide": (lambda t, r: t.TrivialAugmentWide(), PICTURES, None),
    }


def _only_v2() -> dict[str, tuple[Build, tuple[str, ...], str | None]]:
    s = SIDE
    return {
        "ClampBoundingBoxes": (lambda r: v2.ClampBoundingBoxes(), ANY, None),
        "ClampKeyPoints": (lambda r: v2.ClampKeyPoints(), ANY, None),
        "ConvertBoundingBoxFormat": (lambda r: v2.ConvertBoundingBoxFormat("XYWH"), ANY, None),
        "GaussianNoise": (lambda r: v2.GaussianNoise(0.0, 0.1), (FLOATS,), None),
        "Identity": (lambda r: v2.Identity(), ANY, None),
        "JPEG": (lambda r: v2.JPEG((20, 90)), (BYTES,), None),
        "RGB": (lambda r: v2.RGB(), ANY, None),
        "RandomChannelPermutation": (lambda r: v2.RandomChannelPermutation(), ANY, None),
        "RandomIoUCrop": (
            lambda r: v2.Compose([BoxedPicture(), v2.RandomIoUCrop(trials=3), UnboxedPicture(s)]),
            (BYTES,),
            None,
        ),
        "RandomPhotometricDistort": (lambda r: v2.RandomPhotometricDistort(p=_P), ANY, None),
        "RandomResize": (lambda r: v2.RandomResize(s - 3, s + 5), ANY, None),
        "RandomShortestSize": (lambda r: v2.RandomShortestSize([s - 2, s, s + 2], max_size=2 * s), ANY, None),
        "RandomZoomOut": (
            lambda r: v2.Compose([v2.RandomZoomOut(side_range=(1.0, 2.0)), v2.Resize((s, s))]),
            ANY,
            None,
        ),
        "SanitizeBoundingBoxes": (
            lambda r: v2.Compose(
                [BoxedPicture(), v2.RandomIoUCrop(trials=2), v2.SanitizeBoundingBoxes(), UnboxedPicture(s)]
            ),
            (BYTES,),
            None,
        ),
        "ScaleJitter": (lambda r: v2.ScaleJitter((s, s), (0.8, 1.5)), ANY, None),
        "SetClampingMode": (lambda r: v2.SetClampingMode("soft"), ANY, None),
        "ToDtype": (lambda r: v2.ToDtype(torch.float32, scale=True), TENSORS, FLOATS),
        "ToImage": (lambda r: v2.ToImage(), (PIL, BYTES), BYTES),
        "ToPureTensor": (lambda r: v2.ToPureTensor(), TENSORS, None),
        "UniformTemporalSubsample": (
            lambda r: v2.Compose([v2.FiveCrop(s - 4), stacked_frames, v2.UniformTemporalSubsample(3), flat_frames]),
            (FLOATS,),
            None,
        ),
    }


#: No transform of one picture, and why it is left out.
LEFT_OUT_NAMES = {
    "InterpolationMode": "an enumeration",
    "AutoAugmentPolicy": "an enumeration",
    "Transform": "the base class",
    "CutMix": "mixes a batch",
    "MixUp": "mixes a batch",
    "SanitizeKeyPoints": "needs key points as input",
}


def torchvision_names(module: Any) -> set[str]:
    """The transforms that this torchvision has."""
    return {name for name, value in vars(module).items() if inspect.isclass(value) and name[0].isupper()}


def torchvision_entries() -> list[Entry]:
    """Every transform of both versions; raises when one has no entry, so that a new torchvision is noticed."""
    found = []
    for name, (build, takes, gives) in _both().items():
        for label, module in (("v1", v1), ("v2", v2)):
            found.append(Entry(f"{label}.{name}", functools.partial(build, module), takes, gives))
    found += [Entry(f"v2.{name}", build, takes, gives) for name, (build, takes, gives) in _only_v2().items()]
    known = {entry.name for entry in found}
    for label, module in (("v1", v1), ("v2", v2)):
        names = torchvision_names(module) - set(LEFT_OUT_NAMES)
        missing = {name for name in names if f"{label}.{name}" not in known}
        if missing:
            raise LookupError(f"the campaign has no entry for {label}: {', '.join(sorted(missing))}")
    return found


def same(value: Any) -> Any:
    """Gives what it is given."""
    return value


def stack_crops(crops: Any) -> torch.Tensor:
    """Several crops as one float tensor."""
    parts = [
        v1.functional.to_tensor(crop) if isinstance(crop, Image.Image) else torch.as_tensor(crop) for crop in crops
    ]
    return torch.cat([part.float() for part in parts], dim=1)


def stacked_frames(crops: Any) -> torch.Tensor:
    """Several crops as frames of a film."""
    return tv_tensors.Video(torch.stack([torch.as_tensor(crop) for crop in crops]))


def flat_frames(film: Any) -> torch.Tensor:
    """A film as one picture."""
    return torch.as_tensor(film).float().mean(0)


def make_whitening(module: Any) -> Any:
    """A LinearTransformation for pictures of 3×4×4."""
    return module.LinearTransformation(torch.eye(48) * 2, torch.zeros(48))


class BoxedPicture:
    """Adds boxes to a picture."""

    def __call__(self, picture: Any) -> dict[str, Any]:
        height, width = picture.shape[-2:]
        boxes = torch.tensor([[1, 1, width - 2, height - 2], [0, 0, width // 2, height // 2]])
        return {
            "image": tv_tensors.Image(picture),
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
            "labels": torch.tensor([1, 2]),
        }


class UnboxedPicture:
    """Takes the picture out again, at a fixed size."""

    def __init__(self, side: int) -> None:
        self.resize = v2.Resize((side, side))

    def __call__(self, sample: dict[str, Any]) -> Any:
        return self.resize(sample["image"])


# -- generators wherever people keep them ------------------------------------------------------------------------------


def shift(value: Any, amount: float) -> Any:
    """A value moved by a drawn number in [0, 1): any of the three kinds."""
    if isinstance(value, Image.Image):
        array = np.asarray(value).astype(np.int16) + int(amount * 200) - 100
        return Image.fromarray(array.clip(0, 255).astype(np.uint8), value.mode)
    if isinstance(value, torch.Tensor) and value.dtype == torch.uint8:
        return (value.to(torch.int16) + int(amount * 200)).clamp(0, 255).to(torch.uint8)
    return value + amount


class Holds:
    """Draws from whatever it holds, by the function that knows how."""

    def __init__(self, held: Any, draw: Callable[[Any], float]) -> None:
        self.held = held
        self.draw = draw

    def __call__(self, value: Any) -> Any:
        return shift(value, self.draw(self.held))


class HoldsInSlots:
    """No `__dict__`."""

    __slots__ = ("generator",)

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def __call__(self, value: Any) -> Any:
        return shift(value, self.generator.random())


class HoldsOnClass:
    """One for all its instances."""

    generator = random.Random()

    def __call__(self, value: Any) -> Any:
        return shift(value, self.generator.random())


class MakesWhenNeeded:
    """As datasets do that must not share a generator between workers."""

    def __init__(self) -> None:
        self.generator: Any = None

    def __call__(self, value: Any) -> Any:
        if self.generator is None:
            self.generator = np.random.default_rng(torch.initial_seed() % 2**32)
        return shift(value, self.generator.random())


class AddsWhenNeeded:
    """The same without naming the attribute before."""

    def __call__(self, value: Any) -> Any:
        if not hasattr(self, "generator"):
            info = torch.utils.data.get_worker_info()
            self.generator = random.Random(info.seed if info else 3)
        return shift(value, self.generator.random())


class ReplacesIts:
    """A new generator from the old one at each visit."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def __call__(self, value: Any) -> Any:
        self.generator = np.random.default_rng(self.generator.integers(2**60))
        return shift(value, self.generator.random())


class AsksForSeed:
    """A generator for one call, seeded by the worker's seed."""

    def __call__(self, value: Any) -> Any:
        return shift(value, random.Random(torch.initial_seed()).random())


class CountingRandom(random.Random):
    """A random.Random with a state of its own."""

    def seed(self, *given: Any) -> None:
        super().seed(*given)
        self.count = 0

    def random(self) -> float:
        self.count += 1
        return (super().random() + self.count * 0.37) % 1.0


GLOBAL = np.random.default_rng()


def draws_from_global(value: Any) -> Any:
    """A generator at the top of a module."""
    return shift(value, GLOBAL.random())


def with_default(value: Any, generator: random.Random = random.Random()) -> Any:  # noqa: B008 - the point of it
    """A generator as a default argument."""
    return shift(value, generator.random())


def closure() -> Callable[[Any], Any]:
    """A generator in a closure."""
    generator = np.random.default_rng()

    def draws(value: Any) -> Any:
        return shift(value, generator.random())

    return draws


def _generator_entries() -> list[tuple[str, Callable[[], Any]]]:
    bits = np.random
    found: list[tuple[str, Callable[[], Any]]] = [
        ("torch.rand", lambda: Holds(None, lambda _: float(torch.rand(())))),
        ("torch.randn", lambda: Holds(None, lambda _: float(torch.randn(()).abs()) % 1.0)),
        ("np.random.random", lambda: Holds(None, lambda _: np.random.random())),
        ("np.random.normal", lambda: Holds(None, lambda _: abs(np.random.normal()) % 1.0)),
        ("random.random", lambda: Holds(None, lambda _: random.random())),
        ("random.gauss", lambda: Holds(None, lambda _: abs(random.gauss(0, 1)) % 1.0)),
        ("random.shuffle", lambda: Holds(None, lambda _: random.sample(range(1000), 5)[2] / 1000)),
        ("RandomState", lambda: Holds(np.random.RandomState(), lambda g: abs(g.normal()) % 1.0)),
        ("random.Random", lambda: Holds(random.Random(), lambda g: g.random())),
        ("random.Random.gauss", lambda: Holds(random.Random(), lambda g: abs(g.gauss(0, 1)) % 1.0)),
        ("random.Random subclass", lambda: Holds(CountingRandom(), lambda g: g.random())),
        ("torch.Generator", lambda: Holds(torch_generator(), lambda g: float(torch.rand((), generator=g)))),
        ("torch.Generator.randn", lambda: Holds(torch_generator(), lambda g: float(torch.randn((), generator=g)) % 1)),
        ("Generator.spawn", lambda: Holds(bits.default_rng(), lambda g: g.spawn(2)[1].random())),
        ("SeedSequence.spawn", lambda: Holds(bits.SeedSequence(), lambda s: bits.default_rng(s.spawn(1)[0]).random())),
        ("bit generator", lambda: Holds(bits.PCG64(), lambda g: g.random_raw() / 2**64)),
        ("in a dict", lambda: Holds({"deep": [{"er": random.Random()}]}, lambda h: h["deep"][0]["er"].random())),
        ("in a tuple", lambda: Holds((0, bits.default_rng()), lambda h: h[1].random())),
        ("two that share bits", lambda: Holds(_twins(), lambda h: (h[0].random() + h[1].random()) % 1.0)),
        ("in slots", HoldsInSlots),
        ("on the class", HoldsOnClass),
        ("made when needed", MakesWhenNeeded),
        ("added when needed", AddsWhenNeeded),
        ("replaced each time", ReplacesIts),
        ("worker's seed", AsksForSeed),
        ("module global", lambda: draws_from_global),
        ("default argument", lambda: with_default),
        ("closure", closure),
        ("partial", lambda: functools.partial(_draw_by, generator=random.Random())),
        ("bound method", lambda: Holds(bits.default_rng(), lambda g: g.random()).__call__),
        ("nn.Module", lambda: nn.Sequential(nn.Dropout(0.3), nn.Identity())),
    ]
    for kind in (bits.PCG64, bits.PCG64DXSM, bits.Philox, bits.SFC64, bits.MT19937):
        make = functools.partial(_hold, kind)
        found += [(f"Generator({kind.__name__})", make), (f"Generator({kind.__name__}).float32", make)]
    return found


def _hold(kind: Any) -> Holds:
    return Holds(np.random.Generator(kind()), lambda g: float(g.random(dtype=np.float32)))


def _twins() -> list[Any]:
    bits = np.random.PCG64()
    return [np.random.Generator(bits), np.random.Generator(bits)]


def _draw_by(value: Any, generator: random.Random) -> Any:
    return shift(value, generator.random())


def torch_generator() -> torch.Generator:
    """Seeded by the system."""
    generator = torch.Generator()
    generator.seed()
    return generator


def generator_entries() -> list[Entry]:
    """Callables over every kind of generator, in every place that holds one."""
    return [
        Entry(name, lambda r, make=make: make(), (FLOATS,) if name == "nn.Module" else ANY)
        for name, make in _generator_entries()
    ]


# -- Albumentations ----------------------------------------------------------------------------------------------------


class AlbumentationsStage:
    """An Albumentations pipeline as one stage."""

    def __init__(self, compose: Any) -> None:
        self.compose = compose

    def __call__(self, picture: Any) -> Any:
        return Image.fromarray(self.compose(image=np.asarray(picture))["image"])


_ALBUMENTATIONS = (
    "HorizontalFlip", "VerticalFlip", "Transpose", "RandomRotate90", "D4", "RandomBrightnessContrast", "HueSaturationValue",
    "RGBShift", "ChannelShuffle", "GaussNoise", "ISONoise", "MultiplicativeNoise", "Blur", "MedianBlur", "GaussianBlur",
    "MotionBlur", "CLAHE", "Posterize", "Solarize", "Equalize", "InvertImg", "ToGray", "RandomGamma", "Sharpen", "Emboss",
    "ImageCompression", "CoarseDropout", "GridDropout", "PixelDropout", "ElasticTransform", "GridDistortion",
    "OpticalDistortion", "Affine", "ShiftScaleRotate", "Rotate", "SafeRotate", "Perspective", "Downscale", "RandomShadow",
    "RandomFog", "RandomRain", "RandomSunFlare", "RandomToneCurve", "ColorJitter", "ChannelDropout", "FancyPCA", "Defocus",
    "GlassBlur", "Spatter", "Superpixels", "RingingOvershoot", "UnsharpMask", "PlanckianJitter", "Morphological", "SaltAndPepper",
    "ShotNoise", "AdditiveNoise", "ThinPlateSpline", "XYMasking", "RandomSnow", "RandomGravel", "PlasmaShadow", "Illumination",
    "AutoContrast", "ChromaticAberration", "AdvancedBlur", "ZoomBlur", "SquareSymmetry", "Erasing", "ConstrainedCoarseDropout",
)  # fmt: skip


def albumentations_entries() -> list[Entry]:
    """Its transforms that need nothing but a picture, each inside a Compose with generators of its own."""
    if albumentations is None:
        return []
    found = [
        Entry(f"A.{name}", functools.partial(_make_albumented, name), (PIL,))
        for name in _ALBUMENTATIONS
        if hasattr(albumentations, name)
    ]
    return [*found, Entry("A.OneOf/SomeOf/Sequential", lambda r: AlbumentationsStage(albumented_compose()), (PIL,))]


def _make_albumented(name: str, r: random.Random) -> AlbumentationsStage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AlbumentationsStage(albumentations.Compose([getattr(albumentations, name)(p=0.8)]))


def albumented_compose() -> Any:
    """Containers of Albumentations, nested."""
    a = albumentations
    return a.Compose(
        [
            a.OneOf(
                [a.HorizontalFlip(p=1), a.Rotate(30, p=1), a.Sequential([a.Transpose(p=1), a.Blur(3, p=1)])], p=0.8
            ),
            a.SomeOf([a.RandomGamma(p=1), a.GaussNoise(p=1), a.ChannelShuffle(p=1)], n=2, p=0.7),
            a.RandomBrightnessContrast(p=0.5),
        ]
    )


# -- hidden ------------------------------------------------------------------------------------------------------------


def from_system(value: Any) -> Any:
    """Random numbers that the system makes."""
    return shift(value, (os.urandom(1)[0] + 256 * os.urandom(1)[0]) / 65536)


def from_clock(value: Any) -> Any:
    """The time."""
    return shift(value, (time.perf_counter_ns() % 1_000_003) / 1_000_003)


_COUNT = itertools.count()


def from_counter(value: Any) -> Any:
    """How many visits came before."""
    return shift(value, (next(_COUNT) * 0.6180339887) % 1.0)


def from_race(value: Any) -> Any:
    """How far another thread has come."""
    steps, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            steps[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    time.sleep(0.0002)
    stop.set()
    thread.join()
    return shift(value, (steps[0] * 0.6180339887) % 1.0)


class FromSystemRandom:
    """A generator without a state."""

    def __init__(self) -> None:
        self.generator = random.SystemRandom()

    def __call__(self, value: Any) -> Any:
        return shift(value, self.generator.random())


def hidden_entries() -> list[Entry]:
    """What no recorder can know: a replay must say so."""
    return [
        Entry("os.urandom", lambda r: from_system, (FLOATS,), hidden=True),
        Entry("clock", lambda r: from_clock, (FLOATS,), hidden=True),
        Entry("counter", lambda r: from_counter, (FLOATS,), hidden=True),
        Entry("thread race", lambda r: from_race, (FLOATS,), hidden=True),
        Entry("SystemRandom", lambda r: FromSystemRandom(), (FLOATS,), hidden=True),
    ]


def stage_name(stage: Any) -> str:
    """The name that a recording gives to a stage."""
    return stage.__name__ if hasattr(stage, "__name__") else type(stage).__name__
