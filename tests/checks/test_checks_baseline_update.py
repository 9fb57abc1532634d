"""`audit baseline update`: the file is replaced, and a reviewer reads what changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checks_world import grade, world
from click.testing import CliRunner, Result
from markdown_it import MarkdownIt

from audit.api import open as open_store
from audit.checks.baseline_changes import _stage_changes
from audit.cli.main import cli
from audit.records import Stage


def audit(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two runs: the second has one regression, one fix, one new file, other bytes, another label and another stage."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "lineage"
    world(name="before").write(place)
    now = world(name="now")
    grade(now.prediction(0), 0, [0.0, 3.0, 0.0])
    grade(now.prediction(9), 0, [3.0, 0.0, 0.0])
    now.sample(14)["source_digest"] = "0" * 64
    now.sample(20)["source"] = "dog/`new`|.png"
    now.sample(30).update(label=1, label_name="cat")
    now.prediction(30).update(label=1, correct=False)
    now.stage(1)["parameters"] = '{"size": [28]}'
    now.write(place)
    return str(place)


def test_the_changes_are_named_and_the_file_replaced(store: str) -> None:
    audit("baseline", "export", "before", "--store", store)
    before = Path("baseline.json").read_bytes()
    shown = audit("baseline", "update", "now", "--dry-run", "--store", store)
    assert shown.exit_code == 0, shown.stderr
    assert Path("baseline.json").read_bytes() == before
    result = audit("baseline", "update", "now", "--store", store)
    assert result.stdout == shown.stdout
    assert json.loads(Path("baseline.json").read_text())["name"] == "now"
    html = MarkdownIt("commonmark").enable("table").render(result.stdout)
    for text in ("Newly wrong: 1", "bird/000.png: bird → cat", "Newly right: 1", "Bytes changed: 1", "Removed: 1",
                 "Label changed: 1", "bird/030.png: bird → cat", "Resize: {&quot;size&quot;: [32]}"):  # fmt: skip
        assert text in html, text
    assert "<script" not in html
    again = audit("baseline", "update", "now", "--store", store)
    assert "No source, prediction, stage or code file differs." in again.stdout


def test_a_stage_that_was_added_does_not_change_those_behind_it() -> None:
    names = ("load", "Blur", "Resize")
    before, now = ([Stage(n, str(n), name, name) for n, name in enumerate(chosen)] for chosen in (names[::2], names))
    assert _stage_changes(before, now) == ["1 Blur: added"]
    assert _stage_changes(now, before) == ["1 Blur: removed"]


def test_without_a_file_it_is_new(store: str) -> None:
    with open_store(store) as opened:
        changes = opened.update_baseline("first.json", "before")
    assert changes.before is None
    assert Path("first.json").exists()
    assert "New, from the run" in audit("baseline", "update", "now", "-o", "second.json", "--store", store).stdout


def test_what_is_no_baseline_is_not_overwritten(store: str) -> None:
    Path("notes.json").write_text('{"mine": 1}')
    assert audit("baseline", "update", "-o", "notes.json", "--store", store).exit_code == 2
    assert Path("notes.json").read_text() == '{"mine": 1}'
