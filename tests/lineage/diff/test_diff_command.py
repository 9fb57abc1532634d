"""`audit diff` from the outside: what it prints, what it refuses, and with which code it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from click.testing import CliRunner, Result
from diff_material import HEAD, make_digest, pipeline_text, write_pictures, write_run

from audit.cli.diff import diff as command
from audit.cli.main import cli
from audit.lineage.diff.diff import diff
from audit.report.diff.markdown import diff_markdown
from audit.report.inline_code import code
from audit.store.read.reader import Reader

HOSTILE = "x|`<script>alert(1)</script>`\x1b[31m[bold]\n@everyone.png"
STAGES = [
    {"stage": n, "path": str(n), "name": name, "qualname": name, "parameters": "{}"} for n, name in enumerate("lrn")
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("command") / "store")
    sources = [HOSTILE, *(f"{n}.png" for n in range(1, 6))]
    rows: list[dict[str, Any]] = [
        {"source": s, "content": make_digest(s), "label": 0, "outputs": {0: s, 1: s, 2: s}} for s in sources
    ]
    write_run(
        folder, [row | {"predicted": 0} for row in rows], STAGES, name="baseline", classes=["a", "b"], model_digest="m"
    )
    worse = [row | {"predicted": 1, "outputs": {**row["outputs"], 2: "other"}} for row in rows[:3]]
    write_run(
        folder,
        [*worse, *(row | {"predicted": 0} for row in rows[3:])],
        STAGES,
        name="new",
        classes=["a", "b"],
        model_digest="m",
    )
    write_run(folder, rows, STAGES, name="no model")
    return folder


def ask(*arguments: str) -> Result:
    if "diff" not in cli.commands:
        cli.add_command(command)
    return CliRunner().invoke(cli, ["diff", *arguments])


DESIGNED = (
    *("a", "b", "matched", "added", "removed", "source_changed", "label_changed", "first_divergent_stage"),
    *("regressions", "fixes", "accuracy_a", "accuracy_b"),
)


def test_json_has_what_was_promised(store: str) -> None:
    result = ask("baseline", "new", "--store", store, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [key for key in DESIGNED if key not in found] == []
    assert found["matched"] == 6
    assert found["first_divergent_stage"] == {"n": 3}
    assert (found["accuracy_a"], found["accuracy_b"]) == (1.0, 0.5)
    row = found["regressions"][0]
    assert {"source", "index_a", "index_b", "label", "predicted_a", "predicted_b", "cause"} <= set(row)
    assert (row["source"], row["cause"]) == (HOSTILE, "pipeline")
    assert found["mcnemar_p"] == 0.25


def test_text_shows_names_as_text(store: str) -> None:
    result = ask("baseline", "new", "--store", store)
    assert result.exit_code == 0, result.output
    assert "3 of 6 first differ at stage 2 n" in result.stdout
    assert "3 regressions  (pipeline 3)" in result.stdout
    assert "\x1b" not in result.stdout
    assert "[bold]" in result.stdout


def test_markdown_keeps_hostile_names_inside_their_cells(store: str) -> None:
    result = ask("baseline", "new", "--store", store, "--markdown")
    assert result.exit_code == 0, result.output
    assert "**3 regressions, 0 fixes**" in result.stdout
    for line in result.stdout.splitlines():
        if "alert" in line:
            assert line.count("|") == 6, line
    assert "\x1b" not in result.stdout


def test_code_survives_backticks_and_bars() -> None:
    assert code("a") == "`a`"
    assert code("a`b") == "``a`b``"
    assert code("`") == "`` ` ``"
    assert "|" not in code("a|b")
    assert "\n" not in code("a\nb")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (("--max-regressions", "2"), 1),
        (("--max-regressions", "3"), 0),
        (("--max-divergent", "2"), 1),
        (("--max-divergent", "3"), 0),
        (("--max-regressions", "3", "--max-divergent", "0"), 1),
    ],
)
def test_limits_decide_the_exit_code(store: str, limits: tuple[str, ...], expected: int) -> None:
    result = ask("baseline", "new", "--store", store, "--json", *limits)
    assert result.exit_code == expected
    assert json.loads(result.stdout)["matched"] == 6
    assert bool(result.stderr) == bool(expected)


@pytest.mark.parametrize(
    ("arguments", "code_expected", "said"),
    [
        (("baseline", "nowhere"), 1, "no run 'nowhere'"),
        (("baseline", "no model", "--max-regressions", "0", "--json"), 2, "no predictions"),
        (("baseline", "new", "--json", "--markdown"), 2, "not both"),
        (("baseline", "new", "--dataset", "x"), 2, "can be used only with --pipelines"),
        (("baseline", "--pipelines", "a.py", "b.py"), 2, "not both"),
        (("--pipelines", "a.py", "b.py"), 2, "needs --dataset"),
        (("--pipelines", "a.py", "b.py", "--dataset", "nowhere"), 2, "a.py"),
    ],
)
def test_bad_input_is_one_sentence(store: str, arguments: tuple[str, ...], code_expected: int, said: str) -> None:
    result = ask(*arguments, "--store", store)
    assert result.exit_code == code_expected, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.workers
@pytest.mark.parametrize(("form", "limit", "expected"), [((), "0", 1), (("--json",), "0", 1), ((), "9", 0)])
def test_the_verdict_stands_though_nobody_reads_it(
    store: str, form: tuple[str, ...], limit: str, expected: int
) -> None:
    """A reader that goes away (| head) must not turn a broken limit into a pass, nor a pass into a failure."""
    with subprocess.Popen(command_of(store, *form, "--max-regressions", limit), stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert (process.returncode, "3 regressions, more than" in said) == (expected, bool(expected))
    assert "went wrong" not in said


@pytest.mark.workers
def test_the_verdict_stands_when_the_terminal_is_closed(store: str) -> None:
    closed = ["sh", "-c", '"$@" >&- 2>&-', "sh", *command_of(store, "--max-regressions", "3", "--max-divergent", "9")]
    assert subprocess.run(closed, timeout=300).returncode == 0


def command_of(store: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "audit", "diff", "baseline", "new", "--no-derive", "--store", store, *options]


@pytest.mark.slow
def test_the_same_run_twice_is_reported(store: str) -> None:
    result = ask("new", "new", "--store", store)
    assert result.exit_code == 0
    assert "Both are the same run." in result.stdout
    with Reader(store) as reader:
        assert "**Nothing differs**" in diff_markdown(diff(reader, "new", "new"))


@pytest.mark.slow
def test_two_pipelines_are_recorded_and_compared(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "images")
    train, serve = tmp_path / "train_pair.py", tmp_path / "serve_pair.py"
    train.write_text(pipeline_text())
    serve.write_text(pipeline_text({"resize": "v2.Resize(24, antialias=False)"}))
    common = ("--pipelines", str(train), str(serve), "--dataset", str(images), "--workers", "0", "--json")
    result = ask(*common, "--max-divergent", "0")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    # Both define `to_rgb` with the same code: that is one stage, whichever file it is in.
    assert [step["change"] for step in found["stages"]] == ["same", "same", "same", "changed", "same", "same", "same"]
    assert found["first_divergent_stage"] == {"Resize": 8}
    assert (found["name_a"], found["name_b"]) == ("train_pair.py", "serve_pair.py")
    assert found["divergences"][0]["difference"]["max"] > 0
    kept = tmp_path / "store"
    serve.write_text(HEAD + "transform = to_rgb\n")
    result = ask(*common, "--limit", "3", "--store", str(kept))
    assert result.exit_code == 0, result.output
    with Reader(str(kept)) as reader:
        assert [run.samples for run in reader.runs()] == [3, 3]
