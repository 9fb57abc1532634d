"""Runs whose digests follow an earlier version of the recipe are replayed, verified and compared by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import audit
from audit import values
from audit.errors import UsageError
from audit.registry import Registry
from audit.values import dispatch
from audit.values.text import TextKind

PIPELINE = """
from pathlib import Path
from PIL import Image
from torchvision.transforms import functional as F

class Pictures:
    def __init__(self, root):
        self.files = sorted(Path(root).glob("*.png"))
        self.transform = [grow, F.pil_to_tensor]
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        picture = Image.open(self.files[index])
        for one in self.transform:
            picture = one(picture)
        return picture

def grow(picture):
    return picture.resize((8, 8), 0)

def dataset(root):
    return Pictures(root)
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A palette picture and a colour picture with a transparency entry each, and one without."""
    folder = tmp_path / "images"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    picture.save(folder / "0.png")
    picture.save(folder / "1.png", transparency=(3, 4, 5))
    picture.quantize(8).save(folder / "2.png", transparency=2)
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    return folder


def record(images: Path, name: str, version: int, **options: Any) -> Any:
    with values.following_digests(version):
        store, pipeline = images.parent / "lineage", str(images.parent / "pipeline.py")
        return audit.run(str(images), pipeline=pipeline, store=store, name=name, workers=0, **options)


def test_replay_trace_and_diff_across_versions(images: Path) -> None:
    record(images, "old", 2, capture="full")
    record(images, "new", 3, capture="full")
    with audit.open(images.parent / "lineage") as store:
        query = "SELECT index FROM stage_outputs GROUP BY index, stage HAVING count(DISTINCT digest) > 1 ORDER BY ALL"
        assert store.sql(query).fetchall() == [(1,), (1,), (2,), (2,)], (
            "load and grow, of what has a transparency entry"
        )
        for name in ("old", "new"):
            replayed = store.replay(name)
            assert (replayed.identical, replayed.checked) == (3, 3), name
            entries = [store.trace(name, index=index).value(0).info.get("transparency") for index in range(3)]
            assert entries[:2] == [None, (3, 4, 5)]
            assert entries[2] is not None
        compared = store.diff("old", "new")
        assert (compared.matched, compared.first_divergent_stage) == (3, {})
        assert (compared.identical, compared.not_compared) == (3, {}), "the last stage has a digest that both know"
        assert store.verify() == []


def test_a_value_of_a_later_kind_is_not_compared_with_one_of_another_kind(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was `other` has no digest that the newer run knows: this is neither a difference nor a failure."""
    program = (
        "class Step:\n    def __call__(self, picture):\n        return str(picture.size)\n\ntransform = [Step()]\n"
    )
    (images.parent / "pipeline.py").write_text(program)
    monkeypatch.setattr(type(values.KINDS.get("text")), "since", 3)
    record(images, "old", 2)
    record(images, "new", 3)
    with audit.open(images.parent / "lineage") as store:
        kinds = "SELECT DISTINCT kind FROM stage_outputs WHERE name = 'Step' ORDER BY kind"
        assert store.sql(kinds).fetchall() == [("other",), ("text",)]
        compared = store.diff("old", "new")
        # Of the pictures with a transparency entry, `load` could not be compared either.
        assert (compared.divergent, compared.identical, compared.not_compared) == (0, 0, {"load": 2, "Step": 1})
        assert compared.as_json()["not_compared"] == compared.not_compared
        assert any("3 samples" in note and "Step (1)" in note for note in compared.notes)
        compared.show()
        assert "the same output for 0 samples" in capsys.readouterr().out


class SizeKind(TextKind):
    """Texts in brackets, which are of the kind `text` in runs of earlier versions."""

    name = "size"
    since = 3

    def matches(self, value: object) -> bool:
        return isinstance(value, str) and value.startswith("(")


def test_a_value_of_a_later_kind_is_not_compared_with_one_that_had_a_digest(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests of two kinds differ also for equal values."""
    program = (
        "class Step:\n    def __call__(self, picture):\n        return str(picture.size)\n\ntransform = [Step()]\n"
    )
    (images.parent / "pipeline.py").write_text(program)
    kinds: Registry[values.ValueKind] = Registry("value kind")
    for kind in (SizeKind(), *values.KINDS.values()):
        kinds.add(kind.name, kind)
    monkeypatch.setattr(dispatch, "KINDS", kinds)
    monkeypatch.setattr(values, "KINDS", kinds)
    monkeypatch.setattr(TextKind, "by_type", False)
    values.known_kinds().pop(str, None)
    record(images, "old", 2)
    record(images, "new", 3)
    with audit.open(images.parent / "lineage") as store:
        query = "SELECT DISTINCT kind FROM stage_outputs WHERE name = 'Step' ORDER BY kind"
        assert store.sql(query).fetchall() == [("size",), ("text",)]
        compared = store.diff("old", "new")
        assert (compared.divergent, compared.not_compared) == (0, {"load": 2, "Step": 1})


def test_a_run_of_an_earlier_recipe_is_not_resumed(images: Path) -> None:
    """Its two halves would have digests by different recipes."""
    Path(images, "1.png").write_bytes(b"not a picture")
    run = record(images, "old", 2, max_failures=0, batch_size=1)
    assert run.status == "failed"
    with pytest.raises(UsageError, match="version 2 of the digest recipe"):
        audit.resume(store=images.parent / "lineage", trust=True)
