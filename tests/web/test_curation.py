"""Home page, tags, notes and exports: by clicking, by command and in SQL."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from web_server import serve_store
from webstores import begin, jpeg, write_samples

from audit.api import Store
from audit.cli.main import cli
from audit.errors import ClassMismatch
from audit.lineage.selection import write_selection
from audit.web.app import build

pytestmark = pytest.mark.browser


def runs(site: str) -> dict[str, str]:
    with urllib.request.urlopen(site + "?format=json") as answer:
        return {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}


def test_the_home_page_groups_searches_and_preselects(page: Any, gallery_site: str) -> None:
    page.goto(gallery_site)
    assert page.locator(".group").count() >= 2
    groups = page.locator(".group").filter(has=page.locator("input[name=a]:checked"))
    assert groups.count() == 1
    assert groups.locator("input[name=b]:checked").count() == 1
    page.get_by_label("search").fill("photos nearest")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q=photos"))
    assert page.locator("a.main").all_inner_texts() == ["nearest"]
    page.goto(gallery_site)
    page.get_by_label("tag").select_option("team=vision")
    page.wait_for_url(re.compile("tag=team"))
    assert page.locator("a.main").count() == 1
    page.get_by_label("status").select_option("complete")
    page.wait_for_url(re.compile("status=complete"))
    assert page.locator("a.main").count() == 1
    page.goto(f"{gallery_site}?q=nothing+of+this+kind")
    page.get_by_text("No run matches.").wait_for()


def test_rename_and_tag_a_run(page: Any, tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "first name")
    write_samples(writer, [{"label": 0, "predicted": 1}])
    run = writer.finish("complete").run_id
    with serve_store(place, "write=True") as address:
        page.goto(f"{address}run/{run}")
        page.get_by_text("Rename or tag this run").click()
        page.get_by_label("name").fill("second name")
        page.get_by_label("tags, one").fill("team=vision\nreviewed=yes")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("heading", name="second name").wait_for()
        # Parts of the page load after it is shown: let them arrive before the server ends.
        page.wait_for_load_state("networkidle")
        page.goto("about:blank")
    with Store(str(place)) as store:
        assert store.run(run).name == "second name"
        assert store.run(run).tags == {"team": "vision", "reviewed": "yes"}


def test_without_write_nothing_changes(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "one")
    write_samples(writer, [{"label": 0, "predicted": 1}])
    run = writer.finish("complete").run_id
    with TestClient(build(str(place)), base_url="http://localhost") as client:
        ours = {"origin": "http://localhost"}
        for path, form in (("amend", {"name": "two"}), ("tag", {"indices": "0", "tag": "x"})):
            answer = client.post(f"/run/{run}/{path}?format=json", data=form, headers=ours)
            assert answer.status_code == 400
            assert "--write" in answer.json()["hint"]
        assert "Rename or tag" not in client.get(f"/run/{run}").text
    with TestClient(build(str(place), write=True), base_url="http://localhost") as client:
        assert client.post(f"/run/{run}/tag", data={"indices": "0", "tag": "x"}).status_code == 403
        foreign = {"origin": "http://evil.test"}
        assert client.post(f"/run/{run}/tag", data={"indices": "0", "tag": "x"}, headers=foreign).status_code == 403
        for bad, status in (
            ({"indices": "0", "tag": ""}, 400),
            ({"indices": "7", "tag": "x"}, 404),
            ({"indices": "a", "tag": "x"}, 400),
        ):
            assert client.post(f"/run/{run}/tag", data=bad, headers=ours).status_code == status
    with Store(str(place)) as store:
        assert store.run(run).name == "one"
        assert store.sql("SELECT count(*) FROM tags").fetchone() == (0,)


def test_select_tiles_tag_and_export_them(page: Any, gallery_site: str, photos: Path, tmp_path: Path) -> None:
    run = runs(gallery_site)["photos"]
    page.goto(f"{gallery_site}run/{run}/gallery?where=&order=index")
    page.locator(".tile").nth(10).wait_for()
    page.get_by_label("select sample 2", exact=True).click()
    page.get_by_label("select sample 5", exact=True).click(modifiers=["Shift"])
    page.get_by_text("4 selected").wait_for()
    assert "picked=" in page.url
    page.reload()
    page.get_by_text("4 selected").wait_for()
    page.locator("a.tile, .tile a").nth(7).click()
    page.locator("a[rel=next]").wait_for()
    page.get_by_role("link", name="back to the gallery").click()
    page.get_by_text("4 selected").wait_for()
    page.locator("#picked input[name=tag]").fill("it's <b>blurred</b>")
    page.locator("#picked input[name=note]").fill("look again")
    page.get_by_role("button", name="Tag", exact=True).click()
    page.get_by_text("of 4 samples").wait_for()
    with Store(str(photos)) as store:
        rows = store.sql("SELECT index, source, tag, note FROM tags WHERE run_id = ? ORDER BY index", parameters=[run])
        found = rows.fetchall()
    assert [row[0] for row in found] == [2, 3, 4, 5]
    assert {row[2:] for row in found} == {("it's <b>blurred</b>", "look again")}
    with page.expect_download() as saved:
        page.locator("#picked-csv").click()
    manifest = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    assert [row["index"] for row in manifest] == ["2", "3", "4", "5"]
    assert all(os.path.isfile(row["path"]) for row in manifest)
    page.goto(f"{gallery_site}run/{run}/gallery?where=")
    page.locator("#asked select[name=tag]").select_option(index=1)
    page.get_by_text("4 samples").wait_for()
    assert page.locator(".tile .tag").first.text_content() == "it's <b>blurred</b>"
    with page.expect_download() as saved:
        page.get_by_role("link", name="JSON lines").last.click()
    lines = [json.loads(line) for line in Path(saved.value.path()).read_text().splitlines()]
    assert {line["tags"] for line in lines} == {"it's <b>blurred</b>"}


def test_samples_of_two_loaders_that_have_the_same_index(tmp_path: Path) -> None:
    """A tile of the validation data is that sample alone, not the training sample of the same index."""
    place = tmp_path / "lineage"
    writer = begin(place, "training", classes=["a", "b"])
    train, val = str(tmp_path / "train"), str(tmp_path / "val")
    for folder in (train, val):
        os.mkdir(folder)
        Path(folder, "a.png").write_bytes(jpeg())
    loaders: list[dict[str, Any]] = [
        {"split": "train", "root": train, "digest": "t" * 64},
        {"split": "val", "root": val, "digest": "v" * 64, "visit": 1},
    ]
    rows = [
        {"index": index, "epoch": epoch, "source": "a.png", "label": 0, "predicted": 1, "label_name": "a", **loader}
        for epoch in range(2)
        for index in range(3)
        for loader in loaders
    ]
    write_samples(writer, rows)
    run = writer.finish("complete").run_id
    writer = begin(place, "evaluation")
    write_samples(writer, [{"source": "a.png", "root": val, "digest": "v" * 64}])
    evaluated = writer.finish("complete").run_id
    ours = {"origin": "http://localhost"}
    with TestClient(build(str(place), write=True), base_url="http://localhost") as client:
        blocks = client.get(f"/run/{run}/gallery/block?where=split+%3D+%27val%27").text
        assert re.findall(r'class="pick"[^>]*value="([^"]*)"', blocks) == ["1-0-1", "1-1-1", "1-2-1"]
        client.post(f"/run/{run}/tag", data={"indices": "1-1-1", "tag": "odd"}, headers=ours).raise_for_status()
        for chosen in ("indices=1-1-1", "where=split+%3D+%27val%27+AND+index+%3D+1&of=all", "where=&tag=odd"):
            exported = client.get(f"/run/{run}/export?as=csv&{chosen}").text
            assert [(row["path"], row["tags"]) for row in csv.DictReader(io.StringIO(exported))] == [
                (f"{val}/a.png", "odd")
            ]
            found = client.get(f"/run/{run}/export?as=label-studio&{chosen}")
            with zipfile.ZipFile(io.BytesIO(found.content)) as archive:
                tasks = json.loads(archive.read(next(name for name in archive.namelist() if "tasks" in name)))
            assert len(tasks) == 1
        shown = client.get(f"/run/{run}/gallery/block?where=index+%3D+1&format=json").json()["samples"]
        assert [(sample["visit"], sample["tags"]) for sample in shown] == [(0, []), (1, ["odd"])]
        found = client.get(f"/run/{evaluated}/trace/0/similar?format=json").json()
        assert {(one["run_id"], one["split"]) for one in found["same_file"]} == {(run, "val")}
    with Store(str(place)) as store:
        assert store.tag_samples("hard", run, where="split = 'train'") == 3
        assert store.tag_samples("both", run, indices=[2]) == 2
        kept = store.sql("SELECT tag, index, split, root FROM tags ORDER BY ALL").fetchall()
        assert kept[:2] == [("both", 2, "train", train), ("both", 2, "val", val)]
        assert store.tag_samples("both", run, where="split = 'val' AND index = 2", remove=True) == 1
        assert store.select(str(tmp_path / "hard.csv"), run, tag="hard") == 3
        assert store.select(str(tmp_path / "both.csv"), run, tag="both") == 1
    assert f"{train}/a.png" in (tmp_path / "both.csv").read_text()


def test_a_selection_in_every_form(gallery_site: str, tmp_path: Path) -> None:
    run = runs(gallery_site)["photos"]

    def saved(form: str, query: str = "indices=2,3,40") -> bytes:
        with urllib.request.urlopen(f"{gallery_site}run/{run}/export?as={form}&{query}") as answer:
            return bytes(answer.read())

    with tarfile.open(fileobj=io.BytesIO(saved("links"))) as unpacked:
        unpacked.extractall(tmp_path, filter="fully_trusted")
    links = sorted((tmp_path / "selection").rglob("*.jpg"))
    assert [link.is_symlink() and link.exists() for link in links] == [True] * 3
    for form, listing in (("fiftyone", "samples.json"), ("label-studio", "tasks.json"), ("cvat", "annotations.xml")):
        with zipfile.ZipFile(io.BytesIO(saved(form))) as archive:
            assert listing in archive.namelist()
            text = archive.read(listing).decode()
        assert text.count("coffee-00.jpg") + text.count("coins-00.jpg") >= 1
    chosen = saved("csv", "where=NOT+correct&filter=%7B%22label%22%3A%7B%22in%22%3A%5B3%5D%7D%7D").decode()
    assert len(chosen.splitlines()) == 11
    with pytest.raises(urllib.error.HTTPError, match="400"):
        saved("exe")


def test_a_class_of_any_name_stays_in_the_folder_of_links(tmp_path: Path) -> None:
    picture = tmp_path / "a.jpg"
    picture.write_bytes(b"")
    names = ("..", ".", "a/../..", "")
    rows: Any = [{"path": str(picture), "label_name": name, "index": n} for n, name in enumerate(names)]
    write_selection(rows, str(tmp_path / "inner" / "links"))
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_symlink()}
    assert made == {f"inner/links/{name}-a.jpg" for name in ("_/0", "_/1", "a_.._../2", "_/3")}


def test_tag_and_select_by_command(photos: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    place = ["--store", str(photos)]
    done = runner.invoke(cli, ["tag", "nearest", "hard", "--where", "NOT correct", "--note", "n", *place])
    assert done.exit_code == 0, done.output
    with Store(str(photos)) as store:
        wrong = store.run("nearest").wrong
        assert store.sql("SELECT count(*) FROM tags WHERE tag = 'hard'").fetchone() == (wrong,)
    target = tmp_path / "hard.csv"
    done = runner.invoke(cli, ["select", "nearest", "--tag", "hard", "-o", str(target), *place])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(target.open()))
    assert len(rows) == wrong
    done = runner.invoke(cli, ["select", "nearest", "--tag", "hard", "-o", str(tmp_path / "links"), *place])
    links = list((tmp_path / "links").rglob("*.jpg"))
    assert len(links) == wrong
    assert all(link.is_symlink() and link.exists() for link in links)
    done = runner.invoke(cli, ["tag", "nearest", "hard", str(rows[0]["index"]), "--remove", *place])
    with Store(str(photos)) as store:
        assert store.sql("SELECT count(*) FROM tags WHERE tag = 'hard'").fetchone() == (wrong - 1,)
        assert not store.verify("nearest")


def test_an_exported_manifest_is_a_dataset(photos: Path, tmp_path: Path) -> None:
    from audit.models.classes import compare_classes, complete_classes
    from audit.sources.base import Options
    from audit.sources.manifest import open_source

    with Store(str(photos)) as store:
        store.select(str(tmp_path / "chosen.csv"), "photos", where="label_name = 'cat'")
        (number,) = (
            store.sql("SELECT DISTINCT label FROM samples WHERE label_name = 'cat'", run="photos").fetchone() or ()
        )
    dataset = open_source(str(tmp_path / "chosen.csv"), Options())
    assert len(dataset) == 10
    assert dataset[0][1] == number > 0, "the model was trained with this number"
    assert dataset.classes is not None
    assert dataset.classes[number] == "cat"
    with Store(str(photos)) as store:
        names = store.run("photos").classes
    compare_classes(names, complete_classes(names, dataset.classes, dataset.present_labels))
    with pytest.raises(ClassMismatch):
        compare_classes(names, complete_classes(names, dataset.classes, {0, number}))
