"""Digests recomputed from the recipe in docs/FORMAT-values.md, without the code under test."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
import value_strategies as make
import xxhash
from examples import examples
from hypothesis import HealthCheck, given, settings
from PIL import Image, ImageFilter, ImageOps
from torchvision import tv_tensors

from audit import values


def xxh(header: str, *parts: bytes) -> str:
    return xxhash.xxh3_128(header.encode("utf-8", "surrogatepass") + b"".join(parts)).hexdigest()


def recipe(image: Image.Image) -> str:
    shape = [image.height, image.width] + ([len(image.getbands())] if len(image.getbands()) > 1 else [])
    header = f"image|{image.mode}|{','.join(map(str, shape))}|"
    entry = image.info.get("transparency")
    after = (
        b"|transparency" + entry if isinstance(entry, bytes) else b"" if entry is None else b"|transparency %d" % entry
    )
    if image.mode == "RGB":
        return xxh(header, image.convert("RGBX").tobytes() if 0 not in image.size else b"", after)
    if image.mode in ("P", "PA"):
        palette = bytes(image.getpalette(None) or ())
        return xxh(header, image.tobytes(), image.im.getpalettemode().encode(), palette, after)
    return xxh(header, image.tobytes(), after)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(make.images)
def test_images(image: Image.Image) -> None:
    assert values.digest(image) == recipe(image)


def test_rgb_digest_ignores_the_padding_that_an_operation_leaves() -> None:
    image = make.image("RGB", 40, 30, 1)
    made = {
        "resize": image.resize((20, 20)), "crop outside": image.crop((-5, -5, 9, 9)), "new": Image.new("RGB", (4, 4)),
        "rotate": image.rotate(13), "blur": image.filter(ImageFilter.GaussianBlur(2)), "invert": ImageOps.invert(image),
        "grey": image.convert("L").convert("RGB"), "pad": ImageOps.pad(image, (70, 70)),
    }  # fmt: skip
    for name, picture in made.items():
        again = Image.fromarray(np.asarray(picture))
        assert values.digest(picture) == values.digest(again) == recipe(picture), name


def test_rgb_picture_larger_than_a_memory_block() -> None:
    image = Image.new("RGB", (3000, 2000), (1, 2, 3))
    assert values.digest(image) == recipe(image)
    assert values.observe(image).mean == pytest.approx(2)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(make.tensors)
def test_tensors(tensor: torch.Tensor) -> None:
    raw = bytes(tensor.reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
    shape = ",".join(map(str, tensor.shape))
    assert values.digest(tensor) == xxh(f"tensor|{str(tensor.dtype)[6:]}|{shape}|", raw)


def test_tv_tensors_carry_their_meaning_in_digest_and_mode() -> None:
    boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(32, 48))
    raw = struct.pack("<4q", 1, 2, 3, 4)
    meaning = b'|{"canvas_size":[32,48],"clamping_mode":"soft","format":"XYXY","type":"BoundingBoxes"}'
    assert values.digest(boxes) == xxh("tensor|int64|1,4|", raw, meaning)
    with values.following_digests(1):
        assert values.digest(boxes) == values.digest(boxes.as_subclass(torch.Tensor)) == xxh("tensor|int64|1,4|", raw)
    assert values.observe(boxes).mode == "BoundingBoxes(XYXY, 32x48)"
    assert values.observe(tv_tensors.Image(torch.zeros(3, 4, 4))).mode == "tv_tensors.Image"
    assert values.observe(torch.zeros(1)).mode is None


@pytest.mark.parametrize(
    ("value", "header", "raw"),
    [
        ("añ\ud800", "text|str|3|", b"a\xc3\xb1\xed\xa0\x80"),
        (b"ab", "text|bytes|2|", b"ab"),
        (True, "number|bool||", b"\x01"),
        (-255, "number|int||", b"-ff"),
        (-0.0, "number|float||", struct.pack("<d", -0.0)),
        (1 - 2j, "number|complex||", struct.pack("<dd", 1, -2)),
        (np.float32(1.5), "number|float32||", struct.pack("<f", 1.5)),
        ([1, -2], "tokens|list[int64]|2|", struct.pack("<qq", 1, -2)),
        ((2**70,), "tokens|tuple[int]|1|", struct.pack("<Q", 18) + b"400000000000000000"),
        (["ab", ""], "tokens|list[str]|2|", struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", 0)),
        (np.arange(6, dtype="<i2").reshape(2, 3).T, "array|int16|3,2|", struct.pack("<6h", 0, 3, 1, 4, 2, 5)),
        (np.array([1], ">i4"), "array|>i4|1|", b"\0\0\0\1"),
        (None, "other|NoneType||", b""),
    ],
)
def test_recipe(value: Any, header: str, raw: bytes) -> None:
    assert values.digest(value) == xxh(header, raw)


def test_composites() -> None:
    one, two = str(values.digest("a")).encode(), str(values.digest(1.5)).encode()
    assert values.digest({"a": 1.5}) == xxh("mapping|dict|1|", one, two)
    assert values.digest(["a", 1.5]) == xxh("sequence|list|2|", one, two)
    assert values.digest({"a", 1.5}) == xxh("sequence|set|2|", *sorted((one, two)))
    assert values.digest(OrderedDict(a=1.5)) == xxh("mapping|collections.OrderedDict|1|", one, two)
    assert len({values.digest(v) for v in (["a", 1.5], ("a", 1.5), make.Point("a", 1.5), {"a", 1.5})}) == 4


def boxes_of(form: str = "XYXY", canvas: tuple[int, int] = (32, 48), clamping: str = "soft") -> Any:
    return tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format=form, canvas_size=canvas, clamping_mode=clamping)


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"boxes": v}, lambda v: (0, [v])])
def test_boxes_that_mean_something_else_differ(wrap: Any) -> None:
    numbers = boxes_of().as_subclass(torch.Tensor)
    different = [boxes_of(), boxes_of("XYWH"), boxes_of(canvas=(48, 32)), boxes_of(clamping="hard"), numbers]
    different += [tv_tensors.Mask(numbers)]
    assert len({values.digest(wrap(value)) for value in different}) == len(different)
    with values.following_digests(1):
        assert len({values.digest(wrap(value)) for value in different}) == 1


def test_the_digest_of_a_sparse_tensor() -> None:
    tensor = torch.tensor([[0, 1.5], [2, 0]]).to_sparse()
    head = b'{"coalesced":true,"dtype":"float32","layout":"sparse_coo","shape":[2,2]}'
    marks = [str(values.digest(part)).encode() for part in (tensor.indices(), tensor.values())]
    assert values.digest(tensor) == xxh("tensor|float32 sparse_coo|2,2|", head, *marks)


def test_modes_with_equal_bytes_differ() -> None:
    raw = bytes(24)
    seen = {
        values.digest(Image.frombytes(mode, (4, 3), raw[: 24 if mode[0] == "I" else 12]))
        for mode in ("L", "I;16", "I;16B")
    }
    assert len(seen) == 3
