"""Faults that only pixels show, each with a clean twin: noise and marks on one class, another camera, overflow, lost parts, files that were cut off."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks_contracts import check_outcome, outcome_of
from checks_pictures import picture
from PIL import Image, ImageFile, ImageOps

from audit.api import run
from audit.checks.integrity.truncated import has_end
from audit.checks.shared.pixel_guess import blank_background, telling_pixel
from audit.checks.values.displaced import move_of
from audit.checks.values.overflow import find_wrapped_levels

Array = np.ndarray[Any, Any]
Change = Callable[[Array, int], Array]
_PLAIN_CHUNKS = "transform = [lambda image: image.resize((16, 16))]\n"


@pytest.fixture(scope="module")
def tiles() -> list[Array]:
    """480 tiles of the photographs that scikit-learn brings along, in an order that has no meaning."""
    from sklearn.datasets import load_sample_images

    found = [
        photograph[top : top + 32, left : left + 32]
        for photograph in load_sample_images().images
        for top in range(0, 416, 32)
        for left in range(0, 640, 32)
    ]
    return [found[n] for n in np.random.default_rng(0).permutation(len(found))[:480]]


def _record(folder: Path, tiles: list[Array], change: Change, pipeline: str = _PLAIN_CHUNKS) -> Path:
    """A store of the tiles in 4 classes, one in four of them in the split test, changed by `change(pixels, number)`."""
    rows = ["path,label,split"]
    (folder / "pictures").mkdir()
    for number, pixels in enumerate(tiles):
        made = change(pixels.astype(np.float64), number).round().clip(0, 255).astype(np.uint8)
        Image.fromarray(made).save(folder / "pictures" / f"{number:03d}.png")
        rows.append(f"pictures/{number:03d}.png,{'abcd'[number % 4]},{'test' if number // 4 % 4 == 0 else 'train'}")
    (folder / "data.csv").write_text("\n".join(rows) + "\n")
    (folder / "pipeline.py").write_text(pipeline)
    run(folder / "data.csv", pipeline=folder / "pipeline.py", store=folder / "lineage", workers=0, capture="full")
    return folder / "lineage"


def _noise(pixels: Array, number: int, deviation: float) -> Array:
    return pixels + np.random.default_rng(number).normal(0, deviation, pixels.shape)


def _messages(store: Path, check: str) -> list[str]:
    outcome = outcome_of(store, check)
    check_outcome(store, outcome)
    return [finding.message for finding in outcome.findings]


def test_photographs_without_a_fault_have_no_finding(tiles: list[Array], tmp_path: Path) -> None:
    store = _record(tmp_path, tiles, lambda pixels, _: pixels)
    for check in ("shortcuts", "split_drift", "overflow", "truncated", "blank", "displaced"):
        assert _messages(store, check) == []


def test_noise_on_one_class_is_found(tiles: list[Array], tmp_path: Path) -> None:
    store = _record(tmp_path, tiles, lambda pixels, n: _noise(pixels, n, 5) if n % 4 == 2 else pixels)
    (found,) = _messages(store, "shortcuts")
    assert "pictures of the class c have more noise" in found


_CAMERAS: dict[str, tuple[Change, str]] = {
    "white balance": (lambda pixels, _: pixels * [1.12, 1, 0.88], "The colour temperature"),
    "noise": (lambda pixels, n: _noise(pixels, n, 4), "The noise"),
}


@pytest.mark.parametrize("camera", _CAMERAS)
def test_another_camera_for_the_test_pictures_is_found(tiles: list[Array], tmp_path: Path, camera: str) -> None:
    change, says = _CAMERAS[camera]
    store = _record(tmp_path, tiles, lambda pixels, n: change(pixels, n) if n // 4 % 4 == 0 else pixels)
    assert any(says in message for message in _messages(store, "split_drift"))


_BRIGHTER = "import numpy as np\nfrom PIL import Image\n"


def test_a_stage_that_overflows_is_found(tiles: list[Array], tmp_path: Path) -> None:
    pipeline = _BRIGHTER + "transform = [lambda image: Image.fromarray(np.asarray(image) + np.uint8(60))]\n"
    store = _record(tmp_path, tiles[:40], lambda pixels, _: pixels, pipeline)
    outcome = outcome_of(store, "overflow")
    check_outcome(store, outcome)
    assert [(finding.stage, outcome.severity) for finding in outcome.findings] == [(2, "error")]
    assert "wrap around" in outcome.message


def test_loading_that_overflows_is_found(tiles: list[Array], tmp_path: Path) -> None:
    store = _record(
        tmp_path,
        tiles[:40],
        lambda pixels, _: pixels,
        _BRIGHTER + "from pathlib import Path\n\n\nclass Bright:\n    def __init__(self, root):\n"
        "        self.files = sorted(Path(root).parent.glob('pictures/*.png'))\n"
        "    def __len__(self):\n        return len(self.files)\n"
        "    def __getitem__(self, index):\n"
        "        return Image.fromarray(np.asarray(Image.open(self.files[index])) - np.uint8(50)), 0\n\n\n"
        "dataset = Bright\n",
    )
    assert [finding.stage for finding in outcome_of(store, "overflow").findings] == [0]


@pytest.mark.parametrize("where", ["files", "stage"])
def test_a_channel_that_is_empty_in_all_samples_is_found(tiles: list[Array], tmp_path: Path, where: str) -> None:
    pipeline = (
        _BRIGHTER + "transform = [lambda image: Image.fromarray(np.asarray(image) * np.array([1, 1, 0], np.uint8))]\n"
    )
    dead = np.array([1, 1, 0 if where == "files" else 1])
    store = _record(
        tmp_path, tiles[:40], lambda pixels, _: pixels * dead, _PLAIN_CHUNKS if where == "files" else pipeline
    )
    outcome = outcome_of(store, "blank")
    check_outcome(store, outcome)
    assert [(one.stage, outcome.severity) for one in outcome.findings] == [(0 if where == "files" else 2, "warning")]
    assert "Channel 2 of 3 is 0 everywhere" in outcome.message


_CLEAN: dict[str, Callable[[Image.Image], Image.Image]] = {
    "brighter": lambda image: image.point(lambda level: min(255, level + 60)),
    "darker": lambda image: image.point(lambda level: max(0, level - 60)),
    "contrast": lambda image: image.point(lambda level: int(min(255, max(0, 2 * level - 128)))),
    "inverted": ImageOps.invert,
    "solarized": lambda image: ImageOps.solarize(image, 200),
    "posterized": lambda image: ImageOps.posterize(image, 2),
    "equalized": ImageOps.equalize,
    "unchanged": lambda image: image,
    "mirrored": ImageOps.mirror,
    "threshold": lambda image: image.point(lambda level: 255 if level > 100 else 0),
    "black for white": lambda image: image.point(lambda level: 0 if level == 255 else level),
}


@pytest.mark.parametrize("change", _CLEAN)
def test_changes_of_levels_are_not_overflow(tiles: list[Array], change: str) -> None:
    for pixels in tiles[::8]:
        assert find_wrapped_levels(pixels, np.asarray(_CLEAN[change](Image.fromarray(pixels)))) is None


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_a_product_that_wraps_is_overflow(tiles: list[Array], factor: float) -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (8, 1))
    assert find_wrapped_levels(ramp, (ramp * factor).astype(np.int64).astype(np.uint8)) is not None
    # A tile of few levels shows too little; of 32 pictures one suffices.
    assert sum(find_wrapped_levels(p, (p * factor).astype(np.int64).astype(np.uint8)) is not None for p in tiles) > 100


def _bytes(image: Image.Image, form: str) -> bytes:
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_the_end_of_a_file_is_recognised(form: str) -> None:
    image = picture(0, (64, 48))
    # A thumbnail in the metadata has an end of its own.
    exif = image.getexif()
    exif[0x9286] = "\xff\xd8 thumbnail \xff\xd9"
    whole = _bytes(image, form)
    for ending in (b"", b"\0\0", b"trailer of a camera" * 20):
        assert has_end(io.BytesIO(whole + ending))
    assert not has_end(io.BytesIO(whole[: len(whole) * 2 // 3]))
    assert has_end(io.BytesIO(b"GIF89a"))


def test_files_that_were_cut_off_and_loaded_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    for number in range(12):
        whole = _bytes(picture(number, (64, 48)), "JPEG" if number % 2 else "PNG")
        cut = whole[: len(whole) // 2] if number in (5, 8) else whole
        (tmp_path / "data" / f"{number:02d}.{'jpg' if number % 2 else 'png'}").write_bytes(cut)
    (tmp_path / "data" / "99.jpg").write_bytes(_bytes(picture(99), "JPEG")[:-2])
    (tmp_path / "pipeline.py").write_text(_PLAIN_CHUNKS)
    with monkeypatch.context() as patched:
        patched.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        run(tmp_path / "data", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    outcome = outcome_of(tmp_path / "lineage", "truncated")
    check_outcome(tmp_path / "lineage", outcome)
    found = {finding.source: outcome.severity_of(finding) for finding in outcome.findings}
    assert found.pop("99.jpg") in ("info", "error")
    assert found == {"05.jpg": "error", "08.png": "error"}


def test_odd_sizes_and_aspects_are_found(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(20):
        size = {3: (700, 650), 4: (400, 30), 5: (7, 5)}.get(number, (61, 47))
        picture(number, size).save(tmp_path / "data" / f"{number:02d}.png")
    (tmp_path / "pipeline.py").write_text(_PLAIN_CHUNKS)
    run(tmp_path / "data", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    outcome = outcome_of(tmp_path / "lineage", "image_quality")
    check_outcome(tmp_path / "lineage", outcome)
    found = {finding.source: finding.message for finding in outcome.findings}
    assert "odd size" in found.pop("03.png")
    assert "odd aspect" in found.pop("04.png")
    assert not found or "05.png" in found


def _marked(pixels: Array, number: int) -> Array:
    """A mark in the middle of each picture of one class, as a watermark is."""
    if number % 4 == 1:
        pixels[14:18, 12:20] = (180, 120, 60)
    return pixels


def _hidden(pixels: Array, number: int) -> Array:
    """The label in the lowest bits of one pixel."""
    pixels[9, 21, 1] = pixels[9, 21, 1] // 16 * 16 + number % 4
    return pixels


@pytest.mark.parametrize(
    ("change", "says"),
    [(_marked, "pictures of the class b"), (_hidden, "The lowest bits of the pixel in row 9, column 21")],
)
def test_a_mark_or_a_label_hidden_in_pixels_is_found(
    tiles: list[Array], tmp_path: Path, change: Change, says: str
) -> None:
    store = _record(tmp_path, tiles[:240], change)
    (found,) = _messages(store, "shortcuts")
    assert says in found


def test_what_two_classes_show_on_a_black_ground_is_no_mark() -> None:
    """A disc and a bar: one pixel tells them apart, black or white, and nobody wrote it."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    down, across = np.mgrid[:28, :28]
    pictures = np.zeros((400, 28, 28), np.uint8)
    for drawn, label in zip(pictures, labels, strict=True):
        y, x = rng.normal(13.5, 0.7, 2)
        radius = np.hypot(down - y, across - x)
        inside = np.abs(across - x) - 3 if label else np.abs(radius - 9) - 2
        drawn[:] = 255 * np.clip(0.5 - inside, 0, 1)
    ground = blank_background(pictures).reshape(400, -1)
    halves = rng.random(400) < 0.5
    assert telling_pixel(np.where(ground < 0, -1, ground >> 1), labels, halves, 128, 0.5, (0.75, 0.85)) is None
    assert telling_pixel(np.where(ground < 0, -1, ground & 15), labels, halves, 16, 0.5, (0.75, 0.85)) is None
    pictures[labels == 1, 2:4, 2:4] = 99
    found = telling_pixel(blank_background(pictures).reshape(400, -1), labels, halves, 256, 0.5, (0.75, 0.85))
    assert found is not None
    assert found.place == 2 * 28 + 2


