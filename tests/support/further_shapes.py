"""More ways to write a dataset: caches, decorators, generators, coroutines, datasets that call themselves, functions in C."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import torch
from dataset_shapes import COUNT, Pictures, Shape, flip, picture
from PIL import ImageOps
from torch import nn
from torchvision.transforms import functional


class CachedMethod(Pictures):
    """Keeps what a method made."""

    def __init__(self) -> None:
        self.read = functools.lru_cache(self.decode)

    def decode(self, index: int) -> Any:
        return flip(picture(index))

    def make(self, index: int) -> Any:
        return functional.to_tensor(self.read(index))


class CallsItself(Pictures):
    def __call__(self, image: Any) -> Any:
        return functional.to_tensor(ImageOps.mirror(image))

    def make(self, index: int) -> Any:
        return self(picture(index))


class Steps:
    """Steps that need no object."""

    @classmethod
    def run(cls, image: Any) -> Any:
        return cls.last(ImageOps.mirror(image))

    @staticmethod
    def last(image: Any) -> Any:
        return functional.to_tensor(image)


class ClassMethods(Pictures):
    def make(self, index: int) -> Any:
        return Steps.run(picture(index))


class StagesByReduce(Pictures):
    def __init__(self) -> None:
        self.steps = [flip, ImageOps.mirror, functional.to_tensor]

    def make(self, index: int) -> Any:
        return functools.reduce(lambda value, step: step(value), self.steps, picture(index))


def with_tensor(make: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    @functools.wraps(make)
    def make_tensor(self: Any, index: int) -> Any:
        return functional.to_tensor(make(self, index))

    return make_tensor


class DecoratedMethod(Pictures):
    @with_tensor
    def make(self, index: int) -> Any:
        return flip(picture(index))


class GeneratorMethod(Pictures):
    def steps(self, index: int) -> Iterator[Any]:
        yield (image := flip(picture(index)))
        yield functional.to_tensor(image)

    def make(self, index: int) -> Any:
        return list(self.steps(index))[-1]


class AsyncMethod(Pictures):
    async def load(self, index: int) -> Any:
        return functional.to_tensor(flip(picture(index)))

    def make(self, index: int) -> Any:
        return asyncio.run(self.load(index))


class ReplacedMethod(Pictures):
    """A method of the object was replaced by another function."""

    def __init__(self) -> None:
        self.change = functional.to_tensor

    def make(self, index: int) -> Any:
        return self.change(picture(index))


class OpenCv(Pictures):
    def make(self, index: int) -> Any:
        return functional.to_tensor(cv2.resize(np.array(picture(index)), (6, 6)))


class Window(Pictures):
    """A part of a series: it is only selected, so that nothing remains to be reported."""

    series = torch.arange(60.0).reshape(2, 30)

    def make(self, index: int) -> Any:
        return self.series[:, index * 3 : index * 3 + 6]


class CutPicture(Pictures):
    pixels = np.arange(COUNT * 48.0).reshape(COUNT, 6, 8)

    def make(self, index: int) -> Any:
        return self.pixels[index, 1:5, ::-1]


class Prompts(Pictures):
    names = ("a cat", "a dog", "a red car")

    def make(self, index: int) -> Any:
        return f"a photo of {self.names[index % 3]}"


class Tokens(Pictures):
    texts = tuple(f"some words and number {n}" for n in range(COUNT))

    def make(self, index: int) -> Any:
        return [len(word) for word in self.texts[index].split()]


class OtherOrder(Pictures):
    """Takes the items of another dataset in an order of its own."""

    def __init__(self) -> None:
        self.inner = CallsItself()

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < COUNT:
            raise IndexError(index)
        return self.inner[COUNT - 1 - index]


class ItemBefore(Pictures):
    """Gives the item before where a stage fails."""

    def check(self, image: Any) -> Any:
        if image.getpixel((0, 0)) == picture(5).getpixel((0, 0)):
            raise ValueError("damaged")
        return flip(image)

    def make(self, index: int) -> Any:
        try:
            return functional.to_tensor(self.check(picture(index)))
        except ValueError:
            return self.make(index - 1)


class LaterBranch(Pictures):
    rows = torch.arange(COUNT * 6.0).reshape(COUNT, 6)

    def make(self, index: int) -> Any:
        row = self.rows[index]
        return row if index < 3 else row * 2


class TwoTexts(Pictures):
    texts = tuple(f"some words and number {n}" for n in range(COUNT))

    def __getitem__(self, index: int) -> Any:
        return {"text": self.texts[index], "answer": self.texts[index - 1].upper(), "label": index % 3}


class RotatedPicture(Pictures):
    """Calls a method of the picture before its first stage."""

    def make(self, index: int) -> Any:
        return functional.to_tensor(picture(index).rotate(90))


class Pyramid(Pictures):
    """Gives what its stage returned, and a smaller one that it makes of it."""

    def make(self, index: int) -> Any:
        value = functional.to_tensor(picture(index))
        return [value, nn.functional.avg_pool2d(value, 2)]


class MixedItself(Pictures):
    """Puts a part of another picture into this one, in place."""

    def make(self, index: int) -> Any:
        value, other = (functional.to_tensor(picture(n)) for n in (index, index + 1))
        value[:, :2] = other[:, :2]
        return value


def _stages(*names: str) -> list[tuple[str, str]]:
    return [(f"call.{name}", name.rpartition(".")[2]) for name in names]


FURTHER = [
    Shape("cached method", CachedMethod, _stages("flip", "to_tensor")),
    Shape("dataset that calls itself", CallsItself, _stages("__call__.mirror", "__call__.to_tensor")),
    Shape("class methods of another class", ClassMethods, [("call.run.mirror", "mirror"), ("call.run", "run")]),
    Shape("reduce", StagesByReduce, [("call.steps.1", "flip"), ("call.steps.2", "mirror"), ("call.steps.3", "to_tensor")]),
    Shape("decorator", DecoratedMethod, _stages("flip", "to_tensor")),
    Shape("generator", GeneratorMethod, _stages("flip", "to_tensor")),
    Shape("coroutine", AsyncMethod, _stages("flip", "to_tensor")),
    Shape("replaced method", ReplacedMethod, [("call.change", "to_tensor")]),
    Shape("window of a series", Window, []),
    Shape("OpenCV", OpenCv, _stages("to_tensor"), unseen="cv2.resize"),
    Shape("slices", CutPicture, [], unseen="slices and lists of indices"),
    Shape("text made of parts", Prompts, [], unseen="text made of parts"),
    Shape("tokens by a comprehension", Tokens, [], unseen="comprehensions"),
    Shape("items of another dataset in another order", OtherOrder, _stages("__call__.mirror", "__call__.to_tensor")),
    Shape("another item instead of a damaged one", ItemBefore, [*_stages("check", "to_tensor"), ("call.check#2", "check"), *_stages("to_tensor")], unseen="call.check#2 was given a value"),
    Shape("branch that later items take", LaterBranch, [], unseen="operators"),
    Shape("picture turned before the first stage", RotatedPicture, _stages("to_tensor"), unseen="Image.rotate"),
    Shape("several sizes", Pyramid, [*_stages("to_tensor"), ("inside.item", "item")], unseen="avg_pool2d"),
    Shape("part of another picture", MixedItself, [*_stages("to_tensor"), ("call.to_tensor#2", "to_tensor"), ("inside.item", "item")], unseen="assignment to items"),
    Shape("second text", TwoTexts, [], unseen="str.upper"),
]  # fmt: skip
