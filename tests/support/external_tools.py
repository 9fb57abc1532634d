"""Packages that do not install beside ours: `make tools` gives them an environment of their own, in out/tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(os.environ.get("AUDIT_TOOLS") or Path(__file__).resolve().parents[2] / "out" / "tools")


def run_with_package(package: str, script: str, *arguments: str) -> str:
    """Run a Python script where a package is installed, and return what it printed; skip the test if it is nowhere."""
    for python in (sys.executable, str(TOOLS / "bin" / "python")):
        if os.path.exists(python) and _run([python, "-c", f"import {package}"]).returncode == 0:
            done = _run([python, "-c", script, *arguments])
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()
    pytest.skip(f"{package} is not installed: make tools")


def tool_command(name: str) -> str:
    """Return the path of a command; skip the test if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path=str(TOOLS / "bin"))
    if found is None:
        pytest.skip(f"{name} is not installed: make tools")
    return found


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, env=kept, timeout=300, check=False)
