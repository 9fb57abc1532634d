"""The commands as a user types them: output, exit codes, JSON alone on standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from places import CHECKPOINT, DIGITS, PIPELINE

import audit
from audit.cli.main import cli
from audit.records import Run
from audit.store.write.writer import RunWriter


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("cli") / "lineage"
    done = invoke(
        "run", "--dataset", DIGITS, "--model", CHECKPOINT, "--pipeline", PIPELINE, "--store", store, "--workers", 0,
        "--name", "first", "--tag", "team=digits", "--limit", 150, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert set(summary) >= {
        *(
            "run_id",
            "name",
            "store",
            "status",
            "samples",
            "failed",
            "wrong",
            "accuracy",
            "capture",
            "stages",
            "seconds",
        ),
    }
    assert (summary["name"], summary["status"], summary["samples"]) == ("first", "complete", 150)
    assert summary["stages"] == ["load", "Grayscale", "Resize", "ToImage", "ToDtype", "Normalize"]
    return store


@pytest.mark.slow
def test_runs(recorded: Path) -> None:
    assert "first" in invoke("runs", "--store", recorded).stdout
    listed = json.loads(invoke("runs", "--json", "--store", recorded).stdout)
    assert listed[0]["tags"] == {"team": "digits"}
    assert listed[0]["command"]


def test_sql(recorded: Path) -> None:
    shown = invoke("sql", "FROM wrong_predictions WHERE label = 2", "--store", recorded)
    assert shown.exit_code == 0
    assert "2/1364.png" in shown.stdout
    rows = json.loads(invoke("sql", "FROM wrong_predictions", "--json", "--run", "first", "--store", recorded).stdout)
    assert all(row["correct"] is False for row in rows)
    broken = invoke("sql", "SELEC", "--store", recorded)
    assert broken.exit_code == 1
    assert "Parser Error" in broken.stderr
    assert invoke("sql", "DROP TABLE runs", "--store", recorded).exit_code == 1
    assert invoke("sql", "FROM runs", "--run", "nothing", "--store", recorded).exit_code == 1


def test_trace(recorded: Path, tmp_path: Path) -> None:
    by_index = invoke("trace", "108", "--json", "--store", recorded)
    by_source = invoke("trace", "first", "2/1364.png", "--json", "--store", recorded)
    assert by_index.stdout == by_source.stdout
    trace = json.loads(by_index.stdout)
    assert trace["source"]["state"] == "unchanged"
    assert [stage["name"] for stage in trace["stages"]][-1] == "Normalize"
    assert set(trace["prediction"]) == {
        *("predicted", "predicted_name", "confidence", "correct", "loss", "logits", "probabilities"),
        *("model", "call", "head", "label", "label_name", "operations", "target", "output"),
    }
    assert "predicted  3" in invoke("trace", "108", "--store", recorded).stdout
    assert "▀" in invoke("trace", "108", "--pictures", "--store", recorded).stdout
    exported = invoke("trace", "108", "--export", tmp_path / "out", "--store", recorded)
    assert exported.exit_code == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert "05-Normalize.npy" in names
    assert "00-load.png" in names
    array = np.load(tmp_path / "out" / "05-Normalize.npy")
    assert array.shape == (1, 16, 16)
    assert invoke("trace", "9999", "--store", recorded).exit_code == 1
    assert invoke("trace", "nothing.png", "--store", recorded).exit_code == 1


def test_replay(recorded: Path) -> None:
    done = invoke("replay", "--sample", 10, "--json", "--store", recorded)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["identical"] == 10
    assert "1 of 1 visits identical" in invoke("replay", "17", "--store", recorded).stdout
    assert invoke("replay", "17", "--all", "--store", recorded).exit_code == 2


def test_verify_and_remove(tmp_path: Path) -> None:
    store = tmp_path / "lineage"
    for name in ("one", "two"):
        audit.run(DIGITS, pipeline=PIPELINE, store=store, workers=0, limit=5, name=name)
    assert invoke("store", "verify", "--store", store).exit_code == 0
    part = next((store / "runs").glob("*/stage_outputs/*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    damaged = invoke("store", "verify", "--json", "--store", store)
    assert damaged.exit_code == 1
    assert len(json.loads(damaged.stdout)["damaged"]) == 1
    assert invoke("store", "remove", "one", "--yes", "--store", store).exit_code == 0
    with audit.open(store) as opened:
        assert [run.name for run in opened.runs()] == ["two"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["runs", "--store", "nowhere"], 2, "There is no store"),
        (["sql", "FROM runs", "--store", "nowhere"], 2, "There is no store"),
        (["run", "--dataset", "nowhere"], 2, "nowhere"),
        (["run", "nowhere"], 2, "nowhere"),
        (["run", "a", "--dataset", "b"], 2, "once"),
        (["run"], 2, "--dataset"),
        (["run", "--dataset", "x", "--capture-budget", "much"], 2, "not a size"),
        (["run", "--dataset", "x", "--tag", "alone"], 2, "KEY=VALUE"),
        (["nonsense"], 2, "No such command"),
        (["tarce", "3"], 2, "Did you mean trace"),
        (["store", "stat"], 2, "Did you mean stats?"),
        (["run", "hf:somewhere"], 2, "does not download from the Hugging Face Hub"),
    ],
)
def test_errors_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["select", "--where", "true", "-o", "{}.csv"],
        ["select", "--where", "true", "-o", "{}"],
        ["trace", "0", "--export", "{}"],
        ["replay", "0", "--workers", "0", "--export", "{}"],
        ["store", "attest", "--output", "{}"],
        ["store", "keygen", "{}"],
        ["report", "-o", "{}"],
        ["export", "--to", "csv", "-o", "{}"],
        ["sql", "FROM runs", "-o", "{}.csv"],
        ["baseline", "export", "-o", "{}"],
        ["check", "--only", "coverage", "-o", "{}"],
    ],
)
def test_a_place_that_cannot_be_written_is_a_sentence(recorded: Path, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").touch()
    place = ["--store", recorded] if "keygen" not in arguments else []
    done = invoke(*(word.format(tmp_path / "file" / "below") for word in arguments), *place)
    assert done.exit_code == 2, done.output
    assert "could not be written: Not a directory" in done.stderr


@pytest.mark.workers
def test_debug_shows_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "audit", "runs", "--store", str(tmp_path / "none"), "--debug"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_the_store_comes_from_the_environment(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_STORE", str(recorded))
    assert "first" in invoke("runs").stdout


@pytest.mark.workers
def test_a_closed_pipe_is_no_error(recorded: Path) -> None:
    command = f"{sys.executable} -m audit sql 'FROM stage_outputs' --format jsonl --store '{recorded}' | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_hostile_names_are_shown_as_text(tmp_path: Path, pictures: Callable[..., Path]) -> None:
    images = pictures(count=2)
    os.rename(images / "class_0" / "img_000.png", images / "class_0" / "\x1b[31m[bold]x[red]\n.png")
    invoke("run", "--dataset", images, "--store", tmp_path / "lineage", "--workers", 0)
    for arguments in (["trace", "0"], ["sql", "SELECT source FROM samples"], ["runs"]):
        shown = invoke(*arguments, "--store", tmp_path / "lineage")
        assert shown.exit_code == 0, shown.output
        assert "\x1b[31m" not in shown.stdout
    assert "[bold]x[red]" in invoke("trace", "0", "--store", tmp_path / "lineage").stdout


def test_a_strangers_text_does_not_control_the_terminal(tmp_path: Path) -> None:
    """Nor in errors and answers that quote a run's name, tags and paths."""
    escape = "\x1b]0;taken\x07\x9b31m\u202e"
    recipe = {"kind": "run", "dataset": f"x{escape}.py:build"}
    writer = RunWriter.create(
        str(tmp_path / "s"), Run("", name=f"a{escape}", tags={f"k{escape}": escape}, recipe=recipe)
    )
    writer.finish("complete")
    run = writer.run.run_id
    for arguments in (
        ["trace", "nothing", "0"],
        ["replay", run],
        ["runs"],
        ["runs", "--json"],
        ["runs", "tag", run, "x=y"],
        ["store", "attest"],
        ["sql", f"SELECT '{escape}"],
    ):
        shown = invoke(*arguments, "--store", tmp_path / "s").output
        assert shown
        assert not set(shown) & set(escape) - set("]0;taken31m"), (arguments, shown)
