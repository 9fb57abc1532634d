"""The value that a stage returned can be read again, or the error says that it was not stored; nothing else is called damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import audit
from audit.errors import NeedsTrust, NotFound

CODE = """
import collections, dataclasses
import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors

try:
    from transformers import BatchEncoding
except ImportError:
    BatchEncoding = None

@dataclasses.dataclass
class Annotated:
    pixels: object
    name: str

class Words(list):
    pass

class Settings(dict):
    pass

class Opaque:
    def __init__(self, n):
        self.n = n

Pair = collections.namedtuple("Pair", "a b")
MAKERS = {
    "ordered": lambda n: collections.OrderedDict(b=n, a=torch.full((2,), float(n))),
    "default": lambda n: collections.defaultdict(list, a=[n]),
    "encoding": lambda n: BatchEncoding({"input_ids": torch.tensor([n, 2])}),
    "dataclass": lambda n: Annotated(torch.full((2,), float(n)), "x"),
    "pair": lambda n: Pair(n, "x"),
    "words": lambda n: Words([n, "a"]),
    "settings": lambda n: Settings(a=n),
    "sparse": lambda n: torch.tensor([[0.0, n + 1]]).to_sparse(),
    "csr": lambda n: torch.tensor([[0.0, n + 1]]).to_sparse_csr(),
    "nested": lambda n: torch.nested.nested_tensor([torch.ones(2), torch.full((3,), float(n))], layout=torch.jagged),
    "quantised": lambda n: torch.quantize_per_tensor(torch.tensor([float(n)]), 0.1, 0, torch.qint8),
    "boxes": lambda n: {"boxes": tv_tensors.BoundingBoxes([[1, 2, 3, n]], format=FORMAT, canvas_size=(32, 48))},
    "generator": lambda n: {"x": torch.ones(2), "y": (n for _ in range(2))},
    "opaque": lambda n: Opaque(n),
}
FORMAT = "XYXY"

class Made(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return MAKERS[KIND](index), 0

def dataset():
    return Made()
"""
EXACT = {"ordered", "default", "dataclass", "pair", "sparse", "csr", "nested", "quantised", "boxes"}
PLAIN_CLASSES = {"encoding": dict, "words": list, "settings": dict}


def record(tmp_path: Path, kind: str, text: str = CODE, name: str | None = None) -> Any:
    if kind == "encoding":
        pytest.importorskip("transformers", reason="transformers is not installed")
    code = tmp_path / f"made_{kind}.py"
    code.write_text(f"KIND = {kind!r}\n{text}")
    return audit.run(f"{code}:dataset", store=tmp_path / "lineage", capture="full", workers=0, name=name)


@pytest.mark.parametrize("kind", sorted([*EXACT, *PLAIN_CLASSES]))
def test_a_value_comes_back_and_replays(tmp_path: Path, kind: str) -> None:
    assert record(tmp_path, kind).failed == 0
    with audit.open(tmp_path / "lineage") as store:
        trace = store.trace(index=1)
        (row,) = trace.stages
        value = trace.value(0)
        assert row["digest"] is not None
        assert type(value) is PLAIN_CLASSES[kind] if kind in PLAIN_CLASSES else row["kind"] != "other"
        assert trace.export(tmp_path / "out")
        replay = store.replay()
        assert (replay.checked, replay.identical) == (2, 2)


@pytest.mark.parametrize(("kind", "refusal"), [("generator", NotFound), ("opaque", NeedsTrust)])
def test_what_was_not_stored_is_reported(tmp_path: Path, kind: str, refusal: type[Exception]) -> None:
    record(tmp_path, kind)
    with audit.open(tmp_path / "lineage") as store:
        trace = store.trace(index=1)
        with pytest.raises(refusal):
            trace.value(0)
        (written, _) = trace.export(tmp_path / "out")
        assert "stored" in written.read_text()
        replay = store.replay()
        if kind == "opaque":
            assert (replay.checked, replay.identical) == (2, 2)
            assert trace.value(0, allow_pickle=True).n == 1
        else:
            # Without a digest nothing says whether the values are equal.
            assert (replay.checked, replay.not_compared) == (0, {"0 (load)": 2})
            assert not replay.passed
            assert trace.stages[0]["digest"] is None
            assert trace.stages[0]["changed"] in (None, True)


def test_two_runs_that_disagree_about_the_box_format_are_not_the_same(tmp_path: Path) -> None:
    record(tmp_path, "boxes", name="before")
    record(tmp_path, "boxes", CODE.replace('"XYXY"', '"XYWH"'), name="after")
    with audit.open(tmp_path / "lineage") as store:
        assert store.diff("before", "after").first_divergent_stage == {"load": 2}
        assert store.trace("after", index=0).value(0)["boxes"].format.value == "XYWH"
        replay = store.replay("before")
        assert {one.reason for one in replay.different} == {"code changed"}


def test_a_stage_that_only_changes_the_meaning_has_a_payload_of_its_own(tmp_path: Path, write_pipeline: Any) -> None:
    code = tmp_path / "boxes_in_dict.py"
    code.write_text(
        "import torch\nfrom torch.utils.data import Dataset\nfrom torchvision import tv_tensors\n"
        "from torchvision.transforms import v2\n"
        "def mean_xywh(item):\n"
        "    boxes = item['boxes'].as_subclass(torch.Tensor)\n"
        "    return {'boxes': tv_tensors.BoundingBoxes(boxes, format='XYWH', canvas_size=(32, 48))}\n"
        "class Boxes(Dataset):\n"
        "    def __init__(self):\n        self.transform = mean_xywh\n"
        "    def __len__(self):\n        return 2\n"
        "    def __getitem__(self, n):\n"
        "        boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4 + n]], format='XYXY', canvas_size=(32, 48))\n"
        "        return self.transform({'boxes': boxes})\n"
        "def dataset():\n    return Boxes()\n"
    )
    audit.run(f"{code}:dataset", store=tmp_path / "lineage", capture="full", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        trace = store.trace(index=0)
        assert [trace.value(stage)["boxes"].format.value for stage in (0, 1)] == ["XYXY", "XYWH"]
        assert [row["changed"] for row in trace.stages][1] is True


def test_an_address_in_an_error_is_no_difference(tmp_path: Path) -> None:
    text = CODE.replace(
        "return MAKERS[KIND](index), 0",
        """if index:
            raise ValueError(f'cannot read {object()}')
        return index, 0""",
    )
    record(tmp_path, "ordered", text)
    with audit.open(tmp_path / "lineage") as store:
        assert store.sql("SELECT count(*) FROM failures").fetchone() == (1,)
        replay = store.replay()
        assert (replay.checked, replay.identical) == (2, 2)


def test_a_tv_tensor_that_a_model_is_given_has_the_digest_of_its_stage(tmp_path: Path, pictures: Any) -> None:
    code = tmp_path / "pipeline_of_tv_images.py"
    code.write_text(
        "import torch\nfrom torch import nn\nfrom torchvision.transforms import v2\n"
        "transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])\n"
        "def model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 18 * 24, 3))\n"
    )
    audit.run(pictures(4), pipeline=code, model=f"{code}:model", store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        query = (
            "SELECT count(*) FROM predictions p JOIN stage_outputs s USING (run_id, epoch, index, visit) "
            "WHERE s.name = 'ToDtype' AND s.mode = 'tv_tensors.Image' AND s.digest = p.input_digest"
        )
        assert store.sql(query).fetchone() == (4,)
