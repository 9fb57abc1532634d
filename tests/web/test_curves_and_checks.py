"""Curves of classes, the page of checks, and boxes and masks over pictures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from web_server import serve_store
from webstores import begin, rows, visit, write_samples

from audit.lineage.queries.curves import class_curve
from audit.store.read.reader import Reader

MASK = np.array([[0, 1], [1, 2]], np.uint8)


def _png(mask: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(mask).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with probabilities and ties, findings of a hostile check, and boxes and masks of two samples."""
    place = tmp_path_factory.mktemp("curves") / "lineage"
    rng = np.random.default_rng(3)
    writer = begin(place, "scores", classes=["cat", "<i>dog</i>", "owl" * 40])
    samples: list[dict[str, Any]] = []
    for _ in range(200):
        label = int(rng.integers(3))
        shares = rng.dirichlet([1, 1, 1]) + np.eye(3)[label] * 0.5
        shares = (shares / shares.sum()).round(2)
        samples.append({"label": label, "predicted": int(shares.argmax()), "probabilities": shares.tolist()})
    write_samples(writer, samples)
    run = writer.run.run_id
    box = {
        "model": "m",
        "call": 0,
        "class_": 1,
        "class_name": "<i>dog</i>",
        "x1": 2.0,
        "y1": 3.0,
        "x2": 9.0,
        "y2": 12.0,
    }
    boxes = [
        {**visit(run, 0), **box, "box": 0, "kind": "target", "outcome": "fn"},
        {**visit(run, 0), **box, "box": 0, "kind": "predicted", "score": 0.75, "outcome": "fp", "x1": float("nan")},
        {**visit(run, 0), **box, "box": 1, "kind": "predicted", "score": 0.5, "outcome": "fp"},
    ]
    masks = [
        {**visit(run, 1), "model": "m", "call": 0, "kind": kind, "height": 2, "width": 2, "digest": "0" * 32}
        | {"form": "full", "data": _png(mask)}
        for kind, mask in (("target", MASK), ("predicted", MASK[::-1].copy()))
    ]
    finding = {"run_id": run, "check_name": "<b>mine</b>", "severity": "error", "status": "fail"}
    findings = [
        {**finding, "message": f"sample {n} is <i>odd</i>", "index": n, "source": f"{n}.png"} for n in range(30)
    ]
    findings.append({**finding, "message": "thirty are odd", "value": 30.0, "threshold": 2.0})
    findings.append({**finding, "check_name": "blank", "status": "pass", "message": "fine"})
    writer.append(
        {"boxes": rows("boxes", boxes), "masks": rows("masks", masks), "findings": rows("findings", findings)}
    )
    writer.finish("complete")
    return place


def test_areas_equal_those_of_scikit_learn(place: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    with Reader(str(place)) as reader:
        run = reader.run(None)
        table = reader.sql("SELECT label, probabilities FROM predictions ORDER BY index").fetchall()
        labels, shares = np.array([row[0] for row in table]), np.array([row[1] for row in table])
        for number in range(3):
            curve = class_curve(reader, run, 0, number)
            wanted, scores = labels == number, shares[:, number]
            assert curve.average_precision == pytest.approx(metrics.average_precision_score(wanted, scores))
            assert curve.roc_auc == pytest.approx(metrics.roc_auc_score(wanted, scores))
            assert curve.recall[-1] == curve.false_positive_rate[-1] == 1.0
            assert curve.thresholds == sorted(curve.thresholds, reverse=True)
        missing = class_curve(reader, run, 0, 7)
        assert (missing.positives, missing.average_precision, missing.recall) == (0, None, [])


@pytest.mark.browser
def test_curves_checks_boxes_and_masks_by_clicking(page: Any, place: Path) -> None:
    with serve_store(place) as site:
        page.goto(f"{site}run/scores")
        page.locator("#curves").scroll_into_view_if_needed()
        page.locator("#plot-pr canvas").wait_for()
        assert page.locator("#curves tbody tr").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "a long name breaks in the legend"
        page.locator("#curve-class").select_option("<i>dog</i>")
        page.wait_for_function("() => document.querySelectorAll('#curves tbody tr').length == 1")
        page.locator("#plot-roc canvas").wait_for()
        page.get_by_role("navigation").get_by_role("link", name="Checks").click()
        page.get_by_role("heading", name="<b>mine</b>").wait_for()
        page.get_by_text("thirty are odd").wait_for()
        assert page.locator(".check .tile").count() == 24
        page.get_by_role("link", name="30 samples as a gallery").click()
        page.get_by_text("30 samples").wait_for()
        page.goto(f"{site}run/scores/trace/0")
        # The stages have names of torchvision's, but are none of its classes: only the model's input is certain.
        assert page.locator("svg.over").count() == 1
        assert page.locator("svg.over").first.locator("rect").count() == 2
        page.get_by_role("heading", name="Boxes in pixels").wait_for()
        page.get_by_label("boxes and masks").uncheck()
        assert not page.locator("svg.over").first.is_visible()
        page.goto(f"{site}run/scores/trace/1")
        layer = page.locator("img.over:not(.heat)")
        assert layer.evaluate("one => one.naturalWidth") == 2
        page.goto("about:blank")  # before the server ends: what the page still loads would fail
