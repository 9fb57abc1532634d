"""Every page over every kind of store: HTML and JSON from one path, bad input as a page that helps, no torch."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import PYTHON
from starlette.testclient import TestClient
from webstores import ROOT, begin, jpeg, rows, write_samples

from audit.api import Store
from audit.lineage.queries import overview
from audit.web.app import build

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def client(digits: Path) -> Iterator[TestClient]:
    with TestClient(build(str(digits)), base_url="http://localhost") as made:
        yield made


def runs(client: TestClient) -> dict[str, str]:
    return {run["name"]: run["run_id"] for run in client.get("/?format=json").json()["runs"]}


def mistakes(client: TestClient, run: str) -> list[int]:
    return [sample["index"] for sample in client.get(f"/run/{run}/gallery?format=json").json()["samples"]]


PAGES = [
    "",
    "/run/{a}",
    "/run/{a}/gallery",
    "/run/{a}/trace/28",
    "/compare?a={a}&b={b}",
    "/sql?q=FROM+runs",
    "/run/{t}/training",
]


@pytest.mark.parametrize("path", PAGES)
def test_html_and_json_from_one_path(client: TestClient, path: str) -> None:
    known = runs(client)
    path = path.format(a=known["baseline"], b=known["nearest"], t=known["training"]) or "/"
    page = client.get(path)
    assert page.status_code == 200
    assert page.text.startswith("<!doctype html>")
    accepted = client.get(path, headers={"accept": "application/json"}).json()
    asked = client.get(path + ("&" if "?" in path else "?") + "format=json").json()
    accepted.pop("seconds", None), asked.pop("seconds", None)
    assert accepted == asked


def test_counts_agree_with_sql(client: TestClient, digits: Path) -> None:
    """The page's numbers are those that a query gives."""
    run = runs(client)["baseline"]
    page = client.get(f"/run/{run}?format=json").json()
    with Store(str(digits)) as store:
        confusion = store.sql(
            "SELECT label, predicted, count FROM confusion WHERE run_id = ?", parameters=[run]
        ).fetchall()
        wrong = store.sql("SELECT count(*) FROM wrong_predictions WHERE run_id = ?", parameters=[run]).fetchone()
    shown = {
        (c["label"], c["predicted"]): c["count"]
        for row in page["counts"]["matrix"]["rows"]
        for c in row["cells"]
        if c["count"]
    }
    assert shown == {(label, predicted): count for label, predicted, count in confusion}
    assert wrong is not None
    assert page["counts"]["wrong"] == wrong[0]
    assert sum(b["count"] for b in page["counts"]["confidence"]) == 120
    assert [stage["name"] for stage in page["timings"]][:3] == ["load", "Grayscale", "Resize"]


def test_the_trace_is_the_library_s(client: TestClient, digits: Path) -> None:
    run = runs(client)["baseline"]
    page = client.get(f"/run/{run}/trace/28?format=json").json()
    with Store(str(digits)) as store:
        expected = json.loads(json.dumps(store.trace(run, index=28).as_json()))
    assert page["source"] == expected["source"]
    assert page["prediction"] == expected["prediction"]
    assert [s["digest"] for s in page["stages"]] == [s["digest"] for s in expected["stages"]]
    assert page["stages"][1]["difference"] == 0.0
    apart = {stage["name"]: stage["difference"] for stage in page["stages"]}
    assert apart["ToDtype"] < 0.02, "levels from 0 to 255 became numbers from 0 to 1, and nothing else"
    assert apart["Normalize"] is None, "its numbers have no black and no white to compare"
    for stage in page["stages"]:
        picture = client.get(stage["picture"])
        assert picture.headers["content-type"] in ("image/png", "image/jpeg")
    assert client.get(page["source_picture"]).status_code == 200


