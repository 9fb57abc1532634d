"""What a new user meets: help, defaults, names that are nearly right, and a summary that says what to do next."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from places import CHECKPOINT, DIGITS, PIPELINE

import audit
from audit.cli.main import cli
from audit.records import Progress


def invoke(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("first") / "lineage"
    audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=place, workers=0, name="baseline", tags={"team": "a"})
    audit.run(DIGITS, pipeline=PIPELINE, store=place, workers=0, limit=5, name="candidate")
    return place


def test_the_summary_names_the_surest_mistakes_and_the_next_commands(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    options: list[str | Path | int] = ["--model", CHECKPOINT, "--pipeline", PIPELINE, "--store", place, "--workers", 0]
    done = invoke("run", DIGITS, *options)
    assert done.exit_code == 0, done.output
    with audit.open(place) as opened:
        expected = opened.sql(
            "SELECT index, source, confidence FROM wrong_predictions ORDER BY confidence DESC LIMIT 3"
        ).fetchall()
    assert len(expected) == 3
    for index, source, confidence in expected:
        assert re.search(rf"{index}  {re.escape(source)}  \S+ \({confidence:.1%}\) instead of", done.stdout)
    assert f"audit trace {expected[0][0]} --store {place}" in done.stdout
    assert f"audit ui --store {place}" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()], "piped output is not padded"


def test_a_head_that_does_not_fit_the_folders_is_said_at_the_start(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images = pictures(classes=5)
    pipeline = write_pipeline(
        "from torch import nn\n"
        "transform = [v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]\n"
        "def model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 7))\n"
    )
    torch.save(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 7)).state_dict(), tmp_path / "head.pt")
    place = tmp_path / "lineage"
    done = invoke(
        "run", images, "--model", tmp_path / "head.pt", "--pipeline", pipeline, "--store", place, "--workers", 0
    )
    assert done.exit_code == 0, done.output
    assert "note: The model has 7 outputs and the dataset 5 classes" in done.stderr
    reports: list[Progress] = []
    audit.run(images, pipeline=pipeline, model=tmp_path / "head.pt", store=place, workers=0, progress=reports.append)
    notes = [number for number, progress in enumerate(reports) if progress.note]
    begun = next(number for number, progress in enumerate(reports) if progress.done)
    assert len(notes) == 1
    assert notes[0] < begun
    assert [progress.doing for progress in reports if progress.total is None and not progress.note] == [
        "loading the model",
        "opening the dataset",
    ]
    assert "waiting for the first batch" in [progress.doing for progress in reports]


def test_one_folder_alone_is_no_set_of_classes(pictures: Callable[..., Path], tmp_path: Path) -> None:
    images = pictures(classes=1)
    done = invoke("run", images, "--store", tmp_path / "lineage", "--workers", 0)
    assert "note: There is one class folder, class_0: every label is 0." in done.stderr


def test_help_shows_whole_descriptions_in_groups() -> None:
    text = invoke("--help").stdout
    titles = [line.rstrip(":") for line in text.splitlines() if re.fullmatch(r"[A-Z]\w+:", line)]
    assert titles == ["Options", "Record", "Ask", "Compare", "Gate", "Look", "Maintain"]
    assert "..." not in text.partition("\n")[2]
    for name in cli.commands:
        assert re.search(rf"^  {name} +\S", text, re.M), name
    assert "Exit codes" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["trace", "basline", "3"], 1, "Did you mean baseline?"),
        (["replay", "baseline", "3", "--stage", "Resise"], 2, "Did you mean Resize?"),
        (["replay", "baseline", "3", "--stage", "99"], 2, "has no stage 99"),
        (["sql", "FROM sample"], 1, "Did you mean"),
        (["run", DIGITS, "--model", str(CHECKPOINT)[:-1]], 2, "Did you mean"),
        (["run", DIGITS, "--pipeline", "nowhere.py"], 2, "There is no pipeline file nowhere.py"),
        (["run", DIGITS, "--pipeline", str(PIPELINE) + ":transfrom"], 2, "Did you mean transform"),
        (["run", DIGITS, "--model", DIGITS], 1, "A folder of samples is passed with --dataset"),
        (["run", DIGITS, "--model", CHECKPOINT, "--arch", "resnet81"], 2, "Did you mean resnet18, resnet"),
        (["run", "torchvision:CIFAR11"], 2, "Did you mean CIFAR10, CIFAR100"),
        (["check", "--baseline", "nowhere.json"], 2, "There is no baseline file"),
        (["trace", "3", "baseline"], 2, "baseline is a run, and comes before the sample: audit trace baseline 3"),
        (["trace", "baseline"], 2, "Name a sample of it too: audit trace baseline INDEX"),
        (["trace", "baseline", "0/97.pgn"], 1, "Did you mean 0/"),
        (["sql", "FROM", "samples"], 2, "Put it in quotes: audit sql 'FROM samples'"),
        (["sql", " "], 2, "No query was given."),
        (["sql", "FROM 'list.csv'"], 1, "A query can read the tables and views of the store, and nothing else."),
        (["tag", "baseline", "odd", "9999"], 1, "See them with: audit sql 'FROM samples'"),
        (["select", "baseline", "--tag", "unused", "-o", "a.csv"], 1, "has the tag 'unused'"),
        (["select", "baseline", "-o", "a.xlsx"], 2, "its ending is .xlsx"),
        (["store", "remove", "baseline"], 2, "must be confirmed. Pass --yes."),
        (["embed", "candidate"], 1, "has no logits."),
        (["run", "--resume", "baseline"], 2, "See which runs are interrupted"),
        (["run", DIGITS, "--name", "latest"], 2, "Choose another name."),
        (["run", DIGITS, "--pipeline", DIGITS], 2, "is a folder."),
        (["run", DIGITS, "--pipeline", CHECKPOINT], 2, "is not a Python file."),
        (["run", f"{PIPELINE}:datast"], 2, "has no 'datast'"),
        (["run", DIGITS, "--model", f"{PIPELINE}:modle"], 2, f"Did you mean {PIPELINE}:model?"),
        (["run", DIGITS, "--model", "no_such_module:build"], 2, "There is no Python module 'no_such_module'."),
        (["run", next(DIGITS.rglob("*.png"))], 1, "is a single sample, not a dataset."),
        (["run", "https://example.org/pictures.zip"], 2, "https:// is not supported."),
        (["run", "nowhere"], 2, "There is no file or folder nowhere."),
    ],
)
def test_names_that_are_nearly_right(store: Path, arguments: list[str | Path], code: int, said: str) -> None:
    done = invoke(*arguments, "--store", store)
    assert done.exit_code == code, done.output
    assert said in done.stderr


def test_a_path_is_suggested_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "val").mkdir(parents=True)
    (tmp_path / "pipe.py").write_text("transform = None")
    assert "Did you mean photos/val?" in invoke("run", "photos/vla").stderr
    assert f"Did you mean {tmp_path}/photos/val?" in invoke("run", tmp_path / "photos" / "vla").stderr
    said = invoke("run", "photos/val", "--pipeline", "pip.py").stderr
    assert "Did you mean pipe.py? Give --pipeline" in said


def test_a_stage_by_its_name(store: Path) -> None:
    done = invoke("replay", "baseline", "3", "--stage", "resize", "--json", "--store", store)
    assert done.exit_code == 0, done.output
    with audit.open(store) as opened:
        assert opened.replay("baseline", indices=[3], stage="Normalize").passed


def test_runs_are_chosen_renamed_and_tagged(store: Path, tmp_path: Path) -> None:
    def names(*options: str) -> list[str]:
        done = invoke("runs", "--json", "--store", store, *options)
        assert done.exit_code == 0, done.output
        return [run["name"] for run in json.loads(done.stdout)]

    assert names("--where", "accuracy > 0.5") == ["baseline"]
    assert names("--where", "tags['team'] = 'a' -- mine") == ["baseline"]
    assert names("--where", "samples < 10") == ["candidate"]
    assert invoke("runs", "--where", "nonsense", "--store", store).exit_code == 1
    assert invoke("runs", "tag", "candidate", "team=b", "reviewed=yes", "--store", store).exit_code == 0
    assert names("--where", "tags['reviewed'] = 'yes'") == ["candidate"]
    assert invoke("runs", "--store", store, "tag", "candidate", "--remove", "reviewed").exit_code == 0
    assert names("--where", "tags['reviewed'] = 'yes'") == []
    assert invoke("runs", "tag", "candidate", "--store", store).exit_code == 2
    assert invoke("runs", "tag", "candidate", "team", "--store", store).exit_code == 2
    assert invoke("runs", "rename", "candidate", "second", "--store", store).exit_code == 0
    assert names() == ["baseline", "second"]
    assert invoke("runs", "rename", "second", "latest", "--store", store).exit_code == 2
    with audit.open(store) as opened:
        assert opened.rename("second", "candidate").name == "candidate"
        assert opened.verify() == []


def test_stats_count_what_is_there(store: Path) -> None:
    found = json.loads(invoke("store", "stats", "--json", "--store", store).stdout)
    with audit.open(store) as opened:
        samples = opened.sql("SELECT count(*) FROM samples").fetchall()[0][0]
    tables = {table["table"]: table for table in found["tables"]}
    assert (found["runs"], tables["samples"]["rows"]) == (2, samples)
    on_disk = sum(path.stat().st_size for path in store.rglob("*.parquet"))
    assert found["bytes"] == on_disk
    assert "samples" in invoke("store", "stats", "candidate", "--store", store).stdout


def test_defaults_come_from_files_and_are_shown(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.delenv("AUDIT_STORE", raising=False)
    monkeypatch.chdir(tmp_path)

    def shown() -> dict[str, tuple[object, str]]:
        done = invoke("config", "--json")
        assert done.exit_code == 0, done.output
        return {row["name"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}

    assert shown() == {"store": ("lineage", "built in")}
    (home / "audit").mkdir(parents=True)
    user = home / "audit" / "config.toml"
    user.write_text(f'[defaults]\nstore = "{store}"\n[defaults.run]\nworkers = 0\nbatch-size = 7\n')
    assert shown()["store"] == (str(store), str(user))
    assert invoke("runs").exit_code == 0
    (tmp_path / "audit.toml").write_text('[defaults]\nstore = "mine"\n[defaults.run]\nbatch-size = 3\n')
    assert shown() == {
        "store": ("mine", "audit.toml"), "run.batch_size": (3, "audit.toml"), "run.workers": (0, str(user))
    }  # fmt: skip
    done = invoke("run", DIGITS, "--pipeline", PIPELINE, "--limit", 7)
    assert done.exit_code == 0, done.output
    with audit.open() as opened:
        assert opened.location.endswith("mine")
        assert opened.run().recipe["batch_size"] == 3
        assert opened.check(only=["coverage"]).passed, "audit.toml's defaults do not set a check"
    monkeypatch.setenv("AUDIT_STORE", str(store))
    assert shown()["store"] == (str(store), "$AUDIT_STORE")
    (tmp_path / "audit.toml").write_text("[defaults.run]\nbatchsize = 3\n")
    refused = invoke("runs")
    assert refused.exit_code == 2
    assert "batch_size" in refused.stderr
    (tmp_path / "audit.toml").write_text("[defaults\n")
    assert invoke("runs").exit_code == 2


@pytest.mark.parametrize(
    "option", ["trust = true", 'pipeline = "evil.py"', 'arch = "evil.py:build"', 'model = "evil.pt"']
)
def test_a_file_in_the_working_directory_lets_no_code_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit.toml").write_text(f"[defaults.run]\n{option}\n")
    done = invoke("run", "pictures")
    assert done.exit_code == 2
    assert "would let code run" in done.stderr


@pytest.mark.parametrize(
    ("command", "option", "harm"),
    [
        ("report", 'output = "{}/outside.html"', "write outside"),
        ("report", 'output = "../outside.html"', "write outside"),
        ("report", 'output = "link.html"', "write outside"),
        ("trace", 'export-to = "{}/outside"', "write outside"),
        ("run", 'address = "ray://evil:1"', "let code run"),
        ("ui", 'host = "0.0.0.0"', "open the store"),
        ("ui", "write = true", "open the store"),
        ("sql", "allow-damaged = true", "hide damage"),
        ("sql", "verify-reads = false", "hide damage"),
    ],
)
def test_a_file_in_the_working_directory_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str, harm: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (here / "link.html").symlink_to(tmp_path / "outside.html")
    text = f"[defaults.{command}]\n{option.format(tmp_path)}\n"
    (here / "audit.toml").write_text(text)
    done = invoke("runs")
    assert (done.exit_code, f"would {harm}" in done.stderr) == (2, True), done.output
    (here / "audit.toml").write_text('[defaults.report]\noutput = "inside.html"\n[defaults.run]\noutput = "logits"\n')
    assert "would" not in invoke("runs").stderr
    (here / "audit.toml").unlink()
    (tmp_path / "own" / "audit").mkdir(parents=True)
    (tmp_path / "own" / "audit" / "config.toml").write_text(text)
    assert "would" not in invoke("runs").stderr, "the user's own file may"
