"""Filters of the gallery: brushed and ticked in a browser, in the address, and as the SQL condition that they are."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from webstores import begin, write_samples

from audit.api import Store
from audit.errors import UsageError
from audit.lineage.queries.filters import facets, parse_filters, stage_facets
from audit.store.read.reader import Reader
from audit.web.app import build


@pytest.mark.browser
def test_brush_a_histogram_and_tick_a_class(page: Any, gallery_site: str, photos: Path) -> None:
    with urllib.request.urlopen(gallery_site + "?format=json") as answer:
        run = {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}["training"]
    page.goto(f"{gallery_site}run/{run}/gallery?where=&stage=1")
    brush = page.locator("[data-facet=confidence] .brush")
    brush.scroll_into_view_if_needed()
    box = brush.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20, steps=3)
    page.mouse.up()
    page.wait_for_url(re.compile("filter=.*confidence"))
    page.get_by_label("cat", exact=False).first.check()
    page.wait_for_url(re.compile("label"))
    parts = page.locator(".chip code").all_inner_texts()
    assert len(parts) == 2
    assert parts[1] == "label = 2"
    with Store(str(photos)) as store:
        picked = " AND ".join(parts)
        count = store.sql(f"SELECT count(*) FROM lineage WHERE run_id = ? AND epoch = 2 AND {picked}", parameters=[run])
        page.get_by_text(re.compile(rf"^\s*{count.fetchone()[0]} samples")).wait_for()
    fired = page.locator("[data-facet='drew:1:height'] [data-bound=low]")
    fired.fill("10")
    fired.press("Enter")
    page.wait_for_url(re.compile("drew"))
    page.locator(".tile").first.wait_for()
    page.locator(".tile").first.click()
    page.wait_for_url(re.compile("/trace/.*filter="))
    page.get_by_text("back to the gallery").click()
    page.wait_for_url(re.compile("gallery.*filter="))
    page.get_by_role("button", name="Clear all").click()
    page.get_by_text("120 samples").wait_for()


HOSTILE = 'it\'s <b>~/"angle"</b>'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("filters") / "lineage"
    writer = begin(place, "one", classes=["a'b", "b"])
    samples: list[dict[str, Any]] = [
        {
            "label": n % 2,
            "predicted": n % 3 % 2,
            "confidence": n / 40,
            "loss": float("nan") if n == 3 else 10.0 ** (n % 5),
            "params": json.dumps({HOSTILE: n / 10, "fired": n % 4 == 0}),
            "split": "it's" if n % 2 else None,
        }
        for n in range(40)
    ]
    write_samples(writer, [*samples, {"error": "OSError: broken", "label": 1}])
    writer.finish("complete")
    return place


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[TestClient]:
    with TestClient(build(str(place)), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("confidence", [0.25, 0.5], 11),
        ("confidence", [None, 0.1], 5),
        ("loss", [1.0, 10.0], 16),
        ("label", {"in": [0]}, 20),
        ("split", {"in": ["it's"]}, 20),
        ("split", {"in": [None]}, 21),
        ("status", {"in": ["failed"]}, 1),
        ("correct", {"in": [True, False]}, 40),
        (f"drew:1:{HOSTILE}", [1.0, 2.0], 11),
        ("drew:1:fired", {"in": ["true"]}, 10),
        ("stage:1:mean", [99.0, None], 40),
    ],
)
def test_a_filter_picks_the_samples_that_its_condition_says(
    place: Path, client: TestClient, name: str, value: Any, expected: int
) -> None:
    text = json.dumps({name: value})
    with Store(str(place)) as store:
        condition = parse_filters(text)[0].condition(store.run().run_id)
        assert store.sql(f"SELECT count(*) FROM lineage WHERE {condition}").fetchone() == (expected,)
    asked = urlencode({"where": "", "filter": text, "format": "json"})
    assert client.get(f"/run/one/gallery/count?{asked}").json()["count"] == expected
    shown = client.get(f"/run/one/gallery?{urlencode({'where': '', 'filter': text})}")
    assert shown.status_code == 200
    assert "<b>~" not in shown.text


def test_every_finite_value_is_in_one_bar(place: Path) -> None:
    with Reader(str(place)) as reader:
        run = reader.run(None)
        found = {facet.name: facet for facet in [*facets(reader, run, 0), *stage_facets(reader, run, 0, 1)]}
    assert sum(found["confidence"].counts) == 40
    assert sum(found["loss"].counts) == 39
    assert sum(found[f"drew:1:{HOSTILE}"].counts) == 40
    assert dict(found["drew:1:fired"].values) == {"true": 10, "false": 30}
    assert dict(found["status"].values) == {"ok": 40, "failed": 1}
    for facet in found.values():
        assert facet.edges == sorted(set(facet.edges))
        assert len(facet.edges) <= 40


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{", '{"source": [0, 1]}', '{"loss": [null, null]}', '{"loss": [1e999, 2]}', '{"label": {"in": []}}'),
        *('{"stage:x:mean": [0, 1]}', '{"stage:0:digest": [0, 1]}', '{"label": {"in": [{}]}}', '{"drew:1:": [0, 1]}'),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_filters(text)