def test_mistakes_lead_to_each_other(client: TestClient) -> None:
    run = runs(client)["baseline"]
    expected = sorted(mistakes(client, run))
    assert len(expected) >= 3
    found = [expected[0]]
    while (after := client.get(f"/run/{run}/trace/{found[-1]}?format=json").json()["next_mistake"]) is not None:
        found.append(after["index"])
    assert found == expected
    # What a page loads that was sent before the mistakes were known.
    steps = client.get(f"/run/{run}/trace/{expected[1]}/steps?epoch=0&visit=0&mistakes=1").text
    assert f"trace/{expected[0]}?" in steps
    assert f"trace/{expected[2]}?" in steps


def test_a_first_page_does_not_deny_mistakes(digits: Path) -> None:
    with TestClient(build(str(digits)), base_url="http://localhost") as first:
        shown = first.get("/run/baseline/trace/60").text
    assert "no mistake" not in shown
    assert "next mistake" in shown or "mistakes=1" in shown


def test_one_page_of_a_run_is_the_current_one(client: TestClient) -> None:
    for page in ("", "/gallery", "/training", "/checks", "/map"):
        shown = client.get(f"/run/training{page}").text
        current = re.findall(r'aria-current="page">(\w+)<', shown)
        assert current == [page[1:].capitalize() or "Overview"]
    assert "aria-current" not in client.get("/run/training/trace/1").text.partition("</header>")[0]


@pytest.mark.parametrize("order", ["loss", "-loss", "confidence", "index", "entropy"])
def test_blocks_cover_everything_once(client: TestClient, order: str) -> None:
    run = runs(client)["baseline"]
    found: list[int] = []
    after: str | None = None
    for _ in range(5):
        query: dict[str, Any] = {"where": "", "order": order, "format": "json", **({"after": after} if after else {})}
        page = client.get(f"/run/{run}/gallery", params=query).json()
        found += [sample["index"] for sample in page["samples"]]
        after = page["after"]
        if after is None:
            break
    assert sorted(found) == list(range(120))


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30))
def test_any_condition_is_answered(client: TestClient, text: str) -> None:
    run = runs(client)["baseline"]
    answer = client.get(f"/run/{run}/gallery/block", params={"where": text})
    assert answer.status_code == 200


@pytest.mark.parametrize("where", ["nope", "1); DROP VIEW samples; --", "label = 2 -- x", "true) OR (true", "'"])
def test_a_condition_cannot_leave_its_place(client: TestClient, where: str) -> None:
    run, other = runs(client)["baseline"], runs(client)["nearest"]
    answer = client.get(f"/run/{run}/gallery/block", params={"where": where})
    assert answer.status_code == 200
    assert other not in answer.text


def test_a_comparison(client: TestClient) -> None:
    known = runs(client)
    page = client.get(f"/compare?a={known['baseline']}&b={known['nearest']}&format=json").json()
    assert page["diff"]["first_divergent_stage"] == {"Resize": 120}
    assert page["diff"]["matched"] == 120
    query = f"a={known['baseline']}&b={known['nearest']}&index_a=28&index_b=28"
    stages = client.get(f"/compare/stages?{query}&format=json").json()["stages"]
    assert [s["same"] for s in stages][:3] == [True, True, False]
    assert client.get(f"/compare/picture?{query}&stage_a=2&stage_b=2").status_code == 200
    assert client.get("/compare").status_code == 400


def test_training_says_what_the_views_say(client: TestClient, digits: Path) -> None:
    run = runs(client)["training"]
    page = client.get(f"/run/{run}/training?format=json").json()
    with Store(str(digits)) as store:

        def asked(query: str) -> list[tuple[Any, ...]]:
            return store.sql(query, run=run).fetchall()

        spikes = asked(
            "SELECT step, arg_max(index, loss), any_value(step_loss) FROM spikes GROUP BY step ORDER BY step"
        )
        sure = asked("SELECT index, confidence, variability, correctness FROM cartography ORDER BY index")
        lost = asked("SELECT index FROM forgetting WHERE forgetting_events > 0 OR never_learned ORDER BY index")
    assert [step for step, *_ in spikes] == [15]
    assert [(s["step"], s["index"], s["step_loss"]) for s in page["spikes"]] == spikes
    shown = sorted(page["cartography"], key=lambda row: row["index"])
    assert [(r["index"], r["confidence"], r["variability"], r["correctness"]) for r in shown] == [
        pytest.approx(row) for row in sure
    ]
    assert sorted((row["index"],) for row in page["forgotten"]) == lost
    assert [(e["epoch"], e["split"], e["phase"]) for e in page["epochs"]] == [(n, "train", "train") for n in range(6)]
    assert {row["layer"] for row in page["layers"]} == {"conv1", "layer4", "fc"}


