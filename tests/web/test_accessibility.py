"""No page violates a rule of axe-core, light or dark, on a phone or a desk."""

from __future__ import annotations

import json
import os
import urllib.request
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from webstores import ROOT

pytestmark = pytest.mark.browser

#: `make browser` puts it there; it is not part of the repository.
AXE = Path(os.environ.get("AXE_CORE", ROOT / "out" / "axe-core" / "axe.min.js"))


#: Rules that hold are left out in the browser: Playwright checks each value that it hands over, which takes seconds.
COMPLAINTS = """async options => (await axe.run(document, options)).violations.flatMap(
    one => one.nodes.map(node => `${one.id}: ${node.html.slice(0, 200)}`))"""
#: The rules about colours: what else there is to say of a page, its light form says too.
COLOURS = ["color-contrast", "link-in-text-block"]


def pages(site: str) -> list[str]:
    with urllib.request.urlopen(site + "?format=json") as answer:
        known = {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}
    both = f"a={known['photos']}&b={known['nearest']}"
    photos, training = f"run/{known['photos']}", f"run/{known['training']}"
    return [
        *("", photos, training, f"{photos}/gallery", f"{training}/gallery?where=", f"{photos}/trace/28"),
        *(f"{photos}/trace/28?order=loss&where=", f"{training}/training", f"compare?{both}", f"{photos}/checks"),
        f"{training}/gallery?where=&stage=1&filter=%7B%22label%22:%7B%22in%22:[1,2]%7D%7D",
        *(f"compare/stages?{both}&index_a=28&index_b=28", "sql?q=FROM+runs", "sql?q=nope", "nothing-here"),
        f"{training}/trace/28",
    ]


def test_no_page_violates_a_rule(browser: Any, gallery_site: str) -> None:
    if not AXE.exists():
        pytest.skip(f"no axe-core at {AXE}: make browser")
    context = browser.new_context(bypass_csp=True, reduced_motion="reduce")
    page = context.new_page()
    found = []
    for path in pages(gallery_site):
        page.goto(gallery_site + path)
        page.wait_for_load_state("networkidle")
        found += violations(page, path)
    page.goto(gallery_site + pages(gallery_site)[5])
    page.get_by_title("look at the exact values").first.click()
    page.locator(".viewer[data-ready]").wait_for()
    found += violations(page, "the viewer")
    context.close()
    assert found == []


def violations(page: Any, path: str) -> list[str]:
    """Return what axe-core complains of, light and dark, on a phone and a desk."""
    page.add_script_tag(content=AXE.read_text())
    found = []
    for width, scheme in product((390, 1280), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        options = {"resultTypes": ["violations"]} | ({"runOnly": COLOURS} if scheme == "dark" else {})
        found += [f"{path}, {width} px, {scheme}: {one}" for one in page.evaluate(COMPLAINTS, options)]
    return found
