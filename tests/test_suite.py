"""The suite itself: it runs in the background, and needs and changes nothing of the machine it runs on."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from imported_modules import modules_of
from places import REPOSITORY

pytestmark = pytest.mark.workers


def test_a_child_has_the_default_handler_of_ctrl_c() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"True\n"


def test_the_suite_runs_where_ctrl_c_is_ignored() -> None:
    """As a shell does for a job in the background."""
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "default_handler"]
    job = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *arguments]
    done = subprocess.run(job, capture_output=True, text=True, cwd=REPOSITORY)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_home_folder_is_one_of_the_suite(own_home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert Path.home() == own_home
    # Tests that ran before may have left files there, in the suite's own folder and not in the user's.
    assert own_home != Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert own_home.is_relative_to(tmp_path_factory.getbasetemp())


def test_what_test_files_import_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    lines = [
        "from __future__ import annotations",
        "import os.path",
        "import numpy as np",
        "from audit.store import wire",
    ]
    file.write_text("\n".join([*lines, 'ray = pytest.importorskip("ray.data")', "def test():", "    import torch", ""]))
    assert modules_of([file, file]) == ["os.path", "numpy", "audit.store", "ray.data"]
    of_ray = tmp_path / "engines" / "ray" / "test_two.py"
    of_ray.parent.mkdir(parents=True)
    of_ray.write_text("import ray")
    assert modules_of([of_ray]) == []


def test_ci_runs_in_fresh_surroundings(tmp_path: Path) -> None:
    (tmp_path / "leftover").touch()
    program = 'echo "$PWD"; ls -A "$HOME"; ls -A "${TMPDIR:-/tmp}"; env | cut -d= -f1; exit 3'
    environment = {**os.environ, "CI": "true", "AWS_SECRET_ACCESS_KEY": "secret", "PYTHONPATH": "elsewhere"}
    done = subprocess.run(
        [REPOSITORY / ".ci" / "fresh", "sh", "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    place, *there = done.stdout.split()
    assert (done.returncode, place) == (3, str(REPOSITORY)), done.stderr
    # Nothing else is in the temporary folder, but for a checkout that lies there, and the home folder is empty.
    if REPOSITORY.is_relative_to("/tmp") and there[0] != "home":
        assert there.pop(0) == REPOSITORY.parts[2]
    assert there[0] == "home"
    assert {"CI", "HOME", "PATH"} <= set(there[1:])
    assert {"AWS_SECRET_ACCESS_KEY", "PYTHONPATH"}.isdisjoint(there)
