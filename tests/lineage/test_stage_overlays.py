"""Pictures with targets at every stage: what is stored of them, and what lies over them in a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from annotated_pictures import PIECES, SIZE, mask_of, pieces
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

import audit
from audit import values


class Annotated(Dataset[Any]):
    """The pieces with their boxes, or their masks, through a joint transform."""

    def __init__(self, transforms: Any, *, masks: bool = False) -> None:
        self.transforms, self.masks, self.pictures = transforms, masks, pieces()

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        objects = PIECES[index][2]
        if self.masks:
            return self.transforms(self.pictures[index], tv_tensors.Mask(torch.from_numpy(mask_of(objects))))
        boxes = torch.tensor([one[1:] for one in objects]).reshape(-1, 4)
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(SIZE[1], SIZE[0])),
            "labels": torch.tensor([one[0] for one in objects], dtype=torch.int64),
        }
        return self.transforms(self.pictures[index], target)


class Oracle(nn.Module):
    """Returns the boxes that it was reported of."""

    answers: list[Any]

    def forward(self, pictures: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        return [
            {"boxes": one["boxes"].clone().as_subclass(torch.Tensor), "labels": one["labels"], "scores": torch.ones(len(one["labels"]))}
            for one in self.answers
        ]  # fmt: skip


def record_boxes(store: Path, transforms: Any, capture: str = "full") -> None:
    with audit.record(store, capture=capture) as run:  # type: ignore[arg-type]
        loader = run.loader(
            DataLoader(Annotated(transforms), batch_size=2, collate_fn=lambda batch: list(zip(*batch, strict=True)))
        )
        model = run.model(Oracle())
        for pictures, targets in loader:
            model.answers = targets
            model(list(pictures))  # fmt: skip


FOLLOWED = [
    v2.Resize((48, 72)), v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.RandomResizedCrop((40, 40)),
    v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
]  # fmt: skip


def test_predicted_boxes_lie_at_every_stage_where_the_targets_lie(tmp_path: Path) -> None:
    torch.manual_seed(1)
    # Boxes of v2 that a crop cuts are clamped; a soft clamp keeps their place, so that they can be compared.
    record_boxes(tmp_path, v2.Compose([v2.SetClampingMode(None), *FOLLOWED]))
    with audit.open(tmp_path) as store:
        stages = store.sql("SELECT DISTINCT name FROM stage_boxes").fetchall()
        assert {name for (name,) in stages} >= {
            "load",
            "Resize",
            "RandomHorizontalFlip",
            "RandomResizedCrop",
            "ToDtype",
        }
        overlays = store.trace(index=1).overlays
        assert next(overlay.name for overlay in overlays) == "load"
        for overlay in overlays[1:]:
            kinds = {kind: [box for box in overlay.boxes if box.kind == kind] for kind in ("target", "predicted")}
            assert len(kinds["target"]) == len(kinds["predicted"]) == 2, overlay.name
            for wanted, found in zip(kinds["target"], kinds["predicted"], strict=True):
                corners = [(getattr(wanted, name), getattr(found, name)) for name in ("x1", "y1", "x2", "y2")]
                assert all(abs(a - b) < 1e-2 for a, b in corners), (overlay.name, corners)
                assert (wanted.outcome, found.outcome) == ("tp", "tp")


def test_a_stage_of_unknown_geometry_has_no_predicted_boxes_before_it(tmp_path: Path) -> None:
    record_boxes(tmp_path, v2.Compose([v2.RandomRotation(30), v2.ToImage()]))
    with audit.open(tmp_path) as store:
        kinds = {overlay.name: {box.kind for box in overlay.boxes} for overlay in store.trace(index=2).overlays}
        assert kinds == {
            "load": {"target"}, "RandomRotation": {"target", "predicted"}, "ToImage": {"target", "predicted"}
        }  # fmt: skip
        assert store.sql("SELECT count(*) FROM boxes WHERE sx1 IS NOT NULL").fetchall() == [(0,)]


class Resize(v2.Resize):
    """Has the name of a stage that is known, and does something else."""

    def forward(self, *inputs: Any) -> Any:
        return v2.Pad([8, 0])(super().forward(*inputs))


def test_a_stage_of_the_users_own_is_not_known_by_its_name(tmp_path: Path) -> None:
    record_boxes(tmp_path, v2.Compose([Resize((48, 72)), v2.ToImage()]))
    with audit.open(tmp_path) as store:
        assert store.sql("SELECT count(*), count(sx1) FROM boxes WHERE kind = 'predicted'").fetchall() == [(5, 0)]
        kinds = {overlay.name: {box.kind for box in overlay.boxes} for overlay in store.trace(index=2).overlays}
        assert kinds == {"load": {"target"}, "Resize": {"target", "predicted"}, "ToImage": {"target", "predicted"}}


@pytest.mark.parametrize("capture", ["digest", "preview", "full"])
def test_statistics_are_the_pictures_and_previews_show_the_target(tmp_path: Path, capture: str) -> None:
    record_boxes(tmp_path, v2.Compose([v2.CenterCrop((32, 48)), v2.ToImage()]), capture)
    picture = pieces()[1]
    with audit.open(tmp_path) as store:
        (mean, target), *_ = store.sql(
            "SELECT mean, target FROM stage_outputs WHERE index = 1 AND stage = 0"
        ).fetchall()
        assert mean == pytest.approx(np.asarray(picture).mean())
        assert json.loads(target) == {
            "height": 64, "width": 96, "boxes": [[34, 0, 95, 44], [2, 30, 30, 62]], "classes": [1, 2], "format": "XYXY"
        }  # fmt: skip
        preview = store.trace(index=1).preview(0)
        if capture == "digest":
            assert preview is None
            return
        assert preview is not None
        assert preview.media_type == "image/jpeg"
        assert preview.data != values.preview(picture).data, "the boxes are drawn over it"  # type: ignore[union-attr]


def test_masks_at_every_stage(tmp_path: Path) -> None:
    transforms = v2.Compose([v2.Resize((32, 48)), v2.RandomHorizontalFlip(1.0), v2.ToImage()])
    with audit.record(tmp_path / "store", capture="full") as run:
        for _ in run.loader(DataLoader(Annotated(transforms, masks=True), batch_size=2)):
            pass
    with audit.open(tmp_path / "store") as store:
        trace = store.trace(index=1)
        overlays = {overlay.name: overlay for overlay in trace.overlays}
        assert list(overlays) == ["load", "Resize", "RandomHorizontalFlip", "ToImage"]
        masks = {name: overlay.masks[0].mask for name, overlay in overlays.items()}
        assert (masks["load"] == mask_of(PIECES[1][2])).all()
        assert (masks["RandomHorizontalFlip"] == masks["Resize"][:, ::-1]).all()
        counted = json.loads(trace.stages[0]["target"] or "")["mask"]
        assert counted == {str(n): int((masks["load"] == n).sum()) for n in np.unique(masks["load"])}
        written = {path.name for path in trace.export(tmp_path / "out")}
        assert {"00-load-overlay.png", "01-Resize-overlay.png", "overlay.png"} <= written
        assert Image.open(tmp_path / "out" / "01-Resize-overlay.png").width >= 240


@pytest.mark.parametrize(
    "value",
    [
        (Image.new("L", (8, 8)), Image.new("L", (8, 8))),
        (Image.new("RGB", (8, 8)), Image.new("L", (4, 4))),
        (Image.new("RGB", (16, 16)), Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))),
        (torch.zeros(3, 8, 8), torch.zeros(8, 8)),
        (torch.zeros(3, 8, 8), 5),
        (torch.zeros(3, 8, 8), {"boxes": torch.zeros(2, 4), "labels": torch.zeros(1)}),
        {"image": "a path", "boxes": torch.zeros(0, 4), "labels": torch.zeros(0)},
    ],
    ids=["grey to grey", "other size", "depth", "real numbers", "class", "numbers differ", "no picture"],
)
def test_what_is_not_a_picture_with_a_target_is_not_called_one(value: Any) -> None:
    assert values.describe_target(value) is None
    facts = values.observe(value)
    assert facts.mean is None
    assert facts.kind in ("sequence", "mapping")
