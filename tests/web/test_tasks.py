"""Runs without one class for each sample: every page makes sense, and boxes, masks and heat maps lie over the pictures."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from task_store import record_tasks
from web_server import serve_store

from audit.api import Store
from audit.lineage.heat_maps import heat_maps
from audit.lineage.small_pictures import SmallPictures, distances
from audit.web.app import build

pytestmark = pytest.mark.browser

TASKS = ("detection", "segmentation", "layers", "regression", "multilabel")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of each task."""
    return record_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def client(tasks: Path) -> Iterator[TestClient]:
    with TestClient(build(str(tasks)), base_url="http://localhost") as opened:
        yield opened


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("page", ["", "/gallery", "/gallery/block?where=", "/trace/1", "/curves", "/map", "/checks"])
def test_every_page_of_every_task_answers(client: TestClient, tasks: Path, name: str, page: str) -> None:
    with Store(str(tasks)) as store:
        run = store.run(name).run_id
    answer = client.get(f"/run/{run}{page}")
    assert answer.status_code == 200
    assert "nan" not in answer.text.lower().split()


def counts(client: TestClient, name: str) -> Any:
    return client.get(f"/run/{name}?format=json").json()["counts"]


def test_figures_are_those_of_the_task(client: TestClient, tasks: Path) -> None:
    boxes = counts(client, "detection")
    assert boxes["confidence"] == boxes["loss"] == []
    assert boxes["task"]["figures"] == {
        "objects": 5,
        "found": 2,
        "missed": 3,
        "false alarms": 4,
        "recall": 0.4,
        "precision": pytest.approx(1 / 3),
    }
    with Store(str(tasks)) as store:
        row = store.sql("SELECT avg(iou) FROM per_mask_class", run="segmentation").fetchone()
        assert row is not None
        assert counts(client, "segmentation")["task"]["figures"]["mean IoU"] == pytest.approx(row[0])
        off = store.sql("SELECT avg(abs(residual[1])) FROM residuals", run="regression").fetchone()
        assert off is not None
        assert counts(client, "regression")["task"]["figures"]["mean absolute error"] == pytest.approx(off[0])
    labels = counts(client, "multilabel")
    assert [row[1] for row in labels["task"]["rows"]] != []
    assert labels["task"]["figures"]["labels"] == 3
    assert len(client.get("/run/multilabel/curves?format=json").json()["curves"]) == 3
    assert counts(client, "layers")["task"] is None


def test_runs_of_another_task_are_another_group(client: TestClient) -> None:
    found = client.get("/?format=json").json()
    assert all(len({run["task"] for run in group["runs"]}) == 1 for group in found["groups"])
    tasks = {run["run_id"]: (run["dataset"], run["task"]) for run in found["runs"]}
    assert found["a"] is None or tasks[found["a"]] == tasks[found["b"]]
    # There is no run to compare a detector with: none is chosen.
    assert "a run of other data" in client.get("/run/detection").text


def test_heat_maps_are_the_recorded_values(tasks: Path, client: TestClient) -> None:
    with Store(str(tasks)) as store:
        trace = store.trace("layers", index=1)
        found = {one.name: one for one in heat_maps(trace)}
        assert next(iter(found)) == "0.2 Grad-CAM"
        (mean,) = store.sql(
            "SELECT mean FROM activations WHERE layer = '0.3' AND port = 'output.0' AND direction = 'forward' AND index = 1"
        ).fetchall()[0]
        assert float(found["0.3 output.0"].values.mean()) == pytest.approx(mean, rel=1e-4)
        assert found["0.3 output.0"].values.shape == (32, 48)
        masks = heat_maps(store.trace("segmentation", index=1))
        assert [one.name for one in masks] == ["mask"]
        assert set(np.unique(masks[0].values)) <= {0.0, 1.0}
        assert heat_maps(store.trace("regression", index=1)) == []
    answer = client.get("/run/layers/heat/1/0")
    (length,) = struct.unpack("<I", answer.content[:4])
    assert json.loads(answer.content[4 : 4 + length])["shape"] == [32, 48, 1]
    assert client.get("/run/layers/heat/1/99").status_code == 404


