"""`audit run` on datasets with boxes and masks: one command, with torchvision's own networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from annotated_pictures import PIECES, make_coco, make_masks, save_pieces
from click.testing import CliRunner
from torchvision import models

import audit
from audit.cli.main import cli


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    module = models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    path = tmp_path_factory.mktemp("detector") / "detector.pt"
    torch.save(module.state_dict(), path)
    return path


@pytest.mark.parametrize("folder", ["data", "coco"])
def test_a_run_is_replayed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Also if a folder is called like the prefix."""
    monkeypatch.chdir(tmp_path)
    made = make_coco(tmp_path / folder).relative_to(tmp_path)
    pictures = str((tmp_path / folder / "images").relative_to(tmp_path / folder))
    options = f"?images={pictures}" if (tmp_path / folder / "images").is_dir() else ""
    audit.run(f"coco:{made}{options}", store=tmp_path / "lineage", workers=0)
    monkeypatch.chdir("/")
    with audit.open(tmp_path / "lineage") as opened:
        replayed = opened.replay()
        assert (replayed.checked, replayed.different) == (4, [])


def test_a_detector_on_a_coco_file_is_one_command(tmp_path: Path, detector: Path) -> None:
    data, store = make_coco(tmp_path / "data"), tmp_path / "lineage"
    command = ["run", "--dataset", f"coco:{data}", "--model", str(detector), "--store", str(store), "--workers", "0"]
    done = CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["status"], found["samples"], found["failed"]) == ("complete", 4, 0)
    assert found["stages"] == ["load", "ConvertRGB", "ToTensor"]
    assert 0 <= found["mean_average_precision"]["all"] <= 1
    with audit.open(store) as opened:
        targets = opened.sql("SELECT index, class, x1, y1, x2, y2 FROM boxes WHERE kind = 'target' ORDER BY index, box")
        assert targets.fetchall() == [
            (at, kind, *box) for at, (_, _, objects) in enumerate(PIECES) for kind, *box in objects
        ]
        same = "SELECT count(*) FROM boxes WHERE x1 IS DISTINCT FROM sx1 OR y2 IS DISTINCT FROM sy2"
        assert opened.sql(same).fetchall() == [(0,)], "no stage moves a pixel"
        assert opened.sql("SELECT output, task, arch FROM runs").fetchall() == [
            ("boxes", "detection", "ssdlite320_mobilenet_v3_large")
        ]
        assert opened.sql("SELECT count(*) FROM predictions").fetchall() == [(4,)]
        assert opened.replay().different == []
        traced = opened.trace(index=2)
        assert [row["kind"] for row in traced.as_json()["boxes"]][:2] == ["target", "target"]
        assert tmp_path / "out" / "overlay.png" in traced.export(tmp_path / "out")
    shown = CliRunner().invoke(cli, ["trace", "2", "--store", str(store)], catch_exceptions=False)
    assert "of 2 objects found" in shown.output
    assert CliRunner().invoke(cli, ["check", "--store", str(store)]).exit_code in (0, 1)
    judged = CliRunner().invoke(cli, ["check", "--store", str(store), "--format", "json"])
    broken = [one for one in json.loads(judged.stdout)["checks"] if one["status"] == "error"]
    assert broken == []
    report = CliRunner().invoke(cli, ["report", "--store", str(store), "-o", str(tmp_path / "report.html")])
    assert report.exit_code == 0, report.output
    compared = CliRunner().invoke(cli, ["diff", "latest", "latest", "--store", str(store), "--json"])
    assert compared.exit_code == 0, compared.output


def test_a_segmentation_network_on_a_folder_of_masks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    torch.save(module.state_dict(), tmp_path / "network.pt")
    store = tmp_path / "lineage"
    run = audit.run(
        f"masks:{make_masks(tmp_path / 'data')}", model=str(tmp_path / "network.pt"), store=store, workers=0
    )
    assert (run.status, run.failed, run.output, run.task) == ("complete", 0, "masks", "segmentation")
    assert run.warnings == []
    with audit.open(store) as opened:
        assert opened.sql("SELECT count(*), count(DISTINCT index) FROM worst_masks").fetchall() == [(4, 4)]
        pixels = "SELECT DISTINCT sum(target_pixels) FROM mask_scores GROUP BY index"
        assert opened.sql(pixels).fetchall() == [(520 * 780,)], "the mask was resized with its picture"
        assert opened.replay().different == []
        assert tmp_path / "out" / "overlay.png" in opened.trace(index=2).export(tmp_path / "out")
        (mean,) = opened.sql("SELECT mean_iou FROM worst_masks WHERE index = 2").fetchall()[0]
    shown = CliRunner().invoke(cli, ["trace", "2", "--store", str(store)], catch_exceptions=False)
    assert f"a mask  mean IoU {mean:.3f}" in shown.output


LATE = """
import torch

class Items(torch.utils.data.Dataset):
    def __len__(self): return 60
    def __getitem__(self, index):
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return x, index % 2 if self.whole else float(index % 2)

class Labels(Items): whole = True
class Numbers(Items): whole = False

class Share(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(6, 1)
    def forward(self, x): return torch.sigmoid(self.last(x))

class Words(Labels):
    def __getitem__(self, index): return super().__getitem__(index)[0], "cat"

def words(): return Words()
def labels(): return Labels()
def numbers(): return Numbers()
def share(): return Share().eval()
"""


def test_items_without_a_label_are_reported_once(tmp_path: Path) -> None:
    code = tmp_path / "words.py"
    code.write_text(LATE)
    options = {"model": f"{code}:share", "trust": True, "workers": 0, "batch_size": 20, "output": "sigmoid"}
    run = audit.run(f"{code}:words", store=tmp_path / "x", **options)
    assert len([one for one in run.warnings if "No label was found in the items (a tuple of Tensor, str)" in one]) == 1


@pytest.mark.parametrize(("output", "notes"), [("embedding", 0), (None, 1)])
def test_more_outputs_than_classes_are_reported_unless_they_are_declared_to_be_no_classes(
    tmp_path: Path, output: str | None, notes: int
) -> None:
    code = tmp_path / "vectors.py"
    code.write_text(
        "import torch\ndef net(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(96 * 64 * 3, 6)).eval()\n"
    )
    steps = tmp_path / "steps.py"
    steps.write_text("from torchvision import transforms\ntransform = transforms.ToTensor()\n")
    for name in ("a", "b"):
        save_pieces(tmp_path / "data" / name)
    run = audit.run(
        str(tmp_path / "data"), model=f"{code}:net", pipeline=str(steps), output=output, trust=True,
        store=tmp_path / "x", workers=0,
    )  # fmt: skip
    assert len([one for one in run.warnings if "output 0 is taken for a" in one]) == notes


@pytest.mark.parametrize("dataset", ["labels", "numbers"])
def test_a_doubt_that_comes_after_several_batches_is_a_warning(tmp_path: Path, dataset: str) -> None:
    code = tmp_path / "late.py"
    code.write_text(LATE)
    options = {"model": f"{code}:share", "trust": True, "workers": 0, "batch_size": 4}
    run = audit.run(f"{code}:{dataset}", store=tmp_path / "x", **options)
    assert len([one for one in run.warnings if "nothing shows that they are probabilities" in one]) == 1
    sure = audit.run(f"{code}:{dataset}", store=tmp_path / "x", output="sigmoid", **options)
    assert sure.graded == 60
    assert not [one for one in sure.warnings if "probabilities" in one]
