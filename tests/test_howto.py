"""The how-to pages are true: every block of them runs, in the environment that the page asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from page_blocks import link_fixtures, page_blocks, run_page
from PIL import Image, ImageDraw
from places import CHECKPOINT, DIGITS, PIPELINE, REPOSITORY

import audit

HOWTO = REPOSITORY / "docs" / "howto"
Read = Callable[[str], dict[str, object]]

pytestmark = pytest.mark.workers


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Run a how-to page in a folder that looks like a clone."""
    link_fixtures(tmp_path, REPOSITORY)
    monkeypatch.delenv("AUDIT_STORE", raising=False)
    return lambda name: run_page(HOWTO / f"{name}.md", tmp_path, monkeypatch)


def runs(folder: Path) -> list[tuple[str | None, str, int]]:
    with audit.open(folder / "lineage") as store:
        return [(run.name, run.status, run.samples) for run in store.runs()]


def test_every_page_is_run() -> None:
    tested = {"own-dataset", "lightning", "trainer", "ddp", "detection", "buckets", "share-a-store"}
    elsewhere = {"ci", "ray"}  # tests/checks/test_checks_command.py, tests/engines/ray/test_ray_run.py
    assert {page.stem for page in HOWTO.glob("*.md")} == tested | elsewhere


def test_your_own_dataset(read: Read, tmp_path: Path) -> None:
    read("own-dataset")
    assert runs(tmp_path) == [("mine", "complete", 100)]


def test_lightning(read: Read, tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    read("lightning")
    assert runs(tmp_path) == [("lightning", "complete", 192)]


def test_trainer(read: Read, tmp_path: Path) -> None:
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    read("trainer")
    assert runs(tmp_path) == [("transformers", "complete", 64), ("transformers", "complete", 32)]


def test_ddp(read: Read, tmp_path: Path) -> None:
    read("ddp")
    assert sorted(runs(tmp_path)) == [("rank-0", "complete", 64), ("rank-1", "complete", 64)]


def test_detection(read: Read, tmp_path: Path) -> None:
    pictures, boxes = [], []
    for number in range(3):
        picture = Image.new("RGB", (40, 30))
        x, y, width, height = 4 + number, 5, 10, 8 + number
        ImageDraw.Draw(picture).rectangle((x, y, x + width - 1, y + height - 1), fill="white")
        picture.save(tmp_path / f"{number}.png")
        pictures.append({"id": number, "file_name": f"{number}.png", "width": 40, "height": 30})
        box = [x, y, width, height]
        boxes.append(
            {"id": number, "image_id": number, "category_id": 1, "bbox": box, "area": width * height, "iscrowd": 0}
        )
    about = {"images": pictures, "annotations": boxes, "categories": [{"id": 1, "name": "spot"}]}
    (tmp_path / "annotations.json").write_text(json.dumps(about))
    torch.save({"threshold": torch.tensor(0.5)}, tmp_path / "detector.pt")
    read("detection")
    assert [(name, samples) for name, _, samples in runs(tmp_path)] == [(None, 3), ("loop", 4)]
    assert (tmp_path / "first" / "overlay.png").exists()


@pytest.fixture
def bucket() -> Iterator[None]:
    """A server that has the bucket of the page."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    import boto3
    from object_service import Service

    service = Service()
    with service.set_environment():
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield
    service.close()


@pytest.mark.buckets
def test_buckets(bucket: None, read: Read) -> None:
    read("buckets")
    with audit.open("s3://bucket/lineage") as store:
        assert [run.samples for run in store.runs()] == [40]


def test_share_a_store(read: Read, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0, limit=60)
    read("share-a-store")
    assert all((tmp_path / name).stat().st_size for name in ("report.html", "mistakes.csv", "run.intoto.json"))


@pytest.mark.parametrize("page", ["TASKS.md", "TRUST.md", "howto/ci.md"])
def test_the_commands_of_another_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands alone; what is Python, TOML or YAML on these pages is run by the tests of the checks."""
    link_fixtures(tmp_path, REPOSITORY)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test").symlink_to(DIGITS)
    (tmp_path / "model.pt").symlink_to(CHECKPOINT)
    (tmp_path / "pipeline.py").symlink_to(PIPELINE)
    audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0, limit=60)
    run_page(REPOSITORY / "docs" / page, tmp_path, monkeypatch, languages={"sh"})


def test_a_block_is_left_out_only_if_the_page_says_why() -> None:
    text = '<!-- not run: needs a GPU -->\n```sh\nfalse\n```\n\n```python title="a.py"\nx = 1\n```\n'
    first, second = page_blocks(text)
    assert (first.language, first.text, first.skipped) == ("sh", "false\n", "needs a GPU")
    assert (second.language, second.title, second.skipped) == ("python", "a.py", "")
