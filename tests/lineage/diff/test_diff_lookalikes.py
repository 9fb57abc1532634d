"""Pictures that were stored again under other names are matched by how they look, and only if that is beyond doubt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from diff_material import Recorder, pipeline_text
from PIL import Image

import audit
from audit.store.read.reencoded_pictures import match_thumbnails
from audit.store.sandbox.sandbox import Sandbox

COUNT = 5


def picture(seed: int) -> Image.Image:
    """A picture of large shapes, as photographs have them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((80, 60), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("capture", ["preview", "full"])
def test_stored_again_and_renamed(tmp_path: Path, capture: str) -> None:
    for name in ("before", "after"):
        (tmp_path / name / "cat").mkdir(parents=True)
    for number in range(COUNT):
        picture(number).save(tmp_path / "before" / "cat" / f"{number}.png")
        picture(number).resize((72, 54)).save(tmp_path / "after" / "cat" / f"img_{9 - number}.jpg", quality=60)
    picture(50).save(tmp_path / "before" / "cat" / "gone.png")
    picture(60).save(tmp_path / "after" / "cat" / "new.jpg")
    record = Recorder(tmp_path)
    runs = [record(tmp_path / name, pipeline_text(), capture=capture).run_id for name in ("before", "after")]
    found = audit.open(record.store).diff(*runs, derive=False)
    assert (found.matched, found.counts["reencoded"], found.counts["renamed"]) == (COUNT, COUNT, 0)
    pairs = {(row["source"], row["source_b"]) for row in found.lists["reencoded"]}
    assert pairs == {(f"cat/{number}.png", f"cat/img_{9 - number}.jpg") for number in range(COUNT)}
    assert [row["source"] for row in found.removed] == ["cat/gone.png"]
    assert [row["source"] for row in found.added] == ["cat/new.jpg"]
    assert any("matched by their stored previews" in note for note in found.notes)
    # The macros of a user's query, here and in the process of untrusted ones, match the same.
    query = "SELECT source_a, source_b, how FROM matches('{}', '{}') WHERE how IS NOT NULL".format(*runs)
    with audit.open(record.store) as opened:
        assert {row[:2] for row in opened.sql(query).fetchall()} == pairs
    with Sandbox(str(record.store)) as sandbox:
        assert {(a, b) for a, b, how in sandbox.query(query).rows if how == "alike"} == pairs
    # A store that its user leaves open says nothing at the end of the process.
    code = f"import audit; store = audit.open({str(record.store)!r}); print(len(store.sql({query!r}).fetchall()))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == (f"{COUNT}\n", "")


def test_what_is_in_doubt_is_not_matched() -> None:
    random = np.random.default_rng(0)
    ours = random.uniform(0, 255, (4, 256))
    noisy = ours + random.normal(0, 3, ours.shape)
    assert match_thumbnails(ours, noisy) == [(n, n) for n in range(4)]
    # Two that look like the same one: neither is it for certain.
    assert match_thumbnails(ours[:1], np.stack([noisy[0], ours[0]])) == []
    assert match_thumbnails(ours[:1], noisy[1:]) == []
    grey = np.full((1, 256), 128.0)
    assert match_thumbnails(grey, grey) == []
    assert match_thumbnails(ours[:0], ours) == []
