"""Whatever one does, the page shows within 100 ms that it is doing it.

Time is counted in frames, of which an idle machine shows 60 a second: on a busy one they come as late as all else does.
"""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

import pytest

pytestmark = pytest.mark.browser

#: The frames of 100 ms.
MOST_FRAMES = 6
#: Runs an action and gives the number of frames until an element can be seen.
MEASURE = """(selector) => new Promise((done) => {
    let frames = 0;
    { ACTION }
    const look = () => {
        const seen = [...document.querySelectorAll(selector)].some((one) => one.checkVisibility({ visibilityProperty: true }));
        if (seen || frames > 300) done(frames);
        else { frames += 1; requestAnimationFrame(look); }
    };
    look();
})"""
BRUSH = """const svg = document.querySelector('.brush'), box = svg.getBoundingClientRect(); svg.setPointerCapture = () => {};
    for (const [type, x] of [['pointerdown', 0.2], ['pointermove', 0.6], ['pointerup', 0.6]])
        svg.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerId: 1, clientX: box.left + x * box.width, clientY: box.top + 9 }));"""


def at_once(page: Any, action: str, selector: str) -> None:
    frames = page.evaluate(MEASURE.replace("ACTION", action), selector)
    assert frames <= MOST_FRAMES, f"{selector} came after {frames} frames"


@pytest.fixture(scope="module")
def run(gallery_site: str) -> str:
    with urllib.request.urlopen(gallery_site + "?format=json") as answer:
        known = {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}
    return f"{gallery_site}run/{known['photos']}"


def test_replay_says_that_it_runs(page: Any, run: str) -> None:
    page.goto(f"{run}/trace/5")
    at_once(
        page, "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'r', bubbles: true }))", ".doing-bar"
    )


def test_a_brush_marks_its_bars(page: Any, run: str) -> None:
    page.goto(f"{run}/gallery?where=")
    page.locator(".brush rect").first.wait_for()
    at_once(page, BRUSH, ".brush rect.on")
    page.get_by_role("button", name=re.compile("BETWEEN")).first.wait_for()


def test_leaving_for_another_page_says_so_until_it_comes(page: Any, run: str) -> None:
    page.goto(f"{run}/gallery?where=")
    at_once(page, "window.dispatchEvent(new Event('beforeunload'));", ".doing-bar")
    page.evaluate("window.dispatchEvent(new Event('pageshow'))")
    assert page.locator(".doing-bar").count() == 0


def test_selecting_and_tagging_show_at_once(page: Any, run: str) -> None:
    page.goto(f"{run}/gallery?where=")
    page.locator(".tile").first.wait_for()
    at_once(page, "document.querySelector('.pick').click()", "#picked")
    page.locator("#picked input[name=tag]").fill("slow")
    at_once(page, "document.querySelector('#picked button[value=add]').click()", ".doing-bar")
    page.locator("#picked-answer").get_by_text("slow").wait_for()
    page.locator("#picked button[value=remove]").click()
    page.locator("#picked-answer").get_by_text(re.compile("Removed")).wait_for()