def test_boxes_lie_over_tiles_and_in_the_viewer(page: Any, tasks: Path) -> None:
    with serve_store(tasks) as address:
        page.goto(f"{address}run/detection/gallery?where=")
        page.get_by_text("2 wanted, 1 missed, 1 false").first.wait_for()
        over = page.locator(".tile .over").nth(1)
        over.wait_for()
        page.wait_for_function("one => one.complete && one.naturalWidth === 96", arg=over.element_handle())
        page.get_by_label("boxes and masks").uncheck()
        over.wait_for(state="hidden")
        page.goto(f"{address}run/detection/trace/1")
        page.get_by_title("look at the exact values").nth(1).click()
        page.locator('.viewer[data-ready*="192x128"]').wait_for()
        blue = """() => { const pane = document.querySelector('.viewer .pane'), all = pane.getContext('2d').getImageData(0, 0, pane.width, pane.height).data;
            let found = 0; for (let n = 0; n < all.length; n += 4) found += all[n] === 10 && all[n + 1] === 132 && all[n + 2] === 255; return found; }"""
        assert page.evaluate(blue) > 200
        page.locator(".viewer").get_by_label("boxes and masks").uncheck()
        assert page.evaluate(blue) == 0
        page.keyboard.press("Escape")
        page.goto(f"{address}run/layers/trace/1")
        page.get_by_role("button", name="heat map of 0.3 output.0").first.click()
        page.locator('.viewer[data-ready*="float32 48x32"]').wait_for()
        assert page.get_by_label("show").input_value() == "blend"
        page.get_by_label("show").select_option("one picture")
        pane = page.locator(".viewer .pane").first.bounding_box()
        page.mouse.move(pane["x"] + pane["width"] / 2, pane["y"] + pane["height"] / 2)
        assert page.locator(".pixel").inner_text().startswith("x ")
        page.keyboard.press("Escape")
        page.get_by_role("heading", name="Pictures that look alike").wait_for()
        assert page.locator(".near .tile").count() == 1, "the same picture; the others do not look like it"
        page.goto("about:blank")  # before the server ends: what the page still loads would fail


def test_the_same_file_and_similar_pictures_of_other_runs(client: TestClient) -> None:
    """The first piece of the flower is nearest to its own copies in other runs; it is listed once."""
    found = client.get("/run/regression/trace/1/similar?format=json").json()
    sources = [one["source"] for one in found["alike"]]
    assert found["alike"][0]["distance"] == 0
    assert len(sources) == len(set(sources))
    assert found["looked"]["runs"] == 5


def test_pictures_of_the_same_grey_do_not_look_alike() -> None:
    """A slope of grey, itself a little darker, one of the same levels in other places, its negative, and a plain grey."""
    slope = np.linspace(60, 200, 192)
    others = [slope, slope - 10, np.random.default_rng(0).permutation(slope), 260 - slope, np.full(192, 130)]
    pictures = SmallPictures(np.zeros((5, 3), np.int64), np.array(others, np.uint8), 5)
    found = distances(pictures, np.array(slope, np.uint8))
    assert found[0] == 0
    assert found[1] < 1
    assert np.isinf(found[2:]).all()
    plain = SmallPictures(np.zeros((2, 3), np.int64), np.array([np.full(192, 125), np.full(192, 90)], np.uint8), 2)
    assert distances(plain, np.full(192, 130, np.uint8)).tolist() == [5.0, np.inf]


@pytest.mark.parametrize(
    ("name", "tile", "verdict"),
    [
        ("multilabel", "0, 1 → none", "wanted <strong>0, 1</strong> · predicted"),
        ("segmentation", "mean IoU", "<strong>mean IoU"),
        ("detection", "2 wanted, 1 missed, 1 false", "2 wanted, 1 missed, 1 false"),
        ("regression", "1 → -0", "wanted <strong>1</strong> · predicted"),
    ],
)
def test_tiles_and_pages_say_what_was_wanted_and_found(client: TestClient, name: str, tile: str, verdict: str) -> None:
    samples = client.get(f"/run/{name}/gallery/block?where=&format=json").json()["samples"]
    said = {sample["index"]: sample["said"] for sample in samples}
    assert said[1].startswith(tile)
    assert verdict in client.get(f"/run/{name}/trace/1").text


def test_several_labels_are_marked_among_the_probabilities(client: TestClient) -> None:
    bars = client.get("/run/multilabel/trace/1?format=json").json()["bars"]
    assert {bar["number"] for bar in bars if bar["is_label"]} == {0, 1}
    assert not any(bar["is_predicted"] for bar in bars)


def test_a_stage_that_scales_looks_no_brighter(client: TestClient) -> None:
    """A preview of floats is stretched when it is stored: 0.961 as white. Pages show it as bright as it is."""
    shown = []
    for address in ("2?whole=1", "3?whole=1", "2", "3"):
        answer = client.get(f"/run/regression/picture/1/{address}")
        with Image.open(io.BytesIO(answer.content)) as picture:
            shown.append(np.asarray(picture.convert("L"), np.float32).mean())
    assert max(shown) - min(shown) < 1


def test_many_pictures_are_looked_at_on_request_alone(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.web.pages.map._MOST_UNASKED", 3)
    unasked = client.get("/run/regression/trace/1/similar")
    assert "Look for similar pictures" in unasked.text
    assert "look alike" not in unasked.text
    assert "look alike" in client.get("/run/regression/trace/1/similar?all=1").text
