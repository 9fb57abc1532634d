"""`audit report`, notebooks, the commands, and a reader that stays fresh."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from webstores import begin, write_samples

from audit.cli.report import report as report_command
from audit.cli.ui import ui as ui_command
from audit.display import to_visible
from audit.errors import NotFound, UsageError
from audit.lineage.trace import trace
from audit.report.html import charts
from audit.report.html.environment import style
from audit.report.html.notebook import run_html, trace_html
from audit.report.html.report_file import report, write_report
from audit.store.read.freshness import NewestReader
from audit.store.read.reader import Reader
from audit.web.respond import STATIC


@pytest.mark.workers
def test_the_report_holds_the_mistakes(digits: Path) -> None:
    with Reader(str(digits)) as store:
        text = report(store, "baseline", baseline="nearest")
        wrong = store.run("baseline").wrong
    assert text.count('<details class="card mistake"') == text.count('href="#mistake-') == wrong
    assert 'class="three"' in text  # a flip, where it came from: before, now, and the difference
    assert "First divergent stage".lower() in text.lower()
    assert "<script" not in text
    assert "http://" not in text.replace("http-equiv", "")


@pytest.mark.workers
def test_fewer_mistakes_and_bad_requests(digits: Path, tmp_path: Path) -> None:
    with Reader(str(digits)) as store:
        assert "mistake" not in report(store, "baseline", mistakes=0).partition("<body")[2]
        with pytest.raises(UsageError):
            report(store, "baseline", mistakes=-1)
        with pytest.raises(NotFound):
            report(store, "nope")
        with pytest.raises(UsageError, match="could not be written"):
            write_report(store, str(tmp_path / "no" / "folder" / "r.html"), "baseline")
    assert list(tmp_path.iterdir()) == []


def test_a_report_without_a_model(tmp_path: Path) -> None:
    writer = begin(tmp_path / "lineage", "plain")
    write_samples(writer, [{"source": "a.png"}])
    writer.finish("complete")
    with Reader(str(tmp_path / "lineage")) as store:
        assert "recorded without a model" in report(store)


@pytest.mark.slow
def test_the_report_keeps_its_size(tmp_path: Path) -> None:
    """200 mistakes with large pictures: fewer are shown rather than a file that nobody can attach."""
    import io

    import numpy as np
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (384, 384, 3), np.uint8)).save(out, "JPEG", quality=95)
    writer = begin(tmp_path / "lineage", "large", classes=["a", "b"])
    write_samples(
        writer, [{"label": 0, "predicted": 1, "label_name": "a", "preview": out.getvalue()} for _ in range(150)]
    )
    writer.finish("complete")
    with Reader(str(tmp_path / "lineage")) as store:
        assert 5_000_000 < write_report(store, str(tmp_path / "report.html"), mistakes=150) < 15_000_000
        assert 1_000_000 < write_report(store, str(tmp_path / "report.html")) < 2_000_000
    names = [f"a class with a long name, number {n}" for n in range(300)]
    writer = begin(tmp_path / "lineage", "classes", classes=names)
    write_samples(
        writer, [{"label": n % 300, "predicted": 7 * n % 300, "label_name": names[n % 300]} for n in range(900)]
    )
    writer.finish("complete")
    with Reader(str(tmp_path / "lineage")) as store:
        assert write_report(store, str(tmp_path / "report.html"), "classes") < 2_000_000


@pytest.mark.workers
def test_the_report_command(digits: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    done = CliRunner().invoke(report_command, ["baseline", "-o", str(target), "--store", str(digits)])
    assert done.exit_code == 0, done.output
    assert target.read_text().startswith("<!doctype html>")


def test_the_ui_command_without_a_store(tmp_path: Path) -> None:
    done = CliRunner().invoke(ui_command, ["--store", str(tmp_path / "nothing"), "--port", "0"])
    assert "There is no store" in str(done.exception)


@pytest.mark.workers
def test_notebooks(digits: Path) -> None:
    with Reader(str(digits)) as store:
        shown = trace_html(trace(store, "baseline", index=28))
        assert shown is not None
        assert shown.count("data:image/") == 6
        # A cell stands on its own ground and leaves the notebook's page alone, whatever theme that has.
        assert 'class="audit cell"' in shown
        rules = re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL)
        selectors = [part for rule in re.findall(r"([^{}]+)\{", rules) for part in rule.split(",")]
        assert all(".audit" in part or part.strip().startswith("@") for part in selectors)
        assert "baseline" in (run_html(store.run("baseline")) or "")


def test_no_rule_of_the_pages_meets_a_status_by_chance() -> None:
    """Statuses and states are class names in the pages: a rule for `.skip` or `.missing` alone hides or marks those too."""
    words = [
        "pass",
        "fail",
        "skip",
        "error",
        "running",
        "complete",
        "interrupted",
        "failed",
        "unchanged",
        "changed",
        "missing",
        "identical",
        "different",
    ]
    rules = re.sub(r"/\*.*?\*/", "", (STATIC / "web.css").read_text(), flags=re.DOTALL)
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{", rules) for part in rule.split(",")]
    assert [part for part in selectors if re.match(rf"\.({'|'.join(words)})(?![\w-])", part)] == []


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it comes true in time: a reader looks again only after a while."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def test_a_reader_stays_fresh(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "one")
    current = NewestReader(Reader, str(place), interval=0.0)
    before = current.reader()
    write_samples(writer, [{"source": "a.png"}])
    writer.flush()
    assert eventually(lambda: current.reader().run("one").samples == 1)
    assert before.run("one").samples == 0  # what was handed out stays as it was
    writer.abandon()  # as if killed: no word, but the lock is gone
    assert eventually(lambda: current.reader().run("one").status == "interrupted")
    assert current.reader() is current.reader()


anything = st.one_of(st.none(), st.floats(), st.integers(), st.booleans(), st.text(max_size=20))


@given(value=anything)
def test_numbers_are_always_text(value: object) -> None:
    assert "<" not in charts.number(value)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(5027.3, 3, "5,027"), (-781.08, 3, "-781"), (0.000123, 3, "0.000123"), (2.5e7, 3, "2.500e+07"), (12, 4, "12")],
)
def test_numbers_as_people_read_them(value: float, digits: int, text: str) -> None:
    assert charts.number(value, digits) == text


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True)), max_size=20))
def test_a_sparkline_of_anything(values: list[float | None]) -> None:
    assert "nan" not in charts.sparkline([v if v is None or abs(v) < 1e100 else None for v in values])


@given(st.text())
def test_printable_text_neither_moves_nor_hides(text: str) -> None:
    shown = to_visible(text)
    assert all(c.isprintable() or c in "\n\u200c\u200d" for c in shown)
    assert "<" not in str(escape(shown))


@pytest.mark.workers
def test_what_differs_comes_before_what_is(digits: Path) -> None:
    with Reader(str(digits)) as store:
        text = report(store, "baseline", baseline="nearest")
    assert text.index("Against nearest") < text.index("<h2>Confusion")
    assert "@media print" in text
    assert "@page { margin:" in text, "a browser that is asked for a PDF leaves no margin of its own"


def test_losses_that_are_all_alike_are_one_narrow_bar_with_its_range() -> None:
    svg = charts.losses([{"from": 1.5, "to": 1.7, "count": 4, "wrong": 1}])
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', svg)]
    assert widths
    assert max(widths) < 360 / 4
    assert ">1.5 to 1.7<" in svg
