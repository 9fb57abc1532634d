"""Planted faults: each must be found at the stage where it was planted, and named for what it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from diff_material import PICTURES, ROTATED_SAMPLE, Recorder, pipeline_text, write_pictures
from PIL import Image
from store_cases import rewrite

from audit.lineage.diff.diff import Diff, diff
from audit.records import Run
from audit.store.read.reader import Reader

pytestmark = pytest.mark.slow


@dataclass
class WorkerContext:
    """A dataset, its baseline run, and a recorder for what differs from it."""

    images: Path
    record: Recorder
    baseline: Run
    copies: int = field(default=0)

    def against(self, other: Run, baseline: Run | None = None) -> Diff:
        with Reader(self.record.store) as reader:
            return diff(reader, (baseline or self.baseline).run_id, other.run_id)

    def copy(self) -> Path:
        self.copies += 1
        return Path(shutil.copytree(self.images, self.images.parent / f"copy_{self.copies}"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerContext]:
    folder = tmp_path_factory.mktemp("faults")
    images = write_pictures(folder / "images")
    record = Recorder(folder)
    yield WorkerContext(images, record, record(images, pipeline_text()))
    shutil.rmtree(folder, ignore_errors=True)


BGR = "def to_rgb(image):\n    r, g, b = image.convert('RGB').split()\n    return Image.merge('RGB', (b, g, r))\n"
GREY = "def to_rgb(image):\n    return image.convert('L').convert('RGB')\n"
FLIP_CHANNELS = "def to_bgr(image):\n    return image.flip(0)\n"
LAST = "def channels_last(image):\n    return image.permute(1, 2, 0)\n"
UPRIGHT = "def upright(image):\n    return ImageOps.exif_transpose(image)\n"
REENCODE = (
    "import io\ndef reencode(image):\n    data = io.BytesIO()\n    image.save(data, 'JPEG', quality=60)\n"
    "    return Image.open(data).convert('RGB')\n"
)
HALVE = "def halve(image):\n    return image / 2\n"
OTHER_CROP = (
    "class CenterCrop:\n    def __init__(self, size):\n        self.size = [size, size]\n"
    "    def __call__(self, image):\n        return image[..., :20, :20]\n"
)

#: name → changes, extra code, order, the stage that must be named, the reason, a piece of the explanation
FAULTS = {
    "interpolation": (
        {"resize": "v2.Resize(24, interpolation=v2.InterpolationMode.NEAREST, antialias=True)"},
        *("", (), "Resize", "parameters", "interpolation: bilinear → nearest"),
    ),
    "antialias": ({"resize": "v2.Resize(24, antialias=False)"}, "", (), "Resize", "parameters", "antialias"),
    "resize size": ({"resize": "v2.Resize(26, antialias=True)"}, "", (), "Resize", "parameters", "[24] → [26]"),
    "crop size": ({"crop": "v2.CenterCrop(18)"}, "", (), "CenterCrop", "parameters", "size: [20, 20] → [18, 18]"),
    "crop order": (
        {},
        *("", ("rgb", "image", "crop", "resize", "dtype", "normalize"), "CenterCrop|Resize", "stage moved", "order"),
    ),
    "mean and std swapped": (
        {"normalize": "v2.Normalize(STD, MEAN)"},
        *("", (), "Normalize", "parameters", "mean: [0.485, 0.456, 0.406] → [0.229"),
    ),
    "mean missing": ({"normalize": "v2.Normalize([0, 0, 0], STD)"}, "", (), "Normalize", "parameters", "mean"),
    "scale missing": ({"dtype": "v2.ToDtype(torch.float32)"}, "", (), "ToDtype", "parameters", "scale: true → false"),
    "dtype": ({"dtype": "v2.ToDtype(torch.float16, scale=True)"}, "", (), "ToDtype", "parameters", "torch.float16"),
    "BGR in the same function": ({}, BGR, (), "to_rgb", "code changed", "source code"),
    "BGR as a stage": ({"image+": "to_bgr"}, FLIP_CHANNELS, (), "to_bgr", "stage added", "only in b"),
    "channels last": ({"normalize+": "channels_last"}, LAST, (), "channels_last", "stage added", "only in b"),
    "colour conversion": ({}, GREY, (), "to_rgb", "code changed", "source code"),
    "grey as a stage": ({"image+": "v2.Grayscale(3)"}, "", (), "Grayscale", "stage added", "only in b"),
    "JPEG in the pipeline": ({"rgb+": "reencode"}, REENCODE, (), "reencode", "stage added", "only in b"),
    "normalize dropped": ({"normalize": None}, "", (), "Normalize", "stage removed", "only in a"),
    "resize dropped": ({"resize": None}, "", (), "Resize", "stage removed", "only in a"),
    "pad added": ({"crop+": "v2.Pad(2)"}, "", (), "Pad", "stage added", "only in b"),
    "normalize doubled": ({"normalize+": "v2.Normalize(MEAN, STD)"}, "", (), "Normalize", "stage added", "only in b"),
    "scaled twice": ({"dtype+": "halve"}, HALVE, (), "halve", "stage added", "only in b"),
    "normalize before scaling": (
        {"dtype": "v2.ToDtype(torch.float32)", "normalize+": "v2.ToDtype(torch.float32, scale=True)"},
        *("", (), "ToDtype", "parameters|stage added", ""),
    ),
    "random crop in evaluation": (
        {"crop": "v2.RandomCrop(20)"},
        *("", (), "CenterCrop", "stage replaced", "CenterCrop → RandomCrop"),
    ),
    "another class of that name": (
        {"crop": "CenterCrop(20)"},
        *(OTHER_CROP, (), "CenterCrop", "parameters|code changed", ""),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_was_planted(bench: WorkerContext, fault: str) -> None:
    changes, extra, order, stage, reason, detail = FAULTS[fault]
    found = bench.against(bench.record(bench.images, pipeline_text(changes, extra, order)))
    assert found.matched == PICTURES
    assert list(found.first_divergent_stage) in [[name] for name in stage.split("|")]
    assert sum(found.first_divergent_stage.values()) == found.divergent
    group = found.divergences[0]
    assert group.reason in reason.split("|")
    assert detail in group.detail
    if fault != "random crop in evaluation":
        assert found.divergent == PICTURES
    assert group.difference is not None
    # Either the size of the difference is known, or why it is not: shapes that do not compare.
    assert (group.difference.max or 0) > 0 or "shapes" in (group.difference.why or "")
    assert group.example["source"]


def test_rotation_by_exif_touches_only_what_lies_on_its_side(bench: WorkerContext) -> None:
    text = pipeline_text().replace("Compose([to_rgb", "Compose([upright, to_rgb")
    found = bench.against(bench.record(bench.images, text.replace("transform =", f"{UPRIGHT}\ntransform =")))
    assert found.first_divergent_stage == {"upright": ROTATED_SAMPLE}
    assert all(group.example["source"].endswith(".jpg") for group in found.divergences)


def test_a_random_stage_left_on_touches_what_it_fired_for(bench: WorkerContext) -> None:
    changes = {"crop+": "v2.RandomHorizontalFlip(0.5)"}
    other = bench.record(bench.images, pipeline_text(changes))
    found = bench.against(other)
    assert set(found.first_divergent_stage) == {"RandomHorizontalFlip"}
    assert 0 < found.divergent < PICTURES
    again = bench.against(bench.record(bench.images, pipeline_text(changes)), other)
    assert again.same
    reseeded = bench.against(bench.record(bench.images, pipeline_text(changes), seed=9), other)
    assert set(reseeded.first_divergent_stage) == {"RandomHorizontalFlip"}
    assert reseeded.divergences[0].reason == "random draw"
    assert "seed 0 → 9" in reseeded.divergences[0].detail


def test_stages_that_commute_do_not_diverge(bench: WorkerContext) -> None:
    order = ("rgb", "image", "resize", "dtype", "normalize", "crop")
    found = bench.against(bench.record(bench.images, pipeline_text({}, "", order)))
    assert found.divergent == 0
    assert any(step.change == "moved" for step in found.steps)


def test_two_stages_that_do_the_work_of_one_do_not_diverge(bench: WorkerContext) -> None:
    other = {"crop": "v2.CenterCrop(22)", "crop+": "v2.CenterCrop(20)"}
    found = bench.against(bench.record(bench.images, pipeline_text(other)))
    assert found.divergent == 0
    both = {**other, "normalize": "v2.Normalize(MEAN, [1, 1, 1])"}
    assert bench.against(bench.record(bench.images, pipeline_text(both))).first_divergent_stage == {
        "Normalize": PICTURES
    }


def test_a_plain_tensor_is_no_image_although_its_numbers_are(bench: WorkerContext) -> None:
    found = bench.against(bench.record(bench.images, pipeline_text({"image": "transforms.PILToTensor()"})))
    assert found.first_divergent_stage == {"ToImage": PICTURES}


def test_hidden_state_is_not_explained_away(bench: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = "def brighten(image):\n    return image + float(os.environ.get('AUDIT_TEST_OFFSET', '0'))\n"
    path = bench.record.folder / "hidden_state.py"
    path.write_text(pipeline_text({"dtype+": "brighten"}, extra))
    first = bench.record.file(bench.images, path)
    monkeypatch.setenv("AUDIT_TEST_OFFSET", "0.25")
    found = bench.against(bench.record.file(bench.images, path), first)
    assert found.first_divergent_stage == {"brighten": PICTURES}
    assert found.divergences[0].reason == "unexplained"
    difference = found.divergences[0].difference
    assert difference is not None
    assert difference.max == pytest.approx(0.25, abs=1e-6)
    assert difference.samples == 3

    # The same, but for a library that is another version there: that is what differs, and both versions are shown.
    newer = bench.record.file(bench.images, path)
    run_json = Path(bench.record.store) / "runs" / newer.run_id / "run.json"
    before = newer.versions["pillow"]
    rewrite(run_json, lambda content: content["run"]["versions"].update(pillow="99.0", audit="99.0"))
    group = bench.against(newer, first).divergences[0]
    assert (group.reason, group.step.name) == ("library changed", "brighten")
    assert group.detail == f"the same stage and input, but pillow {before} → 99.0"


TARGETS = "def off_by_one(label):\n    return (label + {by}) % 2\ntarget_transform = off_by_one\n"


def test_a_label_map_is_found_among_the_target_stages(bench: WorkerContext) -> None:
    other = bench.record(bench.images, pipeline_text() + TARGETS.format(by=1))
    found = bench.against(other)
    assert found.first_divergent_stage == {"off_by_one": PICTURES}
    assert found.divergences[0].step.is_target
    assert found.counts["label_changed"] == PICTURES
    back = bench.against(bench.record(bench.images, pipeline_text() + TARGETS.format(by=2)), other)
    assert back.first_divergent_stage == {"off_by_one": PICTURES}
    assert back.divergences[0].reason == "code changed"
    harmless = bench.against(bench.record(bench.images, pipeline_text() + TARGETS.format(by=0)))
    assert harmless.divergent == harmless.counts["label_changed"] == 0


def test_a_file_replaced(bench: WorkerContext) -> None:
    images = bench.copy()
    target = images / "dog" / "4.png"
    Image.open(target).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(target)
    found = bench.against(bench.record(images, pipeline_text()))
    assert [row["source"] for row in found.lists["source_changed"]] == ["dog/4.png"]
    assert found.first_divergent_stage == {"load": 1}
    assert found.divergences[0].reason == "source changed"


def test_files_encoded_again_with_the_same_pixels(bench: WorkerContext) -> None:
    images = bench.copy()
    for path in images.rglob("*.png"):
        Image.open(path).save(path, compress_level=0)
    found = bench.against(bench.record(images, pipeline_text()))
    assert found.counts["source_changed"] == PICTURES - ROTATED_SAMPLE
    assert found.divergent == 0


def test_jpeg_encoded_again(bench: WorkerContext) -> None:
    images = bench.copy()
    for path in images.rglob("*.jpg"):
        picture = Image.open(path)
        picture.load()
        picture.save(path, quality=40)
    found = bench.against(bench.record(images, pipeline_text()))
    assert found.first_divergent_stage == {"load": ROTATED_SAMPLE}


def test_files_renamed_added_removed_and_relabelled(bench: WorkerContext) -> None:
    images = bench.copy()
    (images / "dog" / "2.png").rename(images / "dog" / "two.png")
    (images / "dog" / "6.png").rename(images / "cat" / "6.png")
    (images / "cat" / "3.png").unlink()
    Image.new("RGB", (40, 32), (9, 9, 9)).save(images / "cat" / "new.png")
    found = bench.against(bench.record(images, pipeline_text()))
    assert {(row["source"], row["source_b"]) for row in found.lists["renamed"]} == {
        ("dog/2.png", "dog/two.png"),
        ("dog/6.png", "cat/6.png"),
    }
    assert [row["source"] for row in found.added] == ["cat/new.png"]
    assert [row["source"] for row in found.removed] == ["cat/3.png"]
    assert [row["source_b"] for row in found.lists["label_changed"]] == ["cat/6.png"]
    assert found.matched == PICTURES - 1
    assert found.divergent == 0


def test_a_sample_that_fails_on_one_side(bench: WorkerContext) -> None:
    images = bench.copy()
    (images / "cat" / "5.png").write_bytes(b"no picture")
    other = bench.record(images, pipeline_text())
    found = bench.against(other)
    assert found.first_divergent_stage == {"load": 1}
    assert found.divergences[0].reason == "fails in b"
    assert [row["source"] for row in found.lists["newly_failed"]] == ["cat/5.png"]
    with Reader(bench.record.store) as reader:
        back = diff(reader, other.run_id, bench.baseline.run_id)
    assert back.counts["no_longer_failed"] == 1
    assert back.divergences[0].reason == "fails in a"


def test_differences_are_derived_where_nothing_was_stored(bench: WorkerContext) -> None:
    text = pipeline_text({"normalize": "v2.Normalize([0, 0, 0], STD)"})
    other = bench.record(bench.images, text, capture="digest")
    found = bench.against(other).divergences[0].difference
    assert found is not None
    assert found.max == pytest.approx(0.485 / 0.229, rel=1e-3)
    assert found.samples == 1
    with Reader(bench.record.store) as reader:
        stored_only = diff(reader, bench.baseline.run_id, other.run_id, derive=False).divergences[0].difference
    assert stored_only is not None
    assert stored_only.max is None
    assert "not stored" in (stored_only.why or "")


def test_a_run_against_itself_is_empty(bench: WorkerContext) -> None:
    found = bench.against(bench.baseline)
    assert found.same
    assert found.matched == PICTURES
    assert "Both are the same run." in found.notes