@pytest.mark.parametrize("lost", ["rows", "columns"])
def test_a_stage_that_empties_a_part_of_every_picture_is_found(tiles: list[Array], tmp_path: Path, lost: str) -> None:
    part = "pixels[16:]" if lost == "rows" else "pixels[:, :16]"
    pipeline = (
        _BRIGHTER
        + f"def half(image):\n    pixels = np.array(image)\n    {part} = 0\n    return Image.fromarray(pixels)\n"
        + "transform = [half]\n"
    )
    outcome = outcome_of(_record(tmp_path, tiles[:40], lambda pixels, _: pixels, pipeline), "blank")
    (found,) = outcome.findings
    assert (found.stage, outcome.severity) == (2, "warning")
    assert f"left 16 of 32 {lost} without content" in found.message


def _moved(tmp_path: Path, tiles: list[Array], code: str) -> list[tuple[str, str | None]]:
    pipeline = _BRIGHTER + f"transform = [lambda image: Image.fromarray({code})]\n"
    outcome = outcome_of(_record(tmp_path, tiles[:40], lambda pixels, _: pixels, pipeline), "displaced")
    return [(finding.message, finding.severity) for finding in outcome.findings]


def test_columns_that_a_stage_rolls_over_the_border_are_found(tiles: list[Array], tmp_path: Path) -> None:
    ((message, severity),) = _moved(tmp_path, tiles, "np.roll(np.asarray(image), 9, axis=1)")
    assert "rolls the pictures over the border, by 0 of 32 rows and 9 of 32 columns" in message
    assert severity is None