def test_every_link_leads_to_the_very_visit(tmp_path: Path) -> None:
    """Two loaders number their items alike: an index alone, or the first epoch left out, would be another file."""
    place = tmp_path / "lineage"
    writer = begin(place, "both", classes=["a", "b"])
    samples = [
        {
            "index": index, "epoch": epoch, "visit": visit, "split": split, "source": f"{split}/{index}.png", "label": 0,
            "predicted": (index + epoch + visit) % 2, "label_name": "a", "loss": 1.0 + epoch, "step": 2 * epoch + visit,
        }
        for epoch in range(3) for index in range(2) for visit, split in enumerate(("train", "val"))
    ]  # fmt: skip
    write_samples(writer, samples, stages=("load",))
    run = writer.finish("complete").run_id
    with over(place) as client:
        block = client.get(f"/run/{run}/gallery/block?where=&order=index&of=all").text
        links = re.findall(r'href="([^"]+/trace/[^"]+)"', block)
        seen = [client.get(html.unescape(link) + "&format=json").json() for link in links]
        places = [(t["epoch"], t["index"], t["visit"], t["source"]["path"]) for t in seen]
        assert sorted(places) == sorted((s["epoch"], s["index"], s["visit"], s["source"]) for s in samples)
        first = client.get(f"/run/{run}/trace/0?epoch=1&visit=0&format=json").json()
        assert first["source"]["path"] == "train/0.png"
        assert first["previous_visit"] == {"epoch": 0, "index": 0, "visit": 0}
        assert first["next_visit"] == {"epoch": 2, "index": 0, "visit": 0}
        assert first["next_mistake"] == {"index": 1, "visit": 1}
        # A cell of the first epoch shows that epoch alone.
        assert "of=0" in client.get(f"/run/{run}/panel/counts?epoch=0").text
        with Store(str(place)) as store:
            named = store.trace(run, source="train/1.png").sample
            assert (named["source"], named["epoch"], named["visit"]) == ("train/1.png", 2, 0)
        training = client.get(f"/run/{run}/training?format=json").json()
        assert {(row["source"], row["epoch"], row["visit"]) for row in training["cartography"]} == {
            (f"{split}/{index}.png", 2, visit) for index in range(2) for visit, split in enumerate(("train", "val"))
        }


@pytest.mark.parametrize("classes", [3, 40])
def test_logits_that_are_no_numbers_are_counted(tmp_path: Path, classes: int) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "broken", classes=[f"class {n}" for n in range(classes)])
    write_samples(
        writer,
        [
            {"label": n, "predicted": None if n == 1 else n, "loss": float("nan") if n == 1 else 0.1}
            for n in range(classes)
        ],
        stages=("load",),
    )
    run = writer.finish("complete").run_id
    with over(place) as client:
        page = client.get(f"/run/{run}/panel/counts").text
        assert "not finite" in page
        link = next(
            link for link in re.findall(r'href="([^"]+)"', page) if "label+%3D+1+" in link and "IS+NULL" in link
        )
        shown = client.get(html.unescape(link) + "&format=json").json()
        assert [sample["index"] for sample in shown["samples"]] == [1]


def test_checks_that_failed_come_first(client: TestClient) -> None:
    page = client.get(f"/run/{runs(client)['training']}?format=json").json()
    assert [finding["status"] for finding in page["findings"]] == ["fail", "skip", "pass"]
    assert "1 passed, 1 skipped" in client.get(f"/run/{runs(client)['training']}").text


