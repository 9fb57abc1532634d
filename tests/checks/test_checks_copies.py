"""Changed copies of pictures: each kind of change is found, and pictures that are merely alike are not."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checks_contracts import check_outcome, outcome_of
from checks_pictures import picture
from PIL import Image, ImageEnhance, ImageOps

from audit.checks.shared.lookalikes import find_lookalikes, thumbnail


def _jpeg(image: Image.Image, quality: int = 60) -> Image.Image:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return Image.open(io.BytesIO(out.getvalue()))


def _crop(image: Image.Image) -> Image.Image:
    """Without 3 % of the width and height, from one corner, at its old size."""
    width, height = image.size
    return image.resize(image.size, Image.Resampling.BICUBIC, box=(0.03 * width, 0.03 * height, width, height))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "jpeg": _jpeg,
    "resized": lambda image: image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.BICUBIC),
    "brighter": lambda image: image.point(lambda level: min(255, level + 6)),
    "cropped": _crop,
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.4),
    "mirrored": ImageOps.mirror,
}


@pytest.fixture(scope="module")
def photographs() -> list[Image.Image]:
    """Tiles of the photographs that scikit-learn brings along, those with some detail."""
    from sklearn.datasets import load_sample_images

    tiles = [
        Image.fromarray(photograph[top : top + 64, left : left + 64])
        for photograph in load_sample_images().images
        for top in range(0, photograph.shape[0] - 63, 64)
        for left in range(0, photograph.shape[1] - 63, 64)
    ]
    return [tile for tile in tiles if thumbnail(tile).std() >= 6]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_of_photographs_are_found(photographs: list[Image.Image], change: str) -> None:
    before = [thumbnail(tile) for tile in photographs]
    after = [thumbnail(CHANGES[change](tile)) for tile in photographs]
    found = find_lookalikes(np.stack([*before, *after]))
    count = len(photographs)
    assert count > 80
    right = [pair for pair in found if pair.second - pair.first == count]
    assert len(right) >= 0.95 * count
    assert len(found) == len(right)
    if change == "mirrored":
        assert all(pair.mirrored for pair in right if pair.similarity > 0.999)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_turned_copies_of_photographs_are_found(photographs: list[Image.Image], quarters: int) -> None:
    before = np.stack([thumbnail(tile) for tile in photographs])
    turned = [Image.fromarray(np.rot90(np.asarray(tile), quarters).copy()) for tile in photographs]
    found = find_lookalikes(np.concatenate([before, np.stack([thumbnail(tile) for tile in turned])]))
    count = len(photographs)
    right = [pair for pair in found if pair.second - pair.first == count and pair.turned == 90 * quarters]
    assert len(right) >= 0.95 * count
    assert len(found) == len(right)


def test_copies_turned_by_a_few_degrees_are_found(photographs: list[Image.Image]) -> None:
    """Their corners are black, so that the whole pictures are not alike."""
    degrees = [(3, -5, 8)[place % 3] for place in range(len(photographs))]
    turned = [tile.rotate(by, Image.Resampling.BICUBIC) for tile, by in zip(photographs, degrees, strict=True)]
    found = find_lookalikes(np.stack([thumbnail(tile) for tile in [*photographs, *turned]]))
    count = len(photographs)
    right = [pair for pair in found if pair.second - pair.first == count]
    assert len(right) >= 0.85 * count
    assert len(found) == len(right)
    tilted = {pair.first: abs(pair.tilted) for pair in right if pair.tilted}
    assert len(tilted) >= 0.75 * count
    assert np.median([abs(by - abs(degrees[place])) for place, by in tilted.items()]) < 0.5


def test_copies_that_are_covered_in_part_are_found(photographs: list[Image.Image]) -> None:
    covered = [tile.copy() for tile in photographs]
    for place, tile in enumerate(covered):
        left, top = 11 * place % 44, 7 * place % 44
        tile.paste((0, 0, 0), (left, top, left + 20, top + 20))
    found = find_lookalikes(np.stack([thumbnail(tile) for tile in [*photographs, *covered]]))
    count = len(photographs)
    right = [pair for pair in found if pair.second - pair.first == count]
    assert len(right) >= 0.9 * count
    assert len(found) == len(right)
    assert sum(pair.equal_parts is not None for pair in right) > 0.5 * count


def test_what_many_pictures_have_in_common_makes_no_copies(photographs: list[Image.Image]) -> None:
    """A form, or the background of a camera that does not move, is not a covered copy."""
    tiles = np.stack([np.asarray(tile) for tile in photographs[:40]])
    tiles[:, :40] = tiles[0, :40]
    assert find_lookalikes(np.stack([thumbnail(Image.fromarray(tile)) for tile in tiles])) == []


def test_different_pictures_are_no_copies(photographs: list[Image.Image]) -> None:
    assert find_lookalikes(np.stack([thumbnail(tile) for tile in photographs])) == []
    assert find_lookalikes(np.stack([thumbnail(picture(seed)) for seed in range(300)])) == []


def test_different_digits_of_one_kind_are_no_copies() -> None:
    """1,797 digits of 8×8 pixels: hundreds of them are nearly alike, so much more must agree; brighter copies do."""
    from sklearn.datasets import load_digits

    digits = [Image.fromarray((image * 15.9).astype(np.uint8)) for image in load_digits().images]
    thumbs = np.stack([thumbnail(digit) for digit in digits])
    assert find_lookalikes(thumbs, sides=np.full(len(digits), 8)) == []
    for seed in range(3):
        chosen = np.random.default_rng(seed).permutation(len(digits))[:600]
        assert find_lookalikes(thumbs[chosen], sides=np.full(600, 8)) == []
    copies = np.stack([thumbnail(CHANGES["brighter"](digit)) for digit in digits[::40]])
    found = find_lookalikes(np.concatenate([thumbs, copies]), sides=np.full(len(digits) + len(copies), 8))
    assert [(pair.first, pair.second - len(digits)) for pair in sorted(found, key=lambda pair: pair.first)] == [
        (40 * place, place) for place in range(len(copies))
    ]


def test_copies_of_digits_are_found_among_digits_that_are_alike() -> None:
    """A higher contrast cuts levels off, which no linear change explains; and different ones must not take all places."""
    from sklearn.datasets import load_digits

    digits = [Image.fromarray((image * 15.9).astype(np.uint8)).resize((28, 28)) for image in load_digits().images]
    copies = [CHANGES["contrast"](digit) for digit in digits[::9]]
    found = find_lookalikes(np.stack([thumbnail(digit) for digit in [*digits, *copies]]))
    planted = {(9 * place, len(digits) + place) for place in range(len(copies))}
    right = {(pair.first, pair.second) for pair in found} & planted
    assert len(right) >= 0.95 * len(planted)
    assert len(found) - len(right) <= 2


def test_turned_and_compressed_copies_of_digits_are_found() -> None:
    """Many digits have the same hash, and compression changes the background that most of their pixels are."""
    from sklearn.datasets import load_digits

    digits = [
        ImageOps.expand(Image.fromarray((image * 15.9).astype(np.uint8)).resize((20, 20)), 4)
        for image in load_digits().images[:600]
    ]
    chosen = digits[::6]
    turns = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
    copies = [_jpeg(digit.transpose(turns[place % 3]), 95) for place, digit in enumerate(chosen)]
    found = find_lookalikes(np.stack([thumbnail(digit) for digit in [*digits, *copies]]))
    planted = {(6 * place, len(digits) + place, 90 + 90 * (place % 3)) for place in range(len(chosen))}
    right = {(pair.first, pair.second, pair.turned) for pair in found} & planted
    assert len(right) >= 0.9 * len(planted)
    assert len(found) - len(right) <= 2


def _split(folder: Path, name: str, seeds: range) -> None:
    (folder / name).mkdir(parents=True)
    for seed in seeds:
        picture(seed, (96, 80)).save(folder / name / f"{seed:03d}.png")


@pytest.fixture(scope="module")
def leaked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits in one run, and a run of each: pictures of `test` are a brighter, a mirrored, a turned and a covered one of `train`."""
    from audit.api import run

    folder = tmp_path_factory.mktemp("leaked")
    _split(folder, "train", range(20))
    _split(folder, "test", range(100, 112))
    CHANGES["brighter"](picture(3, (96, 80))).save(folder / "test/brighter.png")
    CHANGES["mirrored"](picture(4, (96, 80))).save(folder / "test/mirrored.png")
    picture(6, (96, 80)).rotate(5, Image.Resampling.BICUBIC).save(folder / "test/turned.png")
    covered = picture(7, (96, 80))
    covered.paste((0, 0, 0), (30, 20, 60, 50))
    covered.save(folder / "test/covered.png")
    CHANGES["cropped"](picture(5, (96, 80))).save(folder / "train/cropped.png")
    lines = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
    (folder / "all.csv").write_text("path,split\n" + "\n".join(lines) + "\n")
    (folder / "pipeline.py").write_text("transform = [lambda image: image.resize((32, 32))]\n")
    options = {"pipeline": folder / "pipeline.py", "store": folder / "lineage", "workers": 0}
    run(folder / "train", name="train", **options)
    run(folder / "all.csv", name="all", **options)
    run(folder / "test", name="test", **options)
    return folder / "lineage"


