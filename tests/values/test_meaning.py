"""Values whose content is equal but which mean something else are not "identical"."""

from __future__ import annotations

import dataclasses
import functools
from collections import UserDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from audit import values


class Heat(torch.Tensor):
    """A tensor of the user's own."""


class Corners(tv_tensors.BoundingBoxes):
    """Boxes of the user's own class."""


class Words(list[Any]):
    """A list with attributes."""


class Settings(dict[str, Any]):
    """A dict with attributes."""


@dataclasses.dataclass
class Sample:
    pixels: Any

    @functools.cached_property
    def size(self) -> int:
        return len(self.pixels)


def picture(mode: str, transparency: Any = None) -> Image.Image:
    made = Image.new(mode, (5, 4), 1)
    if transparency is not None:
        made.info["transparency"] = transparency
    return made


def with_attributes(value: Any, **attributes: Any) -> Any:
    for name, one in attributes.items():
        setattr(value, name, one)
    return value


def heat(**attributes: Any) -> Any:
    return with_attributes(torch.ones(1, 4).as_subclass(Heat), **attributes)


def corners(form: str, canvas: tuple[int, int] = (8, 8)) -> Any:
    boxes = tv_tensors.BoundingBoxes(torch.ones(1, 4), format=form, canvas_size=canvas)
    kept = {name: getattr(boxes, name) for name in ("format", "canvas_size", "clamping_mode")}
    return with_attributes(boxes.as_subclass(Corners), **kept)


DIFFERENT: dict[str, list[Any]] = {
    "palette picture": [picture("P"), picture("P", 0), picture("P", 1), picture("P", b"\0\1"), picture("P", b"\1")],
    "grey picture": [picture("L"), picture("L", 0), picture("L", 1)],
    "colour picture": [picture("RGB"), picture("RGB", (0, 0, 0)), picture("RGB", (1, 0, 0))],
    "two colours": [picture("1"), picture("1", 0)],
    "tensor class": [torch.ones(1, 4), torch.nn.Parameter(torch.ones(1, 4)), heat()],
    "boxes of one's own": [corners("XYXY"), corners("XYWH"), corners("XYXY", (9, 8)), torch.ones(1, 4)],
    "list attributes": [Words("ab"), with_attributes(Words("ab"), lang="en"), with_attributes(Words("ab"), lang="de")],
    "dict attributes": [with_attributes(Settings(a=1), k=1), with_attributes(Settings(a=1), k=2), Settings(a=1)],
    "UserDict attributes": [with_attributes(UserDict(a=1), k=1), UserDict(a=1)],
    "dataclass attributes": [with_attributes(Sample([1]), mask=1), with_attributes(Sample([1]), mask=2), Sample([1])],
    "defaultdict": [defaultdict(int, a=1), defaultdict(list, a=1), defaultdict(None, a=1)],
    "hard mask": [np.ma.masked_array([1, 2], [0, 1], hard_mask=hard) for hard in (False, True)],
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"x": v}, lambda v: (0, [v])], ids=["bare", "dict", "nested"])
def test_different_meanings_have_different_digests(name: str, wrap: Any) -> None:
    found = [values.digest(wrap(value)) for value in DIFFERENT[name]]
    assert None not in found
    assert len(set(found)) == len(found)
    assert found == [values.observe(wrap(value)).digest for value in DIFFERENT[name]]


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_stored_bytes_have_the_digest_of_the_value(name: str) -> None:
    for value in DIFFERENT[name]:
        kind, encoded = values.encode([value, 1.5])
        expected = None if name == "hard mask" else values.digest([value, 1.5])  # a pickle is not opened to look
        assert values.encoded_digest(kind, encoded) == expected
        for version in (1, 2):
            with values.following_digests(version):
                expected = None if name == "hard mask" else values.digest([value, 1.5])
                assert values.encoded_digest(kind, encoded) == expected


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_recipe_of_earlier_runs_is_unchanged(name: str) -> None:
    """Versions 1 and 2 left these meanings out, but for the class of a list."""
    with values.following_digests(2):
        assert len({values.digest(value) for value in DIFFERENT[name]}) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="meta"),
        lambda: torch.empty(2, 2, device="meta").to_sparse_csr() if False else torch.empty(0, 3, device="meta"),
        lambda: torch.nn.UninitializedParameter(),
        lambda: torch.nn.Parameter(torch.empty(2, device="meta")),
    ],
)
def test_tensors_without_content_have_no_digest(make: Any) -> None:
    for wrap in (lambda v: v, lambda v: {"x": v}, lambda v: Sample([v])):
        assert values.digest(wrap(make())) is None
        assert values.observe(wrap(make())).digest is None


def test_a_cached_property_is_not_part_of_a_value() -> None:
    sample = Sample([1, 2])
    before = values.digest(sample)
    assert sample.size == 2
    assert values.digest(sample) == before


def test_an_attribute_that_is_an_object_leaves_the_digest_as_it_is() -> None:
    """A tokenizer or a dataset that a value refers to is not its content."""
    assert values.digest(with_attributes(Words("ab"), owner=object())) == values.digest(Words("ab")) is not None


def test_a_crop_with_transparency_is_not_stored_as_a_part_of_its_picture() -> None:
    whole = Image.effect_noise((40, 30), 90).convert("RGB")
    part = whole.crop((10, 5, 30, 25))
    digest = values.digest(whole)
    assert digest is not None
    assert values.StoredPicture(whole, digest).derive(part) is not None
    part.info["transparency"] = (1, 2, 3)
    assert values.StoredPicture(whole, digest).derive(part) is None
