"""`audit check` and `audit baseline` as commands, what they leave in the store, and the commands of docs/howto/ci.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from checks_world import CLASSES, World, world
from click.testing import CliRunner, Result
from warm_programs import warm_folder

from audit.checks.baseline import export_baseline, read_baseline
from audit.checks.documentation import checks_page
from audit.checks.runner import run_checks
from audit.cli.main import cli
from audit.errors import UsageError
from audit.store.read.reader import Reader

Plant = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]


def audit(*arguments: str) -> Result:
    """One command, in this process."""
    return CliRunner().invoke(cli, list(arguments))


def broken(w: World) -> None:
    w.output(9, 2)["nonfinite"] = 12


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from this repository's own pyproject.toml, and without a runner's environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_exit_codes(planted: Plant) -> None:
    store = str(planted(broken))
    assert audit("check", "--store", store, "--only", "blank").exit_code == 0
    assert audit("check", "--store", store).exit_code == 1
    result = audit("check", "--store", store, "--only", "fnite")
    assert (result.exit_code, "finite" in result.stderr) == (2, True)
    Path("audit.toml").write_text("[checks.finite]\nthreshhold = 1\n")
    result = audit("check", "--store", store)
    assert (result.exit_code, "threshhold" in result.stderr) == (2, True)


def test_there_is_no_run_or_no_store(planted: Plant, tmp_path: Path) -> None:
    assert audit("check", "--store", str(tmp_path / "nowhere")).exit_code == 2
    store = planted()
    assert audit("check", "nonsense", "--store", str(store)).exit_code == 1
    shutil.rmtree(store / "runs")
    result = audit("check", "--store", str(store))
    assert (result.exit_code, "holds no run" in result.stderr) == (1, True)


def test_a_run_without_a_model_skips_what_needs_one(planted: Plant) -> None:
    store = planted(lambda w: w.tables["predictions"].clear())
    reported = json.loads(audit("check", "--store", str(store), "--json").stdout)
    status = {check["check"]: (check["status"], check["message"]) for check in reported["checks"]}
    for name in ("accuracy", "calibration", "alignment", "probabilities", "label_issues", "class_order"):
        assert status[name][0] == "skip"
        assert "--model" in status[name][1]
    assert status["coverage"][0] == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "junit", "sarif", "github", "markdown", "text"])
def test_every_form_on_standard_output_and_in_a_file(planted: Plant, form: str, tmp_path: Path) -> None:
    store = str(planted(broken))
    result = audit("check", "--store", store, "--only", "finite", "--format", form)
    assert result.exit_code == 1
    assert "009.png" in result.stdout
    if form in ("json", "sarif"):
        json.loads(result.stdout)
    if form == "junit":
        ET.fromstring(result.stdout)
    written = audit("check", "--store", store, "--only", "finite", "--format", form, "-o", str(tmp_path / "out"))
    assert (written.exit_code, written.stdout) == (1, "")
    assert "009.png" in (tmp_path / "out").read_text(encoding="utf-8")
    assert "009.png" in written.stderr


def test_the_step_summary_is_written(planted: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    audit("check", "--store", str(planted(broken)), "--only", "finite", "--format", "github")
    assert "❌ failed" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_list_and_init(planted: Plant) -> None:
    from audit.checks.registry import all_checks

    store = str(planted())
    listed = audit("check", "--list").stdout
    assert all(f"  {check.name} (" in listed for check in all_checks())
    assert len(json.loads(audit("check", "--list", "--format", "json").stdout)) == len(all_checks())
    assert audit("check", "--init", "--store", store).exit_code == 0
    assert tomllib.loads(Path("audit.toml").read_text())["fail_on"] == "error"
    assert audit("check", "--store", store).exit_code == 0
    again = audit("check", "--init", "--store", store)
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)


@pytest.mark.slow
def test_findings_are_rows_that_a_second_look_replaces(planted: Plant) -> None:
    store = planted(broken)
    run_checks(str(store))
    with Reader(str(store)) as reader:
        before = reader.run()
        rows = reader.sql("SELECT * FROM findings WHERE status = 'fail'").dicts()
        assert [(row["check_name"], row["index"], row["stage"], row["severity"]) for row in rows] == [
            ("finite", 9, 2, "error")
        ]
        evidence = json.loads(rows[0]["evidence"])["sql"]
        assert reader.sql(evidence).dicts()[0]["nonfinite"] == 12
        assert reader.sql("SELECT count(DISTINCT check_name) AS n FROM findings").dicts()[0]["n"] > 30
    for _ in range(3):
        run_checks(str(store), only=["blank"])
    with Reader(str(store)) as reader:
        assert [row["check_name"] for row in reader.sql("FROM findings").dicts()] == ["blank"]
        assert reader.run() == before
        assert not list((store / "runs").rglob("*.tmp"))
    assert len(list((store / "runs").rglob("findings/*.parquet"))) <= 2


def test_a_store_that_cannot_be_written_is_judged_all_the_same() -> None:
    made = world()
    broken(made)
    # Not under pytest's own folder, which only its owner may enter: root becomes somebody else here.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    store = made.write(folder / "lineage")
    run = next((store / "runs").iterdir())
    run.chmod(0o555)
    (run / ".writer.lock").chmod(0o444)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        report = run_checks(str(store), only=["finite"])
    finally:
        if root:
            os.seteuid(0)
        run.chmod(0o755)
        shutil.rmtree(folder)
    assert report.outcome("finite").status == "fail"
    assert any("could not be stored" in note for note in report.notes)


def test_a_run_that_is_being_written_is_judged_and_not_touched(tmp_path: Path) -> None:
    from audit.store.local_filesystem import LocalFilesystem
    from audit.store.manifest import lock_path

    store = world().write(tmp_path / "lineage")
    with Reader(str(store)) as reader:
        run_id = reader.run().run_id
    with LocalFilesystem(store).lock(lock_path(run_id)):
        report = run_checks(str(store), only=["finite"])
    assert report.outcome("finite").status == "pass"
    assert any("could not be stored" in note for note in report.notes)


def test_an_interrupted_run_is_reported_as_one(tmp_path: Path) -> None:
    made = world()
    made.run.expected = 80
    store = made.write(tmp_path / "lineage", status="interrupted")
    with Reader(str(store)) as reader:
        run_id = reader.runs()[0].run_id
    report = run_checks(str(store), run_id, only=["coverage"])
    assert report.outcome("coverage").total == 20
    assert any("interrupted" in note for note in report.notes)


@pytest.mark.slow
def test_a_baseline_file_says_what_its_run_says(tmp_path: Path) -> None:
    store = tmp_path / "lineage"
    world(name="before").write(store)
    changed = world(name="now")
    changed.sample(14)["source_digest"] = "0" * 64
    changed.sample(20)["source"] = "dog/ünïcode 'quoted'.png"
    changed.stage(1)["parameters"] = '{"size": [28]}'
    for row in changed.outputs(0):
        row["mean"] -= 60
    for row in changed.tables["predictions"][:12]:
        row.update(predicted=(row["label"] + 1) % 3, correct=False)
    changed.write(store)
    result = audit("baseline", "export", "before", "-o", "baseline.json", "--store", str(store))
    assert result.exit_code == 0, result.stderr
    checks = ["pipeline_changed", "dataset_changed", "prediction_flips", "drift", "accuracy"]
    reported = [
        [
            (outcome.check, finding.index, finding.source, finding.stage, finding.message)
            for outcome in run_checks(str(store), "now", baseline=baseline, only=checks).outcomes
            for finding in outcome.findings
        ]
        for baseline in ("before", "baseline.json")
    ]
    assert reported[0] == reported[1]
    assert {check for check, *_ in reported[0]} == set(checks)
    assert ("dataset_changed", None, "dog/020.png") in {row[:3] for row in reported[0]}
    with Reader(str(store)) as reader:
        export_baseline(reader, "before", "again.json")
    assert Path("again.json").read_bytes() == Path("baseline.json").read_bytes()
    text = Path("baseline.json").read_text(encoding="utf-8")
    assert "/nowhere" not in text
    assert len(read_baseline("baseline.json").items) == 60
    assert read_baseline("baseline.json").classes == CLASSES


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": {"name": "audit-baseline", "version": 99}}'])
def test_a_wrong_baseline_is_named(planted: Plant, content: str) -> None:
    Path("baseline.json").write_text(content)
    with pytest.raises(UsageError, match=r"baseline\.json is not a baseline"):
        run_checks(str(planted()), baseline="baseline.json")


def test_a_missing_baseline_is_named(planted: Plant) -> None:
    store = str(planted())
    assert audit("check", "--baseline", "nowhere.json", "--store", store).exit_code == 2
    assert audit("check", "--baseline", "norun", "--store", store).exit_code == 1
    assert audit("check", "--baseline", "latest", "--store", store).exit_code == 2


# -- documentation ----------------------------------------------------------------------------------


def test_the_page_of_checks_is_what_the_code_declares() -> None:
    assert (ROOT / "docs/CHECKS.md").read_text(encoding="utf-8") == checks_page()


def test_the_example_configuration_of_the_page_is_valid() -> None:
    from audit.checks.config import parse_configuration

    example = next(text for text in _blocks("CHECKS.md", "toml") if "fail_on" in text)
    configuration = parse_configuration(tomllib.loads(example), "CHECKS.md")
    assert {"large-files", "mean-loss"} <= {setting.name for setting in configuration.settings}


def test_the_example_check_of_the_page_works(planted: Plant) -> None:
    from audit.checks.registry import CHECKS

    names: dict[str, object] = {}
    exec(next(text for text in _blocks("CHECKS.md", "python") if "class Tiny" in text), names)
    CHECKS.add("tiny", names["Tiny"])  # type: ignore[arg-type]
    try:
        store = planted(lambda w: w.sample(5).update(source_bytes=7))
        assert [f.index for f in run_checks(str(store), only=["tiny"]).outcome("tiny").findings] == [5]
    finally:
        del CHECKS._members["tiny"]


def _blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def _commands(place: str) -> list[str]:
    """The lines of docs/howto/ci.md that one of its recipes would run."""
    import yaml

    blocks = [yaml.safe_load(text) for text in _blocks("howto/ci.md", "yaml")]
    if place == "steps":
        steps = next(block for block in blocks if isinstance(block, list))
        lines = [line for step in steps for line in step.get("run", "").splitlines()]
    elif place == "audit":
        lines = next(block for block in blocks if place in block)["audit"]["script"]
    else:
        used = next(block for block in blocks if place in block)["repos"][0]["hooks"][0]
        hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
        entry = next(hook["entry"] for hook in hooks if hook["id"] == used["id"])
        lines = [f"{entry} {shlex.join(used['args'])}", next(h["entry"] for h in hooks if h["id"] == "audit-check")]
    return [line for line in lines if line.startswith("audit ")]


@pytest.fixture
def project(tmp_path: Path, digits: Path) -> Path:
    """A repository as docs/howto/ci.md has it: data/test, model.pt, pipeline.py, baseline.json."""
    shutil.copytree(digits.parent / "test", tmp_path / "data/test")
    shutil.copy(ROOT / "fixtures/digits.pt", tmp_path / "model.pt")
    shutil.copy(ROOT / "pipelines/digits.py", tmp_path / "pipeline.py")
    with Reader(str(digits)) as reader:
        export_baseline(reader, None, tmp_path / "baseline.json")
    return tmp_path


@pytest.mark.workers
@pytest.mark.parametrize(("place", "files"), [("steps", ["audit.sarif"]), ("audit", ["audit.xml"]), ("repos", [])])
def test_the_commands_of_each_recipe_run(project: Path, place: str, files: list[str]) -> None:
    commands = _commands(place)
    assert any("check" in line for line in commands)
    for line in commands:
        result = audit(*shlex.split(line.removesuffix(" || true"))[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert all((project / file).stat().st_size for file in files)
    # The gate closes when a file is broken and a label moves, and says which.
    (project / "data/test/3").joinpath("broken.png").write_bytes(b"not a picture")
    results = [audit(*shlex.split(line.removesuffix(" || true"))[1:]) for line in commands]
    assert any(result.exit_code == 1 and "3/broken.png" in result.output for result in results)


def test_without_recording_no_file_of_the_store_changes(planted: Plant) -> None:
    store = planted(lambda w: w.sample(5).update(label=-3))
    before = {file: file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()}
    assert audit("check", "--store", str(store), "--no-record").exit_code == 1
    assert {file: file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()} == before


def _action_steps(inputs: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """The scripts of action.yml that run with these inputs, each with its environment."""
    import yaml

    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {name: about["default"] for name, about in action["inputs"].items()} | inputs
    assert set(inputs) <= set(action["inputs"])
    steps = []
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]  # an input in a script could be a command of a stranger's
        environment = {
            key: given[re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1]]
            for key, value in step.get("env", {}).items()
        }
        condition = re.fullmatch(r"inputs\.(\w+) (==|!=) '(\w*)'", step.get("if", "inputs.store != ''"))
        if (given[condition[1]] == condition[3]) == (condition[2] == "=="):
            steps.append((step["run"], environment))
    return steps


def test_the_action_installs_into_the_python_of_later_steps(tmp_path: Path) -> None:
    """Also where an earlier step activated an environment, which `uv pip install --system` would not use."""
    import subprocess

    python = tmp_path / "environment/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> "$COMMANDS"\n')
    python.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{python.parent}:{os.environ['PATH']}", "GITHUB_ACTION_PATH": "/the action", "COMMANDS": str(tmp_path / "commands"),
    }  # fmt: skip
    script, given = _action_steps({})[0]
    subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script], cwd=tmp_path, env=environment | given, check=True, timeout=60
    )
    pip, uv = (tmp_path / "commands").read_text().splitlines()
    assert re.fullmatch("-m pip install .*uv", pip)
    assert re.fullmatch("-m uv pip install .*/the action", uv)
    assert {f"--python {python}", "--torch-backend=cpu"} <= set(re.findall(r"--python \S+|--[\w-]+=\S+|--system", uv))
    assert "--system" not in uv


@pytest.mark.workers
def test_the_scripts_of_the_action_run(project: Path) -> None:
    import subprocess

    import yaml

    used = next(
        step["with"]
        for text in _blocks("howto/ci.md", "yaml")
        if "jobs" in (content := yaml.safe_load(text))
        for step in content["jobs"]["audit"]["steps"]
        if step["uses" if "uses" in step else "name"].startswith("OWNER/audit@")
    )
    output, summary = project / "output", project / "summary.md"
    environment = os.environ | {
        "PATH": f"{warm_folder()}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "HOME": str(project),
    }  # fmt: skip
    codes = []
    for broken_file in (False, True):
        if broken_file:
            (project / "data/test/3").joinpath("broken.png").write_bytes(b"not a picture")
        steps = _action_steps(used | {"install": "false"})
        assert len(steps) == 2
        done = [
            subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=project, env=environment | given,
                           capture_output=True, text=True, timeout=200)
            for script, given in steps
        ]  # fmt: skip
        codes.append([one.returncode for one in done])
        assert "comment=audit.md" in output.read_text()
    assert codes == [[0, 0], [0, 1]]
    assert "::error file=data/test/3/broken.png" in done[1].stdout
    assert "broken.png" in (project / "audit.md").read_text(encoding="utf-8").replace("\\", "")
    assert "failed" in summary.read_text(encoding="utf-8")
