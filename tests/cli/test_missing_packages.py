"""A command without its optional package names the extra that installs it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from places import DIGITS, PIPELINE

import audit
from audit.extras import EXTRAS

_WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
sys.argv = ["audit", *sys.argv[2:]]
from audit.__main__ import main
main()
"""


def run_without(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter that has no such module."""
    command = [sys.executable, "-c", _WITHOUT, module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("extras") / "lineage"
    audit.run(DIGITS, pipeline=PIPELINE, store=place, workers=0, limit=4)
    return place


@pytest.mark.parametrize(
    ("module", "command", "install"),
    [
        ("starlette", ["ui", "--port", "0", "--no-open"], "starlette"),
        ("jinja2", ["ui", "--port", "0", "--no-open"], "jinja2"),
        ("jinja2", ["report", "-o", "/dev/null"], "jinja2"),
        ("mlflow", ["export", "--to", "mlflow", "-o", "out"], "audit-lineage[mlflow]"),
        ("tensorboard", ["export", "--to", "tensorboard", "-o", "out"], "audit-lineage[tensorboard]"),
        ("openlineage", ["export", "--to", "openlineage", "-o", "out"], "audit-lineage[openlineage]"),
    ],
)
def test_a_command_without_its_package_names_what_to_install(
    store: Path, tmp_path: Path, module: str, command: list[str], install: str
) -> None:
    command = [str(tmp_path / "out") if word == "out" else word for word in command]
    done = run_without(module, *command, "--store", store)
    assert done.returncode == 2, done.stderr
    assert re.search(r"^audit: .* needs the package .*, which is not installed\.$", done.stderr, re.M), done.stderr
    assert f"pip install '{install}'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize(
    ("module", "options", "install"),
    [
        ("ray", ["--engine", "ray", "--dataset", DIGITS], "audit-lineage[ray]"),
        ("datasets", ["--dataset", f"hf:{DIGITS}"], "audit-lineage[hf]"),
        ("boto3", ["--dataset", "s3://bucket/folder"], "audit-lineage[s3]"),
    ],
)
def test_an_option_without_its_package_names_what_to_install(
    tmp_path: Path, module: str, options: list[str | Path], install: str
) -> None:
    done = run_without(module, "run", *options, "--pipeline", PIPELINE, "--store", tmp_path / "lineage")
    assert done.returncode == 2, done.stderr
    assert f"pip install '{install}'" in done.stderr
    assert "internal error" not in done.stderr


def test_any_missing_module_is_one_sentence(store: Path) -> None:
    """rich is in the base install and nobody guards its import: the boundary itself says what to do."""
    done = run_without("rich", "runs", "--store", store)
    assert done.returncode == 2, done.stderr
    assert "needs the package rich, which is not installed." in done.stderr
    assert "pip install 'rich'" in done.stderr


def test_a_missing_module_of_the_users_own_code_is_named(tmp_path: Path) -> None:
    pipeline = tmp_path / "mine_without.py"
    pipeline.write_text("import no_such_package_at_all\n")
    done = run_without("none", "run", "--dataset", DIGITS, "--pipeline", pipeline, "--store", tmp_path / "lineage")
    assert done.returncode == 1
    assert "Install the package that has no_such_package_at_all" in done.stderr


def test_the_table_of_extras_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(audit.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    for module, extra in EXTRAS.items():
        wanted = {"datasets": "datasets", "mlflow": "mlflow", "openlineage": "openlineage", "botocore": "boto3"}
        assert any(wanted.get(module, module) in line for line in declared[extra]), (module, extra)
    base = {re.split(r"[>=\[ ]", line)[0] for line in project["dependencies"]}
    assert {"starlette", "uvicorn", "jinja2"} <= base
    assert declared["ui"] == []
