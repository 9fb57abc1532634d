"""The pages of the site are true: it builds without a warning, and what pages show is what the commands print."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from page_sessions import mask_session, page_sessions, run_session
from places import DIGITS, PIPELINE, REPOSITORY

DOCS = REPOSITORY / "docs"


@pytest.mark.workers
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    start = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'href="cli.html"' in start
    assert 'src="images/trace.webp"' in start
    # A page without outside help: readers behind a firewall see the same.
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?://', start)


class Pickled:
    def __reduce__(self) -> tuple[object, ...]:
        return (eval, ("1",))  # not print, which Ray replaces in its process


@pytest.mark.workers
def test_the_messages_of_the_troubleshooting_page_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import audit

    monkeypatch.chdir(tmp_path)
    (tmp_path / "fixtures").symlink_to(REPOSITORY / "fixtures")
    (tmp_path / "bad_import.py").write_text("import nothing_there\n")
    (tmp_path / "no_transform.py").write_text("size = 16\n")
    torch.save(Pickled(), "pickled.pt")
    audit.run(DIGITS, pipeline=PIPELINE, store="lineage", name="small", workers=0, limit=4)
    shown = page_sessions((DOCS / "TROUBLESHOOTING.md").read_text(encoding="utf-8"))
    assert len(shown) >= 9
    for command, expected in shown:
        output, code = run_session(command, tmp_path)
        said = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "RUN", output)
        said = said.replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
        assert said.strip() == expected.strip(), command
        assert code in (1, 2), command


def same(shown: str, answered: str) -> bool:
    """Whether two cells are equal; numbers may differ as the last digits do from machine to machine."""
    if shown == answered:
        return True
    numbers = [re.sub("[],[%()]", "", cell) for cell in (shown, answered)]
    try:
        return math.isclose(*map(float, numbers), rel_tol=0.02, abs_tol=0.02)
    except ValueError:
        return False


@pytest.mark.slow
@pytest.mark.workers
def test_the_sessions_of_the_tutorial_run(tmp_path: Path) -> None:
    (tmp_path / "fixtures").symlink_to(REPOSITORY / "fixtures")
    shown = page_sessions((DOCS / "TUTORIAL.md").read_text(encoding="utf-8"))
    assert len(shown) >= 10
    for command, expected in shown:
        said, code = run_session(command, tmp_path)
        assert code == (1 if command.startswith("audit check tidied") else 0), f"{command}\n{said}"
        words, others = mask_session(expected, tmp_path).split(), mask_session(said, tmp_path).split()
        assert len(words) == len(others), f"{command}\n{said}"
        assert all(map(same, words, others)), f"{command}\n{said}"


@pytest.mark.slow
def test_the_answers_of_the_cookbook_are_what_the_store_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_cookbook

    shown = (DOCS / "COOKBOOK.md").read_text(encoding="utf-8").splitlines()
    answered = make_cookbook.cookbook(tmp_path).splitlines()
    assert len(re.findall(r"^### \d+\.", "\n".join(shown), re.MULTILINE)) == 30
    assert len(shown) == len(answered), "run `make docs`"
    for line, again in zip(shown, answered, strict=True):
        cells, others = line.split(), again.split()
        ruled = line.startswith("─")  # the rule under a header is as wide as the widest cell
        assert ruled or (len(cells) == len(others) and all(map(same, cells, others))), f"{line}\n{again}"
