"""The comment for a pull request, rendered as a browser would show it; and the text that fits a screen."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from checks_pictures import picture
from checks_world import World, grade, world
from click.testing import CliRunner, Result
from markdown_it import MarkdownIt
from PIL import Image

from audit.checks.base import Finding
from audit.checks.report import CheckOutcome, Report
from audit.cli.main import cli
from audit.report.findings.text import as_text


def audit(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def rendered(text: str) -> str:
    """HTML of GitHub-flavoured Markdown; HTML inside the text is kept, as GitHub keeps <details>."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run whose files are pictures, with eight regressions against an earlier one."""
    monkeypatch.chdir(tmp_path)

    def made(name: str) -> World:
        found = world(name=name, root=str(tmp_path / "data"))
        for row in found.tables["samples"]:
            file = tmp_path / "data" / row["source"]
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(row["index"]).save(file)
            data = file.read_bytes()
            row["source_digest"], row["source_bytes"] = hashlib.sha256(data).hexdigest(), len(data)
        return found

    made("before").write(tmp_path / "lineage")
    now = made("now")
    for rank, index in enumerate((0, 3, 6, 12, 15, 18, 21, 24)):
        grade(now.prediction(index), 0, [0.0, 1.0 + rank, 0.0])
    now.write(tmp_path / "lineage")
    return str(tmp_path / "lineage")


def test_the_worst_regressions_are_pictures_in_the_comment(store: str) -> None:
    result = audit("check", "now", "--store", store, "--baseline", "before", "--only", "prediction_flips",
                   "--format", "markdown", "--pictures", "inline", "-o", "comment.md")  # fmt: skip
    assert result.exit_code == 1, result.stderr
    html = rendered(Path("comment.md").read_text(encoding="utf-8"))
    images = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)" alt="(\d+)"', html)
    # The surest mistakes first.
    assert [alt for _, alt in images] == ["24", "21", "18", "15", "12", "6"]
    for data, _ in images:
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            # Small pictures are enlarged: of 8 pixels nobody sees anything.
            assert 48 < max(image.size) <= 96
    assert html.count("<table>") == 3
    assert "<details>" in html
    assert "8 findings" in html


def test_pictures_can_be_files_of_an_artifact(store: str) -> None:
    result = audit("check", "now", "--store", store, "--baseline", "before", "--only", "prediction_flips",
                   "--format", "markdown", "--pictures", "some pictures")  # fmt: skip
    sources = re.findall(r'<img src="([^"]+)"', rendered(result.stdout))
    assert len(sources) == 6
    assert all(Path(unquote(source)).is_file() for source in sources)


def test_a_run_without_pictures_has_a_comment_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = world()
    made.output(9, 2)["nonfinite"] = 3
    store = str(made.write(tmp_path / "lineage"))
    options = ("check", "--store", store, "--only", "finite", "--format", "markdown")
    result = audit(*options, "--pictures", "inline")
    assert result.exit_code == 1
    assert "<img" not in rendered(result.stdout)
    assert result.stdout == audit(*options).stdout
    assert audit("check", "--store", store, "--pictures", "inline").exit_code == 2


def test_the_text_fits_a_screen() -> None:
    """Every check finds something: what is surely wrong is listed, the rest is counted with an example."""
    about = ("data", "What it looks for.")
    found = [Finding(f"picture {n} is odd.", n, f"{n}.png") for n in range(100)]
    outcomes = [CheckOutcome("broken", *about, "error", "fail", "odd", found, 300)]
    outcomes += [CheckOutcome(f"odd{n}", *about, "warning", "fail", "odd", found, 300) for n in range(8)]
    outcomes += [CheckOutcome(f"absent{n}", *about, "error", "skip", f"reason {n % 7}") for n in range(20)]
    report = Report("run", None, 1_000, outcomes)
    lines = as_text(report).splitlines()
    assert len(lines) <= 45
    assert sum("picture" in line for line in lines) == 10 + 8
    assert sum("… and 299 more" in line for line in lines) == 8
    assert all(any(f"absent{n}" in line for line in lines) for n in range(20))
    assert "reason 6" in as_text(report, verbose=True)


def test_one_run_of_the_checks_gives_several_reports(store: str) -> None:
    result = audit("check", "now", "--store", store, "--baseline", "before", "--only", "prediction_flips", "--format", "github",
                   "--write", "markdown=comment.md", "--write", "junit=report.xml", "--pictures", "inline")  # fmt: skip
    assert result.exit_code == 1, result.stderr
    assert result.stdout.count("::error") == 8
    assert rendered(Path("comment.md").read_text(encoding="utf-8")).count("<img") == 6
    assert Path("report.xml").read_text(encoding="utf-8").count("<failure") == 8


@pytest.mark.parametrize("given", ["markdown", "markdown=", "word=report.doc", "=report.md"])
def test_a_report_without_a_known_format_or_a_file_is_refused(store: str, given: str) -> None:
    result = audit("check", "now", "--store", store, "--write", given)
    assert result.exit_code == 2
    assert "FORMAT=FILE" in result.stderr
    assert not list(Path().glob("report.*"))
