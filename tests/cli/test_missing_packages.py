"""A command without its optional package names the extra that installs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from places import CHECKPOINT, DIGITS, PIPELINE
from warm_programs import warm_python

import audit
from audit.cli.main import cli
from audit.errors import MissingExtra
from audit.extras import EXTRAS

Hide = Callable[[str], None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Make a module look as if it were not installed."""

    def hide_module(name: str) -> None:
        for known in [name, *(key for key in sys.modules if key.startswith(f"{name}."))]:
            monkeypatch.setitem(sys.modules, known, None)

    return hide_module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with predictions, and files whose names alone need a package."""
    place = tmp_path_factory.mktemp("extras")
    audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=place / "lineage", workers=0, limit=4)
    for name in ("model.onnx", "model.safetensors", "data.yaml"):
        (place / name).write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    torch.save(torch.nn.Linear(2, 2).state_dict(), place / "weights.pt")
    return place


def invoke(folder: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(
        cli, [str(argument) for argument in arguments], env={"AUDIT_STORE": str(folder / "lineage")}
    )


_WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
sys.argv = ["audit", *sys.argv[2:]]
from audit.__main__ import main
main()
"""


def run_without(module: str, folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own that lacks a module: here, others may have imported what uses it."""
    command = [warm_python(), "-c", _WITHOUT, module, *map(str, arguments)]
    environment = os.environ | {"AUDIT_STORE": str(folder / "lineage")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def assert_names_package(done: subprocess.CompletedProcess[str], install: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(r"^audit: .* needs the package .*, which is not installed\.$", done.stderr, re.M), done.stderr
    assert f"pip install '{install}'" in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.workers
@pytest.mark.parametrize(
    ("module", "command", "install"),
    [
        ("starlette", "ui --port 0 --no-open", "starlette"),
        ("uvicorn", "ui --port 0 --no-open", "uvicorn"),
        ("jinja2", "ui --port 0 --no-open", "jinja2"),
        ("jinja2", "report -o {0}/report.html", "jinja2"),
        ("rich", "runs", "rich"),  # in the base install; nothing guards its import but the boundary itself
        ("mlflow", "export --to mlflow -o {0}/out", "audit-lineage[mlflow]"),
        ("tensorboard", "export --to tensorboard -o {0}/out", "audit-lineage[tensorboard]"),
        ("openlineage", "export --to openlineage -o {0}/out", "audit-lineage[openlineage]"),
        ("wandb", "export --to wandb -o {0}/out", "audit-lineage[wandb]"),
        ("cryptography", "store keygen {0}/release.key", "audit-lineage[sign]"),
        ("sklearn", "embed --method tsne", "audit-lineage[embed]"),
        ("umap", "embed --method umap", "audit-lineage[embed]"),
        ("boto3", "runs --store s3://bucket/lineage", "audit-lineage[s3]"),
        ("gcsfs", "runs --store gs://bucket/lineage", "audit-lineage[gcs]"),
        ("adlfs", "runs --store az://bucket/lineage", "audit-lineage[azure]"),
    ],
)
def test_a_command_without_its_package_names_what_to_install(
    folder: Path, module: str, command: str, install: str
) -> None:
    assert_names_package(run_without(module, folder, *command.format(folder).split()), install)


@pytest.mark.workers
@pytest.mark.parametrize(
    ("module", "options", "install"),
    [
        ("ray", "{1} --engine ray", "audit-lineage[ray]"),
        ("datasets", "hf:{1}", "audit-lineage[hf]"),
        ("boto3", "s3://bucket/folder", "audit-lineage[s3]"),
        ("yaml", "yolo:{0}/data.yaml", "pyyaml"),
        ("onnxruntime", "{1} --model {0}/model.onnx", "audit-lineage[onnx]"),
        ("safetensors", "{1} --model {0}/model.safetensors", "audit-lineage[safetensors]"),
    ],
)
def test_an_option_without_its_package_names_what_to_install(
    folder: Path, module: str, options: str, install: str
) -> None:
    words = options.format(folder, DIGITS).split()
    done = run_without(module, folder, "run", *words, "--pipeline", PIPELINE, "--workers", "0")
    assert_names_package(done, install)


@pytest.mark.parametrize(("module", "method"), [("pandas", "df"), ("polars", "pl")])
def test_an_answer_as_a_frame_names_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, method: str
) -> None:
    found = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == module else found(name, *rest))
    with audit.open(folder / "lineage") as store, pytest.raises(MissingExtra, match=module):
        getattr(store.sql("FROM samples"), method)()


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_a_callback_without_its_package_names_what_to_install(
    hide: Hide, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delitem(sys.modules, f"audit.integrations.{name}", raising=False)
    hide(name)
    with pytest.raises(MissingExtra, match=rf"audit-lineage\[{name}\]"):
        import_module(f"audit.integrations.{name}")


@pytest.mark.workers
def test_an_architecture_of_timm_names_what_to_install(folder: Path) -> None:
    done = run_without("timm", folder, "run", DIGITS, "--model", folder / "weights.pt", "--arch", "timm/resnet18")
    assert_names_package(done, "audit-lineage[timm]")


def test_a_missing_module_of_the_users_own_code_is_named(tmp_path: Path, folder: Path) -> None:
    pipeline = tmp_path / "mine_without.py"
    pipeline.write_text("import no_such_package_at_all\n")
    done = invoke(folder, "run", "--dataset", DIGITS, "--pipeline", pipeline)
    assert done.exit_code == 1
    assert "Install the package that has no_such_package_at_all" in done.stderr


def test_the_table_of_extras_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(audit.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    # Modules of another name than their package, or that come with it.
    packages = {"botocore": "boto3", "sklearn": "scikit-learn", "huggingface_hub": "transformers"}
    for module, extra in EXTRAS.items():
        assert any(packages.get(module, module) in line for line in declared[extra]), (module, extra)
    base = {re.split(r"[>=\[ ]", line)[0] for line in project["dependencies"]}
    assert {"starlette", "uvicorn", "jinja2"} <= base
    assert declared["ui"] == []


def test_every_optional_import_is_in_the_table() -> None:
    """A module that audit imports is of the standard library, of the base install, or in the table of extras."""
    project = tomllib.loads((Path(audit.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[>=\[ ]", line)[0].replace("pillow", "PIL") for line in project["dependencies"]}
    brought = {"markupsafe", "yaml", "polars", "pytest"}  # by jinja2; with a sentence of their own; the plugin's host
    used = set()
    for path in Path(audit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used.add(node.module.partition(".")[0])
    assert used - {*sys.stdlib_module_names} - base - brought - {"audit"} - {*EXTRAS} == set()
