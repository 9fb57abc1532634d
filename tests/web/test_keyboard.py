"""By keyboard alone: every action is reached, the focus is seen, and no page keeps it."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from web_server import serve_store
from webstores import begin, record_training, write_samples

from audit.store.maintain.embeddings import write_embeddings
from audit.store.read.reader import Reader

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run of 40 classes, and a training."""
    place = tmp_path_factory.mktemp("keyboard") / "lineage"
    writer = begin(place, "many", classes=[f"class {n}" for n in range(40)])
    samples = [{"label": n % 40, "predicted": (n % 40 + n // 80) % 40, "preview": None} for n in range(120)]
    write_samples(writer, samples)
    writer.finish("complete")
    record_training(place, samples=20, epochs=2)
    with serve_store(place) as address:
        yield address


def identity(site: str, name: str) -> str:
    with urllib.request.urlopen(site + "?format=json") as answer:
        return str({run["name"]: run["run_id"] for run in json.load(answer)["runs"]}[name])


#: What has the focus, and whether an outline or a stroke shows it.
FOCUS = """() => { const one = document.activeElement, style = getComputedStyle(one), cell = one.querySelector('rect');
    return [one.tagName, style.outlineStyle !== 'none' || Boolean(cell && getComputedStyle(cell).stroke !== 'none')]; }"""


@pytest.mark.parametrize("path", ["", "run/{}", "run/{}/gallery?where=", "run/{}/trace/3", "run/{}/training", "sql"])
def test_the_tab_key_reaches_the_end_and_every_focus_is_seen(page: Any, site: str, path: str) -> None:
    page.goto(site + path.format(identity(site, "training")))
    page.wait_for_load_state("networkidle")
    presses = 0
    while presses < 400:
        presses += 1
        page.keyboard.press("Tab")
        name, seen = page.evaluate(FOCUS)
        if name == "BODY":
            break
        assert seen, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    assert 5 < presses < 400, "the focus leaves the page at its end"


def test_tiles_are_moved_over_selected_and_opened(page: Any, site: str) -> None:
    page.goto(f"{site}run/{identity(site, 'training')}/gallery?where=&order=index")
    page.locator(".tile").nth(5).wait_for()
    page.keyboard.press("j")
    page.keyboard.press(" ")
    page.get_by_text("1 selected").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Shift+Space")
    page.get_by_text("3 selected").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/trace/2"))


def test_a_large_confusion_matrix_is_one_stop(page: Any, site: str) -> None:
    page.goto(f"{site}run/{identity(site, 'many')}")
    page.locator(".grid a").first.wait_for()
    assert page.locator(".grid a[tabindex='0']").count() == 1
    page.locator(".grid a[tabindex='0']").focus()
    place = "() => { const cell = document.activeElement.querySelector('rect'); return [cell.getAttribute('x'), cell.getAttribute('y')]; }"
    assert page.evaluate(place) == ["0", "0"]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(place) == ["1", "0"]
    page.keyboard.press("ArrowDown")
    assert page.evaluate(place) == ["1", "1"]
    assert page.locator(".grid a[tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("gallery"))


def test_points_of_a_chart_are_reached(page: Any, site: str) -> None:
    page.goto(f"{site}run/{identity(site, 'training')}/training")
    page.locator("#plot-loss canvas").wait_for()
    page.locator("#plot-loss canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "step 1" in page.locator("#plot-loss .readout").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/trace/"))


def test_samples_in_view_of_the_map(page: Any, tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "map", classes=["a", "b"])
    write_samples(writer, [{"label": n % 2, "predicted": 0, "preview": None} for n in range(9)])
    run = writer.finish("complete").run_id
    keys = np.array([[0, n, 0] for n in range(9)], np.int64)
    at = np.array([[n % 3, n // 3] for n in range(9)], np.float32)
    with Reader(str(place)) as reader:
        write_embeddings(reader, run, "logits", "pca", keys, at, at)
    with serve_store(place) as address:
        page.goto(f"{address}run/{run}/map")
        page.locator("#map[data-ready='9']").wait_for()
        page.locator("#map").focus()
        for _ in range(4):
            page.keyboard.press("+")
        page.keyboard.press("Enter")
        link = page.get_by_role("link", name="1 sample as a gallery")
        link.wait_for()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("gallery"))
        page.locator(".tile").wait_for()
        assert page.locator(".tile").count() == 1
        page.goto("about:blank")
