"""What is published: the sdist holds its own tests, the wheel fits every Python, its page has no dead link."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import StrictUndefined, Template
from places import REPOSITORY

from audit.identity import PROJECT_ADDRESS

PACKAGING = REPOSITORY / "packaging"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist and the wheel, built from what Git holds."""
    tree, dist = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=REPOSITORY, capture_output=True)
    if archive.returncode:
        pytest.skip("not a Git repository: this is the sdist itself")
    subprocess.run(["tar", "x", "-C", tree], input=archive.stdout, check=True)
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, tree]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return dist


@pytest.mark.workers
def test_the_sdist_holds_all_that_its_tests_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    missing = {*tracked.stdout.split()} - names
    assert {name for name in missing if not name.startswith(".git")} == set()


@pytest.mark.workers
def test_one_wheel_fits_every_python_and_its_page_has_no_relative_link(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
        assert any(name.endswith("_native.abi3.so") for name in archive.namelist())
        assert not [name for name in archive.namelist() if name.startswith("tests/")]
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 8
    assert [link for link in links if not link.startswith("https://")] == []
    assert "Project-URL: Documentation" in text


def conda_recipe() -> dict[str, Any]:
    """Return the recipe as conda-build reads it: rendered by Jinja, without the lines of other platforms, then YAML."""
    text = (PACKAGING / "conda-forge" / "meta.yaml").read_text()
    rendered = Template(text, undefined=StrictUndefined).render(
        PYTHON="python", compiler=lambda language: f"{language}-compiler", stdlib=lambda language: f"{language}-stdlib"
    )
    lines = [line for line in rendered.splitlines() if not re.search(r"# \[(?:win|py<311)", line)]
    recipe: dict[str, Any] = yaml.safe_load("\n".join(lines))
    return recipe


def test_the_conda_recipe_is_complete() -> None:
    """What conda-forge's linter asks of a recipe."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    recipe = conda_recipe()
    order = ["package", "source", "build", "requirements", "test", "about", "extra"]
    assert list(recipe) == order
    assert (recipe["package"]["name"], recipe["package"]["version"]) == (project["name"], project["version"])
    assert recipe["build"]["number"] == 0
    assert recipe["build"]["entry_points"] == [f"{name} = {place}" for name, place in project["scripts"].items()]
    assert {"build", "host", "run"} == {*recipe["requirements"]}
    assert {"python", "pip"} <= {*recipe["requirements"]["host"]}
    assert recipe["test"]["imports"] == ["audit"]
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (project["description"], project["license"])
    assert about["home"] == PROJECT_ADDRESS
    assert (REPOSITORY / about["license_file"]).exists()
    assert recipe["extra"]["recipe-maintainers"]


def test_the_conda_recipe_asks_for_what_the_project_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = {re.sub(r"[ #].*", "", each) for each in project["dependencies"]}
    other_names = {"duckdb": "python-duckdb", "xxhash": "python-xxhash", "torch": "pytorch"}
    named = {
        " ".join([other_names.get(name, name), version]).strip()
        for name, version in (re.fullmatch(r"([\w-]+)(.*)", each).groups() for each in wanted)  # type: ignore[union-attr]
    }
    python = f"python {project['requires-python']}"
    assert named | {python} == {*conda_recipe()["requirements"]["run"]}


def docker_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments; lines that end in a backslash go on."""
    text = (PACKAGING / "Dockerfile").read_text()
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
    pairs = [line.partition(" ")[::2] for line in text.splitlines() if line.strip()]
    return [(name, arguments.strip()) for name, arguments in pairs]


def test_the_image_is_built_from_files_that_are_there() -> None:
    instructions = docker_instructions()
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ARG", "USER", "ENV", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions} <= known
    assert instructions[0][0] == "FROM"
    stages = {arguments.split(" AS ")[1] for name, arguments in instructions if name == "FROM" and " AS " in arguments}
    for arguments in (arguments for name, arguments in instructions if name == "COPY"):
        if stage := re.match(r"--from=(\w+) ", arguments):
            assert stage[1] in stages
        else:
            *copied, _ = arguments.split()
            assert all((REPOSITORY / name).exists() for name in copied), arguments
    for name, arguments in instructions:
        if name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(arguments)), "the form of a list, without a shell"
        if name == "FROM":
            assert re.search(r":[\w.-]+( AS |$)", arguments), "an image without a version changes by itself"
    users = [arguments for name, arguments in instructions if name == "USER"]
    assert users, "the program does not run as root"
    assert users[-1] != "root"


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[(.+)\]'", (PACKAGING / "Dockerfile").read_text())
    assert {*extras.split(",")} <= {*project["optional-dependencies"]}
    assert "torch==" in (REPOSITORY / "constraints.txt").read_text()


def test_the_address_of_the_project_is_kept_in_one_place() -> None:
    """Package index, conda recipe and OpenLineage name the same address; no other file repeats it."""
    listed = subprocess.run(["git", "grep", "-l", PROJECT_ADDRESS], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode > 1:
        pytest.skip("not a Git repository: this is the sdist itself")
    assert {*listed.stdout.split()} == {"audit/identity.py", "packaging/conda-forge/meta.yaml"}
