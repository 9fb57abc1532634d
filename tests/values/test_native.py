"""The compiled loops and numpy say the same: for every length, alignment and bit pattern, wide loops or plain ones."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import value_strategies as make
import xxhash
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from audit import values
from audit.values import compression, palette, thumbnail
from audit.values import native as loops

if loops.native is None:
    pytest.skip("audit was installed without a compiler", allow_module_level=True)
native: Any = loops.native

SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-45, 1.17e-38, 3.4e38, -3.4e38, 1.0, 255.0]
quick = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=[2, 1, 0], ids=["widest", "wide", "plain"], autouse=True)
def _each_kind_of_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    before = native.loops(request.param)
    yield
    native.loops(before)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a function as if the extension had not been built."""

    def call(action: Any, *args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(loops, "native", None)
            return action(*args)

    return call


def shifted(data: bytes, by: int) -> Any:
    """The same bytes at an address that is aligned to nothing."""
    return memoryview(bytes(by) + data)[by:]


def expected(numbers: Any) -> tuple[int, ...]:
    wide = numbers.astype(np.int64)
    if not wide.size:
        return (255, 0, 0, 0, 0)
    return int(wide.min()), int(wide.max()), int(wide.sum()), int((wide * wide).sum()), int((wide == 0).sum())


def levels_of(seed: int, size: int, low: int, high: int) -> Any:
    return np.random.default_rng(seed).integers(min(low, high), max(low, high) + 1, size, dtype=np.uint8)


byte = st.integers(0, 255)
sizes = st.one_of(st.integers(0, 200), st.integers(8_000, 40_000))
offsets = st.integers(0, 5)


@quick
@given(make.seeds, sizes, byte, byte, offsets)
def test_bytes(seed: int, size: int, low: int, high: int, by: int) -> None:
    numbers = levels_of(seed, size, low, high)
    assert native.u8(shifted(numbers.tobytes(), by)) == expected(numbers)


@quick
@given(make.seeds, sizes, byte, byte, offsets)
def test_padded_pixels(seed: int, size: int, low: int, high: int, by: int) -> None:
    pixels = levels_of(seed, 4 * size, low, high).reshape(size, 4)
    out = np.zeros(4 * size, np.uint8)
    assert native.rgbx(shifted(pixels.tobytes(), by), out) == expected(pixels[:, :3])
    assert np.array_equal(out.reshape(size, 4)[:, :3], pixels[:, :3])
    assert (out[3::4] == 255).all()


def floats_of(seed: int, size: int, mean: float, std: float, special: list[float]) -> Any:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(mean, std, size).astype(np.float32)
    if special and size:
        numbers[rng.integers(0, size, size // 7 + 1)] = rng.choice(np.array(special, np.float32), size // 7 + 1)
    return numbers


several = st.lists(st.sampled_from(SPECIAL), max_size=4)


@quick
@given(make.seeds, sizes, st.floats(-1e4, 1e4), st.floats(1e-3, 1e3), several, offsets)
def test_floats(seed: int, size: int, mean: float, std: float, special: list[float], by: int) -> None:
    numbers = floats_of(seed, size, mean, std, special)
    data = shifted(numbers.tobytes(), by)
    low, high, middle, spread, zeros, nonfinite = native.f32(data)
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    assert (zeros, nonfinite) == (int((numbers == 0).sum()), size - finite.size)
    if not finite.size:
        assert low is high is middle is spread is None
        return
    assert (low, high) == (finite.min(), finite.max())
    assert middle == pytest.approx(finite.mean(), rel=1e-9, abs=1e-9 * finite.std() + 1e-300)
    assert spread == pytest.approx(finite.std(), rel=1e-6, abs=1e-12 * np.abs(finite).max())


@quick
@given(make.seeds, sizes, several)
def test_wide_and_plain_loops_give_the_same_bits(seed: int, size: int, special: list[float]) -> None:
    numbers = floats_of(seed, size, 3.0, 2.0, special)
    found = []
    for wide in (2, 1, 0):
        native.loops(wide)
        found.append(repr(native.f32(numbers)))
    assert found[0] == found[1] == found[2]


@quick
@given(make.seeds, st.integers(1, 1200), st.integers(0, 14), several)
def test_facts_in_one_loop_are_those_of_two(seed: int, size: int, axes: int, special: list[float]) -> None:
    # Axes of 1 make the header longer, and with it where the digest's stripes begin.
    tensor = torch.from_numpy(floats_of(seed, size, 3.0, 2.0, special)).reshape(size, *[1] * axes)
    facts = values.observe(tensor)
    header = f"tensor|float32|{','.join(map(str, tensor.shape))}|".encode()
    assert facts.digest == xxhash.xxh3_128_hexdigest(header + tensor.numpy().tobytes())
    before = native.loops(0)
    assert repr(facts[5:11]) == repr(native.f32(tensor.numpy()))
    native.loops(before)


@quick
@given(st.binary(max_size=4 * 70))
def test_floats_of_any_bits(data: bytes) -> None:
    data = data[: len(data) // 4 * 4]
    numbers = np.frombuffer(data, np.float32)
    low, high, _, _, zeros, nonfinite = native.f32(data)
    finite = numbers[np.isfinite(numbers)]
    assert (zeros, nonfinite) == (int((numbers == 0).sum()), numbers.size - finite.size)
    if finite.size:
        assert (low, high) == (float(finite.min()), float(finite.max()))


def test_a_far_mean_and_an_outlier_keep_their_spread() -> None:
    numbers = np.random.default_rng(0).normal(1e6, 0.5, 50_001).astype(np.float32)
    assert native.f32(numbers)[3] == pytest.approx(numbers.astype(np.float64).std(), rel=1e-9)
    assert native.f32(np.full(1001, 0.1, np.float32))[3] == 0.0


@quick
@given(make.seeds, st.integers(1, 60), st.integers(1, 60), st.sampled_from(["RGB", "L"]))
def test_pictures_with_and_without(seed: int, width: int, height: int, mode: str) -> None:
    image = make.image(mode, width, height, seed)
    same_facts(image)
    kind, encoded = values.encode(image)
    assert np.array_equal(np.asarray(values.decode(kind, encoded)), np.asarray(image))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(make.tensors)
def test_tensors_with_and_without(tensor: torch.Tensor) -> None:
    same_facts(tensor)


def same_facts(value: Any) -> None:
    ours = values.observe(value)
    kept, loops.native = loops.native, None
    try:
        theirs = values.observe(value)
    finally:
        loops.native = kept
    for name in ("kind", "dtype", "shape", "mode", "digest", "min", "max", "zeros", "nonfinite", "bytes"):
        assert getattr(ours, name) == getattr(theirs, name), name
    if ours.kind == "image":
        assert (ours.mean, ours.std) == (theirs.mean, theirs.std)
    elif ours.mean is not None and theirs.std is not None and math.isfinite(theirs.std):
        assert ours.mean == pytest.approx(theirs.mean, rel=1e-5, abs=1e-5 * theirs.std)
        assert ours.std == pytest.approx(theirs.std, rel=1e-5)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("state", ["opened", "loaded", "drafted", "changed"])
def test_pictures_of_files(mode: str, state: str) -> None:
    """What a file's picture holds is described as a copy of it is, whether Pillow has decoded it or not."""

    def opened(kind: str) -> Image.Image:
        content = io.BytesIO()
        Image.new(mode, (40, 30), 7).resize((37, 23)).save(content, kind)
        picture = Image.open(content)
        if state == "drafted":
            picture.draft("RGB", (9, 6))
        elif state != "opened":
            picture.load()
        if state == "changed":
            picture.putpixel((3, 4), picture.getpixel((0, 0)))  # type: ignore[arg-type]
            picture.paste(0, (5, 5, 9, 9))
        return picture

    for kind in ("JPEG", "TIFF"):
        picture = opened(kind)
        facts = values.observe(picture)
        preview, copied = values.preview(picture), values.preview(picture.copy())
        assert facts == values.observe(opened(kind).copy()) == values.observe(picture.copy())
        assert values.observe(picture) == facts
        assert preview == copied


def test_a_picture_of_several_blocks_of_memory() -> None:
    image = make.image("RGB", 30, 20, 1).resize((2300, 2000), Image.Resampling.NEAREST)
    assert values.digest(image) == values.digest(make.image("RGB", 30, 20, 1).resize((2300, 2000), 0))
    same_facts(image)
    assert values.decode(*values.encode(image)).tobytes() == image.tobytes()  # type: ignore[attr-defined]


@quick
@given(make.seeds, st.integers(1, 40), st.integers(1, 40), offsets)
def test_rows(seed: int, width: int, height: int, by: int) -> None:
    pixels = levels_of(seed, 4 * width * height, 0, 255).reshape(-1, 4)
    plain = np.ascontiguousarray(pixels[:, :3]).reshape(-1)
    filtered = compression.subtract_rows(plain, 3 * width) if height > 1 else plain
    assert native.rgb_rows(shifted(pixels.tobytes(), by), height, width) == filtered.tobytes()


@quick
@given(make.seeds, st.integers(2, 70), st.integers(2, 70), st.integers(1, 20), st.sampled_from([1, 3, 4]))
def test_boxes_of_bytes_are_pillows(seed: int, width: int, height: int, factor: int, bands: int) -> None:
    pixels = levels_of(seed, width * height * bands, 0, 255).reshape(height, width, bands)
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    reduced = [np.asarray(Image.fromarray(plane).reduce(factor)) for plane in planes]
    wanted = np.stack(reduced, axis=2).astype(int)
    for data, layout in ((pixels, (1, height, width, bands, bands)), (planes, (bands, height, width, 1, 1))):
        small = np.frombuffer(native.shrink(data, False, *layout, factor), np.uint8).reshape(wanted.shape)
        assert np.abs(small - wanted).max() <= 1
    if bands == 4:
        shown = np.frombuffer(native.shrink(pixels, False, 1, height, width, 4, 3, factor), np.uint8)
        assert (shown == small[..., :3].reshape(-1)).all()


@quick
@given(make.seeds, st.integers(97, 240), st.integers(2, 240), st.sampled_from(["CHW", "HWC"]), st.booleans())
def test_small_pictures_with_and_without(seed: int, width: int, height: int, order: str, floats: bool) -> None:
    shape = (3, height, width) if order == "CHW" else (height, width, 3)
    array: Any = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    if floats:
        array = array.astype(np.float32) / 100 - 1
    bands = thumbnail._as_bands(array)
    ours = thumbnail._average_boxes(array, bands)
    kept, loops.native = loops.native, None
    try:
        theirs = thumbnail._average_boxes(array, bands)
    finally:
        loops.native = kept
    assert ours is not None
    assert theirs is not None
    assert ours.size == theirs.size
    assert np.abs(np.asarray(ours).astype(int) - np.asarray(theirs)).max() <= 1


@quick
@given(make.seeds, st.integers(1, 128), st.integers(1, 128), st.sampled_from(["L", "RGB"]), st.integers(1, 8))
def test_a_jpeg_is_as_good_as_pillows(seed: int, width: int, height: int, mode: str, grain: int) -> None:
    coarse = np.random.default_rng(seed).integers(0, 256, (-(-height // grain), -(-width // grain), 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    head = thumbnail._jpeg_head(mode)
    made = native.jpeg(picture.tobytes(), height, width, head)
    assert made[:2] == b"\xff\xd8"
    assert made[-2:] == b"\xff\xd9"
    before = native.loops(0)
    assert native.jpeg(picture.tobytes(), height, width, head) == made
    native.loops(before)
    ours, theirs = (Image.open(io.BytesIO(data)) for data in (made, thumbnail._save(picture)))
    assert (ours.size, ours.mode) == (theirs.size, theirs.mode)
    # A coefficient between two steps may be rounded either way, which shows in a picture of one block.
    assert _error(ours, picture) <= 1.5 * _error(theirs, picture) + 2


def _error(shown: Image.Image, exact: Image.Image) -> float:
    return float(np.sqrt(np.mean((np.asarray(shown).astype(float) - np.asarray(exact)) ** 2)))


@pytest.mark.parametrize("corner", [0, 255])
def test_a_jpeg_of_the_strongest_contrasts(corner: int) -> None:
    board = np.full((40, 40, 3), 255 - corner, np.uint8)
    board[::2, ::2] = board[1::2, 1::2] = corner
    for picture in (board, board[..., 0], np.full((9, 9, 3), corner, np.uint8)):
        image = Image.fromarray(np.ascontiguousarray(picture))
        made = native.jpeg(image.tobytes(), image.height, image.width, thumbnail._jpeg_head(image.mode))
        shown, saved = (Image.open(io.BytesIO(data)) for data in (made, thumbnail._save(image)))
        assert np.abs(np.asarray(shown).astype(int) - np.asarray(saved)).max() <= 3


def test_a_jpeg_after_another_head() -> None:
    pixels, head = bytes(8 * 8 * 3), thumbnail._jpeg_head("RGB")
    assert native.jpeg(pixels, 8, 8, head) is not None
    other: list[dict[str, Any]] = [{"progressive": True}, {"subsampling": 0}, {"subsampling": 1}]
    for settings_of_head in other:
        buffer = io.BytesIO()
        Image.new("RGB", (1, 1)).save(buffer, "JPEG", **settings_of_head)
        assert native.jpeg(pixels, 8, 8, buffer.getvalue()[: len(head)]) is None
    for wrong in (b"", head[:-1], head + b"\0", head[:100], bytes(len(head)), head[:4] + b"\xff\xff" + head[6:]):
        assert native.jpeg(pixels, 8, 8, wrong) is None
    assert native.jpeg(pixels, 8, 9, head) is None
    assert native.jpeg(bytes(3 * 129), 1, 129, head) is None
    assert native.jpeg(b"", 0, 8, head) is None


@pytest.mark.parametrize("special", SPECIAL)
def test_previews_of_special_floats(special: float, without: Any) -> None:
    array = np.random.default_rng(0).normal(size=(3, 200, 210)).astype(np.float32)
    array[0, 5, 5] = special
    ours, theirs = values.preview(array), without(values.preview, array)
    assert ours is not None
    assert theirs is not None
    assert ours.media_type == theirs.media_type == "image/jpeg"


@quick
@given(make.seeds, st.integers(5, 36), st.integers(5, 36), st.sampled_from([1, 3]), st.booleans())
def test_previews_of_tiny_pictures_are_png_of_every_pixel(
    seed: int, height: int, width: int, bands: int, floats: bool
) -> None:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, bands), dtype=np.uint8)
    levels.reshape(-1)[:2] = 0, 255  # the extremes, between which floats are scaled
    array = np.ascontiguousarray((levels / np.float32(255)).transpose(2, 0, 1)) if floats else levels
    shown = values.preview(array)
    assert shown is not None
    assert (shown.media_type == "image/png") == (levels.size <= thumbnail.TINY and loops.native is not None)
    if shown.media_type == "image/png" and bands not in (height, width):
        found = np.asarray(Image.open(io.BytesIO(shown.data)))
        assert np.abs(found.reshape(levels.shape).astype(int) - levels).max() <= int(floats)


@quick
@given(make.seeds, st.integers(1, 9_000), st.integers(1, 256), st.floats(-5, 5), st.floats(1e-3, 3), several)
def test_palettes_are_exact_or_none(
    seed: int, size: int, count: int, mean: float, std: float, special: list[float]
) -> None:
    table = ((np.arange(256, dtype=np.float32) / np.float32(255)) - np.float32(mean)) / np.float32(std)
    levels = np.random.default_rng(seed).integers(0, count, size)
    channel = table[levels]
    channel[: len(special)] = special[:size]
    found = palette.table_levels(channel)
    unit = palette.unit_levels(channel)
    if not special:
        assert found is not None
    if found is not None:
        entries, indices = found
        assert entries[indices].tobytes() == channel.tobytes()
        assert len(entries) <= 256
    if unit is not None:
        assert (unit.astype(np.float32) / np.float32(255)).tobytes() == channel.tobytes()


def test_units_are_found_and_their_likes_refused() -> None:
    exact = np.arange(256, dtype=np.float32).repeat(9) / np.float32(255)
    levels = palette.unit_levels(exact)
    assert levels is not None
    assert np.array_equal(levels, np.arange(256).repeat(9))
    for place, wrong in ((0, -0.0), (2303, np.nan), (2047, np.nextafter(exact[2047], np.float32(2))), (7, 256 / 255)):
        other = exact.copy()
        other[place] = wrong
        assert palette.unit_levels(other) is None


def test_continuous_floats_are_no_palette() -> None:
    assert palette.table_levels(np.random.default_rng(0).normal(size=50_000).astype(np.float32)) is None


def test_what_does_not_fit_is_refused() -> None:
    data = bytes(48)
    for call in (
        lambda: native.rgbx(data, np.zeros(47, np.uint8)),
        lambda: native.shrink(data, False, 1, 4, 4, 4, 3, 2),
        lambda: native.shrink(data, False, 1, 4, 4, 3, 4, 2),
        lambda: native.shrink(data, False, 1, 4, 4, 3, 3, 0),
        lambda: native.shrink(data, False, -1, -4, 4, 3, 3, 2),
        lambda: native.shrink(data, False, 1, 4, 4, 3, 3, 257),
        lambda: native.rgb_rows(data, 5, 3),
        lambda: native.u8(torch),
    ):
        with pytest.raises((ValueError, AttributeError, TypeError)):
            call()
    with pytest.raises((BufferError, TypeError)):
        native.rgbx(data, bytes(48))


def test_a_tensor_that_was_looked_at_can_still_be_resized() -> None:
    tensor = torch.arange(12.0)
    values.observe(tensor)
    values.preview(tensor)
    values.encode(tensor)
    assert tensor.resize_(100).numel() == 100


def test_tensors_without_memory_do_no_harm() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3, 4)
    assert values.observe(fake).digest is None
    assert values.encode(fake)[1].encoding == "none"
    holder = SimpleNamespace(first=fake, second=[fake])
    assert values.observe(holder).digest is None
    assert values.observe(torch.ones(3, device="meta")).digest is None
    for strange in (torch._efficientzerotensor(3, 4), torch.empty(0, 3)):
        assert values.observe(strange).digest
    seen = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(values.observe(x))
        return x

    torch.func.vmap(spy)(torch.ones(3, 4))
    assert len(seen) == 1
