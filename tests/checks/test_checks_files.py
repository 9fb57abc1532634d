"""Faults in files and pixels: recorded from real pictures, found in payloads, previews and the files themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from checks_contracts import check_outcome, outcome_of
from checks_pictures import folders, picture
from PIL import Image, ImageFilter

from audit.checks.runner import run_checks

PIPELINE = """
mode = "keep"
from torchvision.transforms import v2
import torch
def rgb(image):
    return image.convert("RGB")
transform = v2.Compose([rgb, v2.Resize((32, 32)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
"""


def _spoil(root: Path) -> None:
    """One fault in one file, each of its own kind."""
    base = picture(77, (96, 80))
    base.save(root / "ant/original.png")
    base.resize((90, 75), Image.Resampling.LANCZOS).save(root / "bee/resized.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(78, (96, 80)).save(root / "ant/turned.jpg", exif=exif, quality=95)
    blurred = picture(79, (96, 80)).filter(ImageFilter.GaussianBlur(6))
    blurred.save(root / "bee/blurred.png")
    see_through = picture(80, (96, 80)).convert("RGBA")
    alpha = np.asarray(see_through).copy()
    alpha[:40, :, 3] = 0
    Image.fromarray(alpha).save(root / "fly/transparent.png")
    grey = picture(81, (96, 80), "L")
    Image.merge("RGB", [grey] * 3).save(root / "fly/grey.png")
    ramp = np.linspace(2_000, 60_000, 96 * 80).reshape(80, 96).astype(np.uint16)
    Image.fromarray(ramp).save(root / "fly/sixteen.png")


@pytest.fixture(scope="session", params=["full", "preview", "digest"])
def spoilt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same faulty folder, recorded at each level: pictures come from payloads, previews or files."""
    from audit.api import run

    folder = tmp_path_factory.mktemp("spoilt")
    root = folders(folder / "data", 14, size=(96, 80))
    _spoil(root)
    (folder / "pipeline.py").write_text(PIPELINE)
    run(root, pipeline=folder / "pipeline.py", store=folder / "lineage", capture=request.param, workers=0)
    return folder / "lineage"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "source", "stage", "says"),
    [
        ("near_duplicates", "bee/resized.png", 0, "ant/original.png"),
        ("exif_orientation", "ant/turned.jpg", 0, "orientation 6"),
        ("image_quality", "bee/blurred.png", 0, "blurry"),
        ("image_quality", "fly/grey.png", 0, "grey"),
        ("alpha_dropped", "fly/transparent.png", 1, "dropped its alpha"),
        ("clipped", "fly/sixteen.png", 1, "8 bits"),
    ],
)
def test_a_fault_of_a_file_is_found(spoilt: Path, check: str, source: str, stage: int, says: str) -> None:
    outcome = outcome_of(spoilt, check)
    assert outcome.status == "fail", outcome.message
    found = [finding for finding in outcome.findings if finding.source == source and says in finding.message]
    assert found, [finding.message for finding in outcome.findings]
    assert found[0].stage == stage
    check_outcome(spoilt, outcome)


@pytest.mark.slow
def test_nothing_else_is_called_a_near_duplicate_or_turned(spoilt: Path) -> None:
    for check in ("near_duplicates", "exif_orientation", "alpha_dropped", "clipped"):
        assert outcome_of(spoilt, check).total == 1


def test_a_loader_that_converts_hides_nothing_from_the_file(tmp_path: Path) -> None:
    """torchvision's own folder converts to RGB while loading: stage 0 is white, or without alpha, from the start."""
    from audit.api import run

    root = folders(tmp_path / "data", 6, ("ant", "bee", "fly"), size=(96, 80))
    _spoil(root)
    (tmp_path / "pipeline.py").write_text(
        "from torchvision.datasets import ImageFolder\n"
        "from torchvision.transforms import v2\n"
        "def dataset(root: str):\n    return ImageFolder(root, v2.Compose([v2.Resize((32, 32)), v2.ToImage()]))\n"
    )
    run(root, pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    for check, source in (("alpha_dropped", "fly/transparent.png"), ("clipped", "fly/sixteen.png")):
        outcome = outcome_of(tmp_path / "lineage", check)
        assert [(finding.source, finding.stage) for finding in outcome.findings] == [(source, 0)]


@pytest.mark.slow
def test_changed_and_missing_files_are_reported(digits: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(digits.parent, copy)
    store = copy / "lineage"
    # The recorded root is the original folder: change files there would disturb other tests, so record the copy.
    from audit.api import run

    run(copy / "test", pipeline="pipelines/digits.py", store=store, name="copy", workers=0)
    assert outcome_of(store, "source_unchanged").status == "pass"
    files = sorted((copy / "test").rglob("*.png"))
    files[3].write_bytes(files[3].read_bytes() + b"\0")
    files[5].unlink()
    outcome = outcome_of(store, "source_unchanged")
    reported = {(finding.source, finding.index): finding.message for finding in outcome.findings}
    assert len(reported) == 2
    assert "other bytes" in reported[(files[3].relative_to(copy / "test").as_posix(), 3)]
    assert "no longer exists" in reported[(files[5].relative_to(copy / "test").as_posix(), 5)]
    # Replaying notices the same, at the stage where it shows.
    files[0].write_bytes(files[9].read_bytes())
    outcome = outcome_of(store, "reproducible")
    assert outcome.status == "fail"
    assert (outcome.findings[0].index, outcome.findings[0].stage) == (0, 0)


def test_replaying_an_untouched_run_passes(digits: Path) -> None:
    outcome = outcome_of(digits, "reproducible")
    assert (outcome.status, outcome.notes) == ("pass", ["3 visits replayed"])


def test_leakage_into_another_run(digits: Path, tmp_path: Path) -> None:
    from audit.api import run

    shutil.copytree(digits, tmp_path / "lineage")
    train = tmp_path / "train" / "0"
    train.mkdir(parents=True)
    for file in sorted((digits.parent / "test/0").iterdir())[:2]:
        shutil.copy(file, train / f"copy-{file.name}")
    run(tmp_path / "train", pipeline="pipelines/digits.py", store=tmp_path / "lineage", name="train", workers=0)
    outcome = outcome_of(tmp_path / "lineage", "leakage", {"other": "digits"})
    assert [finding.index for finding in outcome.findings] == [0, 1]


@pytest.mark.slow
def test_a_changed_byte_of_a_part_is_found_and_the_rest_still_runs(planted: object) -> None:
    store: Path = planted()  # type: ignore[operator]
    part = next((store / "runs").rglob("predictions/*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    report = run_checks(str(store))
    finding = report.outcome("store").findings[0]
    assert part.name in finding.message
    assert not report.passed
    assert report.outcome("duplicates").status == "pass"
    part.unlink()
    report = run_checks(str(store))
    assert "is missing" in report.outcome("store").findings[0].message
    assert report.outcome("accuracy").status == "error"
    assert report.outcome("duplicates").status == "pass"


@pytest.mark.parametrize("order", ["bgr", "rgb"])
def test_channels_as_opencv_loads_them_are_reported(order: str, tmp_path: Path) -> None:
    from audit.api import run

    root = folders(tmp_path / "data", 4)
    step = "[:, :, ::-1].copy()" if order == "bgr" else ""
    (tmp_path / "pipeline.py").write_text(
        "import numpy, torch\nfrom PIL import Image\nfrom torchvision.datasets import ImageFolder\n"
        "def read(path):\n    return numpy.asarray(Image.open(path))" + step + "\n"
        "def scaled(array):\n    return torch.from_numpy(array.transpose(2, 0, 1).copy()).float() / 255\n"
        "def dataset(root: str):\n    return ImageFolder(root, scaled, loader=read)\n"
    )
    run(root, pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", capture="digest", workers=0)
    outcome = outcome_of(tmp_path / "lineage", "channel_order")
    assert outcome.status == ("fail" if order == "bgr" else "pass"), outcome.message
    if order == "bgr":
        # The stage after `load` shows the same pixels as a tensor.
        assert (outcome.findings[0].stage, outcome.findings[0].value) == (1, 12)
    assert outcome_of(tmp_path / "lineage", "channel_order", {"expected": order}).status == "pass"


def test_an_array_that_is_reshaped_instead_of_permuted_is_named(tmp_path: Path) -> None:
    from audit.api import run

    root = folders(tmp_path / "data", 4)
    (tmp_path / "pipeline.py").write_text(
        "import numpy, torch\ndef tensor(image):\n    pixels = torch.from_numpy(numpy.array(image))\n"
        "    return pixels.reshape(3, *pixels.shape[:2]).float() / 255\ntransform = [tensor]\n"
    )
    run(root, pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", capture="digest", workers=0)
    outcome = outcome_of(tmp_path / "lineage", "channel_order")
    assert (outcome.status, outcome.severity) == ("fail", "error")
    assert "tensor took height×width×channels" in outcome.message
    assert "permute(2, 0, 1)" in outcome.message
    assert outcome.findings[0].value == 12


def test_a_picture_unlike_the_others_is_named(tmp_path: Path) -> None:
    """Noise among handwritten digits, and nothing else."""
    from audit.api import run

    root = tmp_path / "data"
    shutil.copytree("fixtures/digits/test", root)
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(noise).save(root / "3" / "noise.png")
    run(root, store=tmp_path / "lineage", capture="digest", workers=0)
    outcome = outcome_of(tmp_path / "lineage", "outliers")
    assert [finding.source for finding in outcome.findings] == ["3/noise.png"], outcome.notes


def test_borders_and_compression_that_name_the_class_are_reported(tmp_path: Path) -> None:
    from audit.api import run

    for number in range(120):
        target = tmp_path / "data" / f"class-{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        pixels = np.asarray(picture(number)).copy()
        if number % 2:
            pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:] = 250, 250, 250, 250
        Image.fromarray(pixels).save(target / f"{number}.jpg", quality=90 if number % 2 else 70)
    run(tmp_path / "data", store=tmp_path / "lineage", capture="digest", workers=0)
    outcome = outcome_of(tmp_path / "lineage", "shortcuts")
    assert len(outcome.findings) == 1
    assert "border" in outcome.findings[0].message
    assert "compression quality" in outcome.findings[0].message