def test_sql(client: TestClient) -> None:
    page = client.get("/sql?q=SELECT+run_id,+index,+epoch+FROM+wrong_predictions+LIMIT+3")
    assert "/trace/" in page.text
    for unknown in ("SELECT+3+AS+index", "SELECT+3+AS+index,+NULL+AS+run_id"):
        assert "/trace/" not in client.get(f"/sql?q={unknown}").text, "of which run is not known"
    assert client.get("/sql?q=SELECT+1+AS+a&save=csv").text == "a\r\n1\r\n"
    assert client.get("/sql?q=SELECT+1&save=parquet").content[:4] == b"PAR1"
    assert client.get("/sql?q=SELECT+1&save=exe").status_code == 400
    failed = client.get("/sql?q=SELECT+nope")
    assert failed.status_code == 422
    assert "Binder Error" in failed.text
    assert client.get("/sql", params={"q": "x" * 30_000}).status_code == 400
    assert "lineage" in client.get("/sql/words?format=json").json()["tables"]


@pytest.mark.parametrize(
    "path",
    [
        "/run/nope",
        "/run/{a}/trace/99999999",
        "/run/{a}/trace/0?epoch=77",
        "/run/{a}/picture/99999/0",
        "/run/{a}/picture/0/99",
        "/nope",
        "/run/{a}/trace/x",
    ],
)
def test_what_is_not_there(client: TestClient, path: str) -> None:
    assert client.get(path.format(a=runs(client)["baseline"])).status_code == 404


@pytest.mark.parametrize("query", ["epoch=x", "epoch=-1", f"epoch={2**70}", "visit=1e3"])
def test_numbers_that_are_none(client: TestClient, query: str) -> None:
    assert client.get(f"/run/{runs(client)['baseline']}/trace/0?{query}").status_code == 400


def test_digests_alone_show_the_source(client: TestClient) -> None:
    """Without previews the source file is shown, and the page says how to get the rest."""
    page = client.get(f"/run/{runs(client)['digest']}/trace/3")
    assert "--capture preview" in page.text
    assert "/source/3" in page.text


def test_a_replay_says_what_changed(client: TestClient) -> None:
    """A source that was edited after the recording: the verdict names it."""
    headers = {"origin": "http://localhost"}
    answer = client.post("/run/edited/trace/1/replay?format=json", headers=headers).json()
    assert answer["verdict"]["identical"] is False
    assert answer["verdict"]["difference"]["reason"] == "source changed"