def test_copies_in_two_splits_are_leakage_and_named_with_their_splits(leaked: Path) -> None:
    from audit.api import open as open_store

    with open_store(leaked) as store:
        report = store.check("all", only=["leakage", "near_duplicates"])
    outcome = report.outcome("leakage")
    copied = {"test/brighter.png", "test/mirrored.png", "test/turned.png", "test/covered.png"}
    assert {finding.source for finding in outcome.findings} == copied
    assert all("split test" in finding.message and "split train" in finding.message for finding in outcome.findings)
    assert any("mirrored copy of train/004.png" in finding.message for finding in outcome.findings)
    said = "test/turned.png (index {}, split test) is a copy, turned by about 5 degrees, of train/006.png"
    assert any(finding.message.startswith(said.format(finding.index)) for finding in outcome.findings)
    (covered,) = [finding.message for finding in outcome.findings if finding.source == "test/covered.png"]
    assert re.search(
        r"has the same pixels in \d+ of \d+ parts, and something else in the others, as train/007.png", covered
    )
    assert outcome.severity == "warning"
    check_outcome(leaked, outcome)
    assert [finding.source for finding in report.outcome("near_duplicates").findings] == ["train/cropped.png"]


def test_copies_of_another_run_are_leakage(leaked: Path) -> None:
    outcome = outcome_of(leaked, "leakage", {"other": "train"})
    assert {finding.source for finding in outcome.findings} == {
        "brighter.png",
        "mirrored.png",
        "turned.png",
        "covered.png",
    }
    check_outcome(leaked, outcome)
