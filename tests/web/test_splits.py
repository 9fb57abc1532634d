"""A training with two loaders that number their samples alike and have pipelines of their own: each page knows which is whose."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from webstores import begin, rows, write_samples

import audit
from audit.web.app import build

FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


class Brightness(torch.nn.Module):
    """Says `light` for every picture that is not black."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        light = (x.mean(dim=(1, 2, 3)) > 0.01).float()
        return torch.stack([1 - light, light], 1) * 4


def make_pictures(folder: Path, levels: dict[str, list[int]]) -> Path:
    for name, many in levels.items():
        (folder / name).mkdir(parents=True)
        for number, level in enumerate(many):
            Image.new("L", (16, 16), level).save(folder / name / f"{folder.name}-{number}.png")
    return folder


def train(store: Path, name: str, train_on: Path, test_on: Path) -> None:
    with audit.record(store, name=name, capture="preview") as run:
        ours = v2.Compose([v2.RandomHorizontalFlip(), *FLOATS])
        theirs = v2.Compose([v2.Resize(8), *FLOATS])
        loaders = [
            run.loader(DataLoader(ImageFolder(str(train_on), ours), 2), split="train"),
            run.loader(DataLoader(ImageFolder(str(test_on), theirs), 2), split="val"),
        ]
        model = run.model(Brightness())
        for _ in run.epochs(2):
            for loader in loaders:
                for x, _ in loader:
                    model(x)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    place = tmp_path_factory.mktemp("splits")
    mine = make_pictures(place / "mine", {"dark": [0, 0], "light": [200, 210]})
    test = make_pictures(place / "test", {"dark": [0, 120, 130], "light": [220]})
    other = make_pictures(place / "other", {"dark": [0], "light": [255]})
    store = place / "lineage"
    train(store, "first", mine, test)
    train(store, "second", mine, test)
    train(store, "elsewhere", other, test)
    with TestClient(build(str(store)), base_url="http://localhost") as opened:
        yield opened


def test_the_run_shows_the_split_of_its_accuracy_and_the_others_on_request(client: TestClient) -> None:
    shown = client.get("/run/first").text
    assert "accuracy of val" in shown
    assert "<option selected>val</option>" in shown
    counts = client.get("/run/first?format=json").json()
    assert (counts["run"]["accuracy"], counts["counts"]["accuracy"], counts["counts"]["graded"]) == (0.5, 0.5, 4)
    assert client.get("/run/first?format=json&split=train").json()["counts"]["accuracy"] == 1.0
    assert client.get("/run/first?format=json&split=").json()["counts"]["graded"] == 8
    assert client.get("/run/first/curves?format=json").json()["curves"][0]["positives"] == 3
    home = client.get("/").text
    assert "50.00%" in home
    assert "of val" in home


def test_the_gallery_begins_with_the_mistakes_of_that_split(client: TestClient) -> None:
    found = client.get("/run/first/gallery?format=json").json()
    assert [one["sql"] for one in found["filters"]] == ["split = 'val'"]
    assert sorted(one["source"] for one in found["samples"]) == ["dark/test-1.png", "dark/test-2.png"]
    # What the form sends without a filter is meant: both splits.
    assert len(client.get("/run/first/gallery?format=json&where=&filter=").json()["samples"]) == 8
    shown = client.get("/run/first/panel/counts?epoch=1").text
    assert "split%22%3A+%7B%22in%22%3A+%5B%22val" in shown  # cells lead to their own samples alone


def test_stages_say_whose_they_are(client: TestClient) -> None:
    timings = client.get("/run/first?format=json").json()["timings"]
    splits = {row["name"]: row["splits"] for row in timings}
    assert (splits["load"], splits["RandomHorizontalFlip"], splits["Resize"]) == ([], ["train"], ["val"])
    assert "Resize (val)" in client.get("/run/first/gallery").text


def test_runs_of_other_folders_are_another_group(client: TestClient) -> None:
    groups = client.get("/?format=json").json()["groups"]
    assert [[run["name"] for run in group["runs"]] for group in groups] == [["elsewhere"], ["second", "first"]]
    assert [len(group["roots"]) for group in groups] == [2, 2]


def test_a_finding_leads_to_its_own_sample(tmp_path: Path) -> None:
    """The first picture of the training and that of the validation have the same index."""
    loaders = [{"split": "train"}, {"split": "val"}]
    writer = begin(tmp_path, "two loaders", recipe={"loaders": loaders})
    of_run = {"index": 0, "epoch": 0}
    samples = [of_run | {"visit": n, "split": one["split"], "source": f"{n}.png"} for n, one in enumerate(loaders)]
    write_samples(writer, samples)
    found = {"run_id": writer.run.run_id, "check_name": "blank", "severity": "error", "status": "fail", "index": 0}
    writer.append({"findings": rows("findings", [found | {"message": f"{n}", "source": f"{n}.png"} for n in (0, 1)])})
    run = writer.finish("complete").run_id
    with TestClient(build(str(tmp_path)), base_url="http://localhost") as client:
        for page in ("", "/checks"):
            shown = client.get(f"/run/{run}{page}").text
            assert f"/run/{run}/trace/0?epoch=0&amp;visit=1" in shown
        groups = client.get(f"/run/{run}/checks?format=json").json()["groups"]
        assert [(group["samples"], group["where"]) for group in groups] == [
            (2, "(epoch, index, visit) IN ((0, 0, 0), (0, 0, 1))")
        ]


def test_small_pictures_are_as_bright_as_their_values(client: TestClient) -> None:
    shown = client.get("/run/first/gallery?format=json&where=source+=+'dark/test-1.png'").json()
    (sample,) = [one for one in shown["samples"] if one["epoch"] == 1]
    last = max(stage["stage"] for stage in shown["stages"])
    answer = client.get(f"/run/first/picture/{sample['index']}/{last}?epoch=1&visit={sample['visit']}")
    with Image.open(io.BytesIO(answer.content)) as picture:
        extremes = picture.convert("L").getextrema()
    assert list(extremes) == pytest.approx([120, 120], abs=3)
