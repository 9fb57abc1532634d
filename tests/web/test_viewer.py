"""Click a picture to see its exact values: zoom, pan, channels, two stages against each other; stored, recomputed, or absent."""

from __future__ import annotations

import json
import re
import struct
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from web_server import serve_store

from audit.api import Store
from audit.report.html.exact_values import NotAPicture, pack, picture_values

pytestmark = pytest.mark.browser


def runs(site: str) -> dict[str, str]:
    with urllib.request.urlopen(site + "?format=json") as answer:
        return {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}


def ready(page: Any, text: str) -> None:
    """Wait until the viewer shows values of this description."""
    page.locator(f'.viewer[data-ready*="{text}"]').wait_for(timeout=90_000)


def number(page: Any) -> int:
    return int(page.locator(".viewer .tools .dim").inner_text().removesuffix(" %"))


def test_the_values_under_the_pointer_are_the_stored_ones(page: Any, gallery_site: str, photos: Path) -> None:
    run = runs(gallery_site)["photos"]
    page.goto(f"{gallery_site}run/{run}/trace/28")
    page.get_by_title("look at the exact values").last.click()
    ready(page, "float32 128x128")
    with Store(str(photos)) as store:
        exact = np.asarray(store.trace(run, index=28).value(6, numpy_only=True))
    middle = page.locator(".pane").first.bounding_box()
    page.mouse.move(middle["x"] + middle["width"] / 2 + 1, middle["y"] + middle["height"] / 2 + 1)
    said = page.locator(".pixel").inner_text().split()
    x, y = int(said[1]), int(said[3])
    assert [float(text) for text in said[4:7]] == pytest.approx(exact[:, y, x].tolist(), rel=1e-5)
    page.get_by_label("channel").select_option("2 blue")
    before = number(page)
    page.get_by_title("zoom in (+)").click()
    assert number(page) > before
    page.keyboard.press("1")
    assert number(page) == 100
    page.mouse.move(middle["x"] + 50, middle["y"] + 50)
    page.mouse.wheel(0, -300)
    page.wait_for_function("() => !document.querySelector('.viewer .tools .dim').textContent.startsWith('100 ')")


def test_two_stages_side_by_side_blended_and_subtracted(page: Any, gallery_site: str) -> None:
    page.goto(f"{gallery_site}run/{runs(gallery_site)['photos']}/trace/28")
    page.get_by_title("look at the exact values").nth(3).click()
    page.get_by_label("show").select_option("side by side")
    ready(page, "uint8 128x128, uint8 ")
    assert page.locator(".pane:visible").count() == 2
    page.get_by_label("show").select_option("blended")
    page.get_by_label("A to B").fill("0.8")
    page.get_by_label("show").select_option("difference")
    page.get_by_text("sampled at A's pixels because the sizes differ").wait_for()
    page.get_by_label("picture B").select_option("4 ToImage")
    page.get_by_text("no difference").wait_for()
    page.keyboard.press("Escape")
    page.locator(".viewer").wait_for(state="detached")
    assert page.evaluate("document.activeElement.classList.contains('view')")


def test_values_that_were_not_stored_are_recomputed_with_progress(page: Any, gallery_site: str) -> None:
    page.goto(f"{gallery_site}run/{runs(gallery_site)['digests']}/trace/3")
    page.get_by_text("click to recompute").nth(2).click()
    page.locator(".viewer progress").wait_for()
    page.get_by_text(re.compile(r"Recomputing this sample from its source.* \d+ s")).wait_for()
    ready(page, "uint8 ")


def test_where_pipelines_must_not_run_the_preview_is_shown_and_why(page: Any, photos: Path) -> None:
    with serve_store(photos, "replay=False") as address:
        page.goto(f"{address}run/{runs(address)['nearest']}/trace/3")
        page.get_by_title("look at the exact values").nth(2).click()
        page.get_by_text("this server does not run pipelines").wait_for()
        ready(page, "uint8 ")
        page.goto("about:blank")  # before the server ends: what it still works on would fail


def test_a_picture_of_two_runs_opens_with_its_difference(page: Any, gallery_site: str) -> None:
    known = runs(gallery_site)
    page.goto(f"{gallery_site}compare/stages?a={known['photos']}&b={known['nearest']}&index_a=28&index_b=28")
    page.get_by_title("look at the exact differences").first.click()
    page.get_by_text(re.compile("largest difference")).wait_for(timeout=90_000)


def test_numbers_of_another_type_that_show_the_same_are_no_difference(page: Any, gallery_site: str) -> None:
    page.goto(f"{gallery_site}run/{runs(gallery_site)['photos']}/trace/3")
    stages = page.locator(".stage strong").all_inner_texts()
    page.get_by_title("look at the exact values").nth(stages.index("ToDtype")).click()
    page.get_by_label("show").select_option("difference")
    page.get_by_label("picture B").select_option(index=stages.index("ToImage"))
    page.get_by_text("no difference in the 255 shown levels: A and B have different types").wait_for(timeout=90_000)


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (5, 7, 3), (1, 3, 5, 7), (12, 40, 50)])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "float32", "int64"])
def test_every_layout_is_height_width_channels(shape: tuple[int, ...], dtype: str) -> None:
    values = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)
    found = picture_values((values, {"label": 3}))
    assert found.ndim == 3
    assert found.shape[2] in (1, 3, 12)
    packed = pack(found)
    (length,) = struct.unpack("<I", packed[:4])
    head = json.loads(packed[4 : 4 + length])
    assert (4 + length) % 8 == 0
    again = np.frombuffer(packed[4 + length :], head["stored"]).reshape(head["shape"])
    assert np.array_equal(again.astype("float64"), found.astype("float64"))


def test_what_is_not_a_picture_says_so() -> None:
    assert picture_values(Image.new("P", (4, 4))).shape == (4, 4, 3)
    with pytest.raises(NotAPicture, match="not a picture"):
        picture_values({"words": ["a", "b"]})
