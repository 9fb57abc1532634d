"""Runs with nothing to show, with one sample, with failures alone, without a model, and with a thousand classes of long names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from webstores import begin, write_samples

from audit.report.html.report_file import report
from audit.store.read.reader import Reader
from audit.web.app import build

LONG = "a class whose name is much longer than any column of a table, and goes on, "
RUNS = ("nothing", "one", "failures", "no model", "thousand")
PAGES = (
    *("", "/gallery", "/gallery?where=", "/gallery/block?where=", "/gallery/filters?where=", "/gallery/count?where="),
    *("/checks", "/map", "/map/points", "/training", "/training/series", "/curves", "/panel/counts", "/panel/timings"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, TestClient]]:
    """A store of odd runs, and a client of its pages."""
    place = tmp_path_factory.mktemp("odd") / "lineage"
    begin(place, "nothing").finish("complete")
    writer = begin(place, "one", classes=["cat", "dog"])
    write_samples(writer, [{"label": 0, "label_name": "cat", "predicted": 1, "predicted_name": "dog"}])
    writer.finish("complete")
    writer = begin(place, "failures", classes=["cat", "dog"])
    write_samples(writer, [{"label": 1, "label_name": "dog", "error": "cannot be read"} for _ in range(4)])
    writer.finish("complete")
    writer = begin(place, "no model")
    write_samples(writer, [{"label": 0, "label_name": "cat"} for _ in range(4)])
    writer.finish("complete")
    names = [f"{LONG}{n}" for n in range(1000)]
    writer = begin(place, "thousand", classes=names)
    write_samples(writer, [{"label": n, "predicted": (7 * n) % 1000, "preview": None} for n in range(1000)])
    writer.finish("complete")
    with TestClient(build(str(place)), base_url="http://localhost") as client:
        yield str(place), client


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", RUNS)
def test_every_page_answers(site: tuple[str, TestClient], name: str, page: str) -> None:
    answer = site[1].get(f"/run/{name}{page}")
    assert answer.status_code == 200, answer.text[:500]
    if page != "/map/points":
        assert "Traceback" not in answer.text
        assert "None" not in answer.text.replace("None of", "").replace('<p class="dim">None.</p>', "")


@pytest.mark.parametrize("name", RUNS)
def test_every_run_has_a_report_and_can_be_compared(site: tuple[str, TestClient], name: str) -> None:
    place, client = site
    answer = client.get("/compare/result", params={"a": "one", "b": name})
    # Where nothing was recorded there is nothing to compare, and the page says so.
    assert answer.status_code == 200 if name != "nothing" else "no samples" in answer.text
    with Reader(place) as reader:
        assert len(report(reader, name, baseline="one" if name != "nothing" else None)) < 2_000_000


def test_a_failed_sample_has_a_trace(site: tuple[str, TestClient]) -> None:
    shown = site[1].get("/run/failures/trace/2").text
    assert "cannot be read" in shown
    assert site[1].get("/run/failures/trace/2/similar").status_code == 200


def test_a_run_without_samples_says_so(site: tuple[str, TestClient]) -> None:
    assert "This run holds no sample." in site[1].get("/run/nothing/panel/counts").text
    assert "it was recorded without a model" in site[1].get("/run/no model/panel/counts").text


def test_runs_of_other_classes_are_another_group(tmp_path: Path) -> None:
    """Two datasets may have one name, such as `__main__.Photos`."""
    facts = {"dataset": "__main__.Photos", "arch": "Sequential", "task": "classification", "tags": {"\u202e": "odd"}}
    for name, classes in (("few", 2), ("many", 300), ("few again", 2)):
        begin(tmp_path, name, classes=[f"{n} \u200d" for n in range(classes)], **facts).finish("complete")
    with TestClient(build(str(tmp_path)), base_url="http://localhost") as client:
        found = client.get("/?format=json").json()
        assert [(group["classes"], len(group["runs"])) for group in found["groups"]] == [(2, 2), (300, 1)]
        names = {run["run_id"]: run["name"] for run in found["runs"]}
        assert (names[found["a"]], names[found["b"]]) == ("few", "few again")
        assert "a run of other data" in client.get("/run/many").text
        page = client.get("/").text
        assert "300 classes" in page
        assert 'value="\u202e=odd"' in page, "the value that the filter looks for"
        assert "\\u202e=odd</option>" in page


def test_the_history_of_a_sample_is_its_own(tmp_path: Path) -> None:
    """The first picture of the training and that of the validation have the same index."""
    writer = begin(tmp_path, "two loaders", classes=["cat", "dog"])
    samples = [
        {
            "index": 0,
            "epoch": epoch,
            "visit": visit,
            "split": split,
            "source": f"{split}/0.png",
            "label": visit,
            "predicted": 0,
        }
        for epoch in range(3)
        for visit, split in enumerate(("train", "val"))
    ]
    write_samples(writer, samples)
    run = writer.finish("complete").run_id
    with TestClient(build(str(tmp_path)), base_url="http://localhost") as client:
        for visit in (0, 1):
            history = client.get(f"/run/{run}/trace/0?epoch=2&visit={visit}&format=json").json()["history"]
            assert [(row["epoch"], row["visit"]) for row in history] == [(0, visit), (1, visit), (2, visit)]