def test_pages_never_load_torch(digits: Path) -> None:
    code = f"""
import sys
from starlette.testclient import TestClient
from audit.web.app import build
with TestClient(build({str(digits)!r}), base_url="http://localhost") as client:
    names = {{r["name"]: r["run_id"] for r in client.get("/?format=json").json()["runs"]}}
    a, b = names["baseline"], names["nearest"]
    for path in ("/", f"/run/{{a}}?format=json", f"/run/{{a}}/gallery/block", f"/run/{{a}}/trace/28", f"/run/{{a}}/training/series",
                 f"/compare?a={{a}}&b={{b}}&format=json", f"/compare/stages?a={{a}}&b={{b}}&index_a=28&index_b=28", "/sql?q=FROM+runs"):
        assert client.get(path).status_code == 200, path
print([name for name in ("torch", "torchvision") if name in sys.modules])
"""
    done = subprocess.run([PYTHON, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# Bad input: each a page that helps.


def over(place: Path) -> TestClient:
    return TestClient(build(str(place)), base_url="http://localhost")


def test_an_empty_store(empty: Path) -> None:
    with over(empty) as client:
        assert "audit run --dataset" in client.get("/").text
        assert client.get("/run/latest").status_code == 404
        assert client.get("/sql?q=FROM+runs").status_code == 200


def test_a_store_that_vanishes(tmp_path: Path) -> None:
    begin(tmp_path / "lineage", "one").finish("complete")
    with over(tmp_path / "lineage") as client:
        assert client.get("/").status_code == 200
        shutil.rmtree(tmp_path / "lineage")
        time.sleep(1.1)
        assert client.get("/").status_code in (200, 500)
        assert "Traceback" not in client.get("/").text


def test_a_run_still_being_written(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "slow", classes=["a", "b"])
    write_samples(writer, [{"label": 0, "predicted": 0, "label_name": "a"}])
    writer.flush()
    with over(place) as client:
        run = writer.run.run_id
        first = client.get(f"/run/{run}")
        assert "is still being recorded" in first.text
        assert 'data-when="every 3"' in first.text
        assert client.get(f"/run/{run}?format=json").json()["run"]["samples"] == 1
        write_samples(writer, [{"index": 7, "label": 0, "predicted": 1, "label_name": "a"}])
        writer.finish("complete")
        time.sleep(1.1)
        after = client.get(f"/run/{run}?format=json").json()
        assert after["run"]["samples"] == 2
        assert after["counts"]["wrong"] == 1
        assert 'data-when="every 3"' not in client.get(f"/run/{run}").text


def test_a_run_without_a_model(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "plain")
    write_samples(writer, [{"source": f"{n}.png"} for n in range(5)])
    run = writer.finish("complete").run_id
    with over(place) as client:
        assert "recorded without a model" in client.get(f"/run/{run}/panel/counts").text
        assert len(client.get(f"/run/{run}/gallery?format=json").json()["samples"]) == 5
        assert "no model was recorded" in client.get(f"/run/{run}/trace/2").text
        assert client.get(f"/run/{run}/training/series").status_code == 200


def test_a_run_without_pictures(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "bare", classes=["a", "b"])
    write_samples(writer, [{"label": 0, "predicted": 1, "label_name": "a", "preview": None}])
    run = writer.finish("complete").run_id
    with over(place) as client:
        assert "--capture preview" in client.get(f"/run/{run}/trace/0").text
        assert client.get(f"/run/{run}/picture/0/0").status_code == 404
        assert client.get(f"/run/{run}/gallery/block").status_code == 200


def test_a_thousand_classes(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    names = [f"class {n}" for n in range(1000)]
    writer = begin(place, "many", classes=names)
    samples = [
        {"label": n % 1000, "predicted": (n * 7) % 1000, "label_name": names[n % 1000], "preview": None}
        for n in range(3000)
    ]
    write_samples(writer, samples, stages=("load",))
    run = writer.finish("complete").run_id
    with over(place) as client:
        page = client.get(f"/run/{run}?format=json").json()["counts"]
        assert page["matrix"] is None
        assert page["confusions"]
        assert page["more_classes"] == 900
        assert len(client.get(f"/run/{run}/panel/counts").content) < 200_000


def test_text_instead_of_pictures(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "text", classes=["bad", "good"])
    write_samples(
        writer,
        [{"source": "dataset://0", "label": 1, "predicted": 0, "label_name": "good", "text": "A <b>fine</b> film."}],
    )
    run = writer.finish("complete").run_id
    with over(place) as client:
        for path in ("trace/0", "gallery/block"):
            page = client.get(f"/run/{run}/{path}").text
            assert "A &lt;b&gt;fine&lt;/b&gt; film." in page
            assert f"/run/{run}/picture/" not in page
        assert client.get(f"/run/{run}/picture/0/0").status_code == 404
        assert "fine&lt;" in client.get(f"/compare/stages?a={run}&b={run}&index_a=0&index_b=0").text


@pytest.mark.parametrize("state", ["changed", "missing"])
def test_a_source_that_is_no_longer_what_it_was(tmp_path: Path, state: str) -> None:
    place, root = tmp_path / "lineage", tmp_path / "images"
    root.mkdir()
    if state == "changed":
        (root / "a.png").write_bytes(jpeg())
    writer = begin(place, "moved", classes=["a"])
    write_samples(writer, [{"source": "a.png", "root": str(root), "label": 0, "predicted": 0, "label_name": "a"}])
    run = writer.finish("complete").run_id
    with over(place) as client:
        page = client.get(f"/run/{run}/trace/0").text
        assert {"changed": "the file has changed since", "missing": "no longer there"}[state] in page
        # A file that does not have the recorded digest is never shown: a store could name any file.
        assert client.get(f"/run/{run}/source/0").status_code == 404


def found_rows(client: TestClient, run: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(f"/run/{run}?format=json").json()["findings"]
    return rows


def test_failures_and_findings(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "broken", classes=["a"])
    write_samples(
        writer,
        [
            {"label": 0, "predicted": 0, "label_name": "a"},
            {"source": "bad.png", "error": "OSError: image file is truncated"},
            {"source": "worse.png", "error": "OSError: cannot read worse.png at byte 7"},
            {"source": "worst.png", "error": "OSError: cannot read worst.png at byte 12"},
        ],
    )
    found = {
        "run_id": writer.run.run_id,
        "check_name": "blank",
        "severity": "error",
        "status": "fail",
        "message": "is blank",
        "index": 0,
    }
    lesser = [
        found | {"check_name": "hint", "severity": "info", "index": None, "message": "a small thing"},
        *(found | {"check_name": "twins", "severity": "warning", "index": n, "message": f"twin {n}"} for n in range(5)),
    ]
    writer.append({"findings": rows("findings", [*lesser, found])})
    run = writer.finish("complete").run_id
    with over(place) as client:
        page = client.get(f"/run/{run}").text
        assert "image file is truncated" in page
        assert "at byte 7" in page
        assert "at byte 12" not in page, "counted with the one before, as `audit run` counts it"
        failures = client.get(f"/run/{run}", headers={"accept": "application/json"}).json()["failures"]
        assert [row["count"] for row in failures] == [2, 1]
        assert "is blank" in page
        assert '<span class="status info">info</span>' in page
        assert page.count("twin ") == 3
        assert "and 2 more" in page
        assert list(dict.fromkeys(row["check_name"] for row in found_rows(client, run))) == ["blank", "twins", "hint"]
        order = [client.get(f"/run/{run}/checks").text.index(f"<h2>{name} ") for name in ("blank", "twins", "hint")]
        assert order == sorted(order)
        assert "failed at" in client.get(f"/run/{run}/trace/1").text
        assert "No stage gave an output" in client.get(f"/run/{run}/trace/1").text


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n broken", b"<svg onload=alert(1)>", b"GIF89a" + b"\0" * 50, jpeg()[:60]]
)
def test_a_damaged_preview_is_a_missing_picture(tmp_path: Path, data: bytes) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "odd", classes=["a"])
    write_samples(writer, [{"label": 0, "predicted": 0, "label_name": "a", "preview": data}])
    run = writer.finish("complete").run_id
    with over(place) as client:
        assert client.get(f"/run/{run}/picture/0/0").status_code == 404
        assert client.get(f"/run/{run}/trace/0").status_code == 200


@settings(max_examples=examples(20))
@given(
    bins=st.lists(
        st.fixed_dictionaries(
            {"count": st.integers(0, 1000), "accuracy": st.floats(0, 1), "confidence": st.floats(0, 1)}
        ),
        min_size=1,
        max_size=20,
    )
)
def test_calibration_error_is_a_share(bins: list[dict[str, Any]]) -> None:
    error = overview.calibration_error(bins)
    assert error is None or 0 <= error <= 1 + 1e-9
    for b in bins:
        b["accuracy"] = b["confidence"]
    assert overview.calibration_error(bins) in (None, 0.0)


def test_a_page_and_the_check_state_one_calibration_error(client: TestClient, digits: Path) -> None:
    with Store(str(digits)) as store:
        outcome = store.check("baseline", only=["calibration"]).outcome("calibration")
    error = client.get("/run/baseline?format=json").json()["counts"]["calibration_error"]
    assert f"expected calibration error {error:.3f}" in outcome.message
