"""What is published: the sdist holds its own tests, the wheel fits every Python, its page has no dead link."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from places import REPOSITORY

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


def test_the_recipes_ask_for_what_the_project_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    text = (PACKAGING / "conda-forge" / "meta.yaml").read_text()
    version = re.search(r'set version = "(.+)"', text)
    assert version is not None
    assert version[1] == project["version"]
    plain = re.sub(r"\{\{.*?\}\}", "X", re.sub(r"\{%.*?%\}\n", "", text))
    recipe = yaml.safe_load(plain)
    wanted = {re.sub(r"[ #].*", "", each).replace("torch>", "pytorch>") for each in project["dependencies"]}
    other_names = {"duckdb": "python-duckdb", "xxhash": "python-xxhash"}
    named = {other_names.get(re.split("[>=]", each)[0], re.split("[>=]", each)[0]) for each in wanted}
    assert named | {"python"} == {each.split()[0] for each in recipe["requirements"]["run"]}
    image = (PACKAGING / "Dockerfile").read_text()
    for copied in re.findall(r"^COPY (?!--)(.+) \S+$", image, re.MULTILINE):
        assert all((REPOSITORY / name).exists() for name in copied.split())