def test_pictures_that_a_stage_turns_are_a_note(tiles: list[Array], tmp_path: Path) -> None:
    ((message, severity),) = _moved(tmp_path, tiles, "np.ascontiguousarray(np.rot90(np.asarray(image)))")
    assert "turns the pictures by 90° to the left" in message
    assert severity == "info"


_MOVES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "unchanged": lambda pixels, _: pixels,
    "rolled at random": lambda pixels, rng: np.roll(pixels, int(rng.integers(1, 32)), axis=1),
    "mirrored at random": lambda pixels, rng: pixels[:, ::-1] if rng.random() < 0.5 else pixels,
    "brighter": lambda pixels, _: np.minimum(pixels, 200) + np.uint8(20),
    "blank": lambda pixels, _: np.zeros_like(pixels),
    "smaller": lambda pixels, _: pixels[4:-4, 4:-4],
}


@pytest.mark.parametrize("change", _MOVES)
def test_what_differs_between_samples_or_changes_levels_is_not_displaced(tiles: list[Array], change: str) -> None:
    rng = np.random.default_rng(1)
    assert move_of([(tile[:, :, 0], _MOVES[change](tile[:, :, 0], rng)) for tile in tiles[:24]]) is None


@pytest.mark.parametrize(("down", "across"), [(0, 1), (31, 0), (5, 0), (3, 7), (16, 16), (31, 31)])
def test_every_roll_is_named(tiles: list[Array], down: int, across: int) -> None:
    pairs = [(tile[:, :, 0], np.roll(tile[:, :, 0], (down, across), (0, 1))) for tile in tiles[:16]]
    assert move_of(pairs) == f"rolls the pictures over the border, by {down} of 32 rows and {across} of 32 columns"


