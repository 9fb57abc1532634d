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


ABOUT = ("data", "What it looks for.")


def rows_of_a_screen(text: str) -> int:
    """How many rows of a terminal with 120 columns the text takes."""
    return sum(max(1, -(-len(line) // 120)) for line in text.splitlines())


@pytest.mark.parametrize("errors", [1, 3, 6])
@pytest.mark.parametrize("warnings", [0, 2, 8])
@pytest.mark.parametrize("length", [20, 200])
def test_the_text_fits_a_screen(errors: int, warnings: int, length: int) -> None:
    """What is surely wrong is listed, the rest is counted, with an example if there is room."""
    found = [Finding(f"picture {n} is {'very ' * (length // 5)}odd.", n, f"{n}.png") for n in range(100)]
    outcomes = [CheckOutcome(f"broken{n}", *ABOUT, "error", "fail", "odd", found, 300) for n in range(errors)]
    outcomes += [CheckOutcome(f"odd{n}", *ABOUT, "warning", "fail", "odd", found, 300) for n in range(warnings)]
    outcomes += [CheckOutcome(f"absent{n}", *ABOUT, "error", "skip", f"reason {n % 7}") for n in range(20)]
    outcomes += [CheckOutcome(f"fine{n}", *ABOUT, "error", "pass", "", notes=[f"note {n % 6}"]) for n in range(12)]
    report = Report("run", None, 1_000, outcomes)
    text = as_text(report)
    assert rows_of_a_screen(text) <= 40
    lines = text.splitlines()
    assert all(
        any(f"{outcome.check}: 300 findings" in line for line in lines) for outcome in outcomes[: errors + warnings]
    )
    assert sum("picture" in line for line in lines) >= errors
    assert text.count(": see --format json") == errors + warnings
    assert all(any(f"absent{n}" in line for line in lines) for n in range(20))
    detailed = as_text(report, verbose=True)
    assert "reason 6" in detailed
    assert "note 5" in detailed
    assert detailed.count("picture") == 10 * errors + 3 * warnings


def test_the_examples_show_each_kind_of_finding() -> None:
    found = [Finding(f"{n}.png (index {n}) is dark.", n, f"{n}.png") for n in range(50)]
    found += [Finding("9.png (index 9) is blurry: 4.5.", 9, "9.png"), Finding("The run is odd.")]
    outcome = CheckOutcome("odd", *ABOUT, "warning", "fail", "odd", found, len(found))
    lines = as_text(Report("run", None, 1_000, [outcome])).splitlines()
    assert [line.strip() for line in lines[2:5]] == [found[0].message, found[50].message, found[51].message]
    assert "… and 49 more" in lines[5]


def test_checks_that_passed_with_the_same_note_share_a_line() -> None:
    outcomes = [
        CheckOutcome(name, *ABOUT, "error", "pass", "", notes=["checked 9 of 90 files"]) for name in ("one", "two")
    ]
    assert "pass  one, two: checked 9 of 90 files" in as_text(Report("run", None, 90, outcomes)).splitlines()


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
