"""`audit completion`, loaded by a real shell where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.workers

#: What a user's shell does when they type `audit ru` and press the tab key.
ASK = {
    "bash": 'COMP_WORDS=(audit ru); COMP_CWORD=1; _audit_completion audit ru audit; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": "complete -C 'audit ru'",
}


@pytest.fixture
def path_with_audit(tmp_path: Path) -> str:
    """A search path whose `audit` is this one."""
    program = tmp_path / "bin" / "audit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m audit "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def script_for(shell: str, path: str) -> str:
    done = subprocess.run(
        ["audit", "completion", shell], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    assert "_AUDIT_COMPLETE" in done.stdout
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_loads_the_script_and_completes(shell: str, path_with_audit: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(script_for(shell, path_with_audit))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; its script was only printed")
    if shell not in ASK:
        subprocess.run([shell, "-n", script], check=True)
        return
    done = subprocess.run(
        [shell, "-c", f"source {script}; {ASK[shell]}"],
        env=os.environ | {"PATH": path_with_audit}, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split("\t")[0] for line in done.stdout.split("\n") if line] == ["run", "runs"]


def test_an_unknown_shell_is_refused(path_with_audit: str) -> None:
    done = subprocess.run(
        ["audit", "completion", "csh"], env=os.environ | {"PATH": path_with_audit}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "bash" in done.stderr