def test_pixels_in_other_places_are_found_in_another_type_too(tiles: list[Array]) -> None:
    order = np.random.default_rng(0).permutation(32 * 32)
    pairs = [
        (tile[:, :, 0], (tile[:, :, 0].ravel()[order].reshape(32, 32) / np.float32(255)).astype(np.float32))
        for tile in tiles[:16]
    ]
    assert move_of(pairs) == "puts the pixels in other places"


def test_a_random_mirror_is_not_displaced(tiles: list[Array], tmp_path: Path) -> None:
    """A sample that it leaves as it is has no output of its own there, so that all that are stored are mirrored."""
    code = "image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if image.getpixel((0, 0))[0] % 2 else image"
    pipeline = _BRIGHTER + f"transform = [lambda image: {code}]\n"
    store = _record(tmp_path, tiles[:60], lambda pixels, _: pixels, pipeline)
    assert _messages(store, "displaced") == []


@pytest.mark.parametrize("repeated", [0, 30])
def test_levels_of_one_pixel_do_not_show_an_overflow(repeated: int) -> None:
    """Any stage maps a level of one pixel to one level, also if it only moves pixels: of a digit most levels have one."""
    drawing = np.zeros(28 * 28, np.uint8)
    drawing[:250] = np.arange(1, 251)
    moved = drawing.copy()
    moved[238:250] = np.arange(12)
    # Of a level with several pixels some were moved.
    drawing[300 : 300 + repeated] = np.repeat(np.arange(100, 110), 6)[:repeated]
    moved[300 : 300 + repeated] = drawing[300 : 300 + repeated]
    moved[300 : 300 + repeated : 3] = 0
    assert find_wrapped_levels(drawing.reshape(28, 28), moved.reshape(28, 28)) is None
