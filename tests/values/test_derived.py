"""Pictures in few bits, and outputs stored as a function of a picture: exact, or not used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import functional

from audit import values
from audit.errors import StoreDamaged
from audit.values import native as loops
from audit.values.pixels import raw_rgb

pytestmark = pytest.mark.skipif(loops.native is None, reason="the C extension is not built here")
_SIDES = st.integers(1, 70)


def _picture(seed: int, width: int, height: int, smooth: bool) -> Image.Image:
    shape = (3, 3, 3) if smooth else (height, width, 3)
    made = Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))
    return made.resize((width, height))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 999), _SIDES, _SIDES, st.booleans(), st.booleans())
def test_pictures_in_few_bits_come_back(seed: int, width: int, height: int, smooth: bool, wide: bool) -> None:
    assert loops.native is not None
    before = loops.native.loops(wide)
    try:
        picture = _picture(seed, width, height, smooth)
        kind, encoded = values.encode(picture)
        back = values.decode(kind, encoded)
    finally:
        loops.native.loops(before)
    assert encoded.encoding in ("bits", "raw")
    assert isinstance(back, Image.Image)
    assert back.tobytes() == picture.tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "native", None)
        back = values.decode(kind, encoded)
    assert isinstance(back, Image.Image)
    assert back.tobytes() == picture.tobytes()
    assert values.encoded_digest(kind, encoded) == values.digest(picture)


@pytest.mark.parametrize("compiled", [True, False])
def test_damaged_bits_are_refused(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, encoded = values.encode(_picture(0, 64, 64, smooth=True))
    assert encoded.encoding == "bits"
    if not compiled:
        monkeypatch.setattr(loops, "native", None)
    head = encoded.data.index(b"}") + 1
    too_wide = encoded.data[:head] + bytes([9]) + encoded.data[head + 1 :]
    for damaged in (
        encoded.data[:-1],
        encoded.data + bytes(1),
        encoded.data[: head + 5],
        encoded.data[:head],
        too_wide,
    ):
        with pytest.raises(StoreDamaged):
            values.decode(kind, values.EncodedValue("bits", damaged))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 999), _SIDES, _SIDES, st.booleans(), st.booleans(), st.booleans())
def test_tensors_of_a_picture_come_back(
    seed: int, width: int, height: int, smooth: bool, normal: bool, wide: bool
) -> None:
    assert loops.native is not None
    picture = _picture(seed, width, height, smooth)
    tensor = functional.to_tensor(picture)
    if normal:
        tensor = functional.normalize(tensor, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    digest, before = values.digest(picture), loops.native.loops(wide)
    try:
        encoded = values.StoredPicture(picture, str(digest)).derive(tensor)
    finally:
        loops.native.loops(before)
    assert encoded is not None
    assert values.source_digest(encoded) == digest
    whole = values.expand(encoded, picture)
    back = values.decode("tensor", whole)
    assert isinstance(back, torch.Tensor)
    assert torch.equal(back, tensor)
    assert values.encoded_digest("tensor", whole) == values.digest(tensor)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 999), st.integers(0, 3 * 40 * 40 - 1))
def test_a_tensor_that_differs_in_one_element_is_not_derived(seed: int, place: int) -> None:
    picture = _picture(seed, 40, 40, smooth=False)
    tensor = functional.to_tensor(picture)
    flat, levels = tensor.view(-1), np.asarray(picture).transpose(2, 0, 1).reshape(3, -1)
    band, at = divmod(place, 1600)
    if (levels[band] == levels[band][at]).sum() < 2:
        return  # a level that occurs once may stand for anything
    flat[place] += 0.5
    assert values.StoredPicture(picture, str(values.digest(picture))).derive(tensor) is None


def test_crops_are_derived_only_from_the_middle() -> None:
    picture = _picture(1, 60, 50, smooth=False)
    digest = str(values.digest(picture))
    middle, corner = functional.center_crop(picture, [31, 24]), picture.crop((0, 0, 24, 31))
    encoded = values.StoredPicture(picture, digest).derive(middle)
    assert encoded is not None
    back = values.decode("image", values.expand(encoded, picture))
    assert isinstance(back, Image.Image)
    assert back.tobytes() == middle.tobytes()
    assert values.StoredPicture(picture, digest).derive(corner) is None
    assert values.StoredPicture(picture, digest).derive(torch.rand(3, 50, 60)) is None
    assert values.StoredPicture(picture, digest).derive("text") is None


def test_a_picture_that_was_changed_in_place_derives_nothing() -> None:
    picture = _picture(2, 60, 50, smooth=False)
    digest = str(values.digest(picture))
    picture.putpixel((59, 49), (1, 2, 3))
    assert values.StoredPicture(picture, digest).derive(functional.to_tensor(picture)) is None
    assert values.StoredPicture(picture, digest).derive(functional.center_crop(picture, [31, 24])) is None


def test_a_picture_that_is_changed_in_place_between_two_values_derives_the_first_alone() -> None:
    picture = _picture(2, 60, 50, smooth=False)
    stored = values.StoredPicture(picture, str(values.digest(picture)))
    assert stored.is_shown_by(functional.to_tensor(picture))
    picture.putpixel((59, 49), (1, 2, 3))
    assert not stored.is_shown_by(functional.to_tensor(picture))
    assert stored.derive(functional.to_tensor(picture)) is None


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 999), _SIDES, _SIDES, st.booleans(), st.integers(0, 31))
def test_a_value_is_derived_only_from_the_picture_of_this_digest(
    seed: int, width: int, height: int, wide: bool, place: int
) -> None:
    assert loops.native is not None
    picture, before = _picture(seed, width, height, smooth=False), loops.native.loops(wide)
    digest = str(values.digest(picture))
    other = digest[:place] + ("0" if digest[place] != "0" else "1") + digest[place + 1 :]
    tensor = functional.to_tensor(picture)
    try:
        assert values.StoredPicture(picture, digest).derive(tensor) is not None
        assert values.StoredPicture(picture, other).derive(tensor) is None
    finally:
        loops.native.loops(before)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 999), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.booleans())
def test_a_part_of_a_picture_is_held_only_where_it_is(seed: int, x: int, y: int, wide: bool, odd: bool) -> None:
    assert loops.native is not None
    whole = _picture(seed, 45, 50, smooth=False)
    part, digest = whole.crop((x, y, 45, 50)), str(values.digest(whole))
    if odd:
        changed = np.array(part)
        changed[-1, -1, 2] ^= 1
        part = Image.fromarray(changed)
    before = loops.native.loops(wide)
    try:
        holds = [
            loops.native.holds(raw_rgb(whole), 50, 45, digest, raw_rgb(part), part.height, part.width, left, y)
            for left in (x, x + 1, -1)
        ]
    finally:
        loops.native.loops(before)
    assert holds == [not odd, False, False]
