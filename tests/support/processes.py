"""Keep `make quick` to its promise: it starts no process, and imports no framework that only a few tests need."""

from __future__ import annotations

import multiprocessing.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

#: How the reason of this skip begins.
STARTS_A_PROCESS = "it starts a process"
#: Answers within milliseconds; `audit.run` asks it for the commit.
_HARMLESS = {"git"}
_EVENTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"}
#: A file that needs an optional package as a whole: lightning, transformers, ray. To import one takes longer than its tests.
_NEEDS_A_PACKAGE = re.compile(r"^(?:\w+ = )?pytest\.importorskip\(", re.MULTILINE)


def needs_a_package(file: Path) -> bool:
    """Return whether a file of tests imports an optional package before any of its tests runs."""
    return bool(_NEEDS_A_PACKAGE.search(file.read_text()))


def forbid_processes() -> None:
    """Skip whatever test starts a process from now on, for as long as this process lives."""
    sys.addaudithook(_look)
    # Children of the start method "spawn" raise no audit event.
    multiprocessing.util.spawnv_passfds = _refuse  # type: ignore[assignment]


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and not (arguments and os.path.basename(_program(arguments)) in _HARMLESS):
        _refuse()


def _program(arguments: tuple[Any, ...]) -> str:
    """The program of a Popen, or of another event that names one first."""
    command = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list) else arguments
    return os.fsdecode(command[0]) if isinstance(command[0], str | bytes) else ""


def _refuse(*_: object) -> None:
    if "PYTEST_CURRENT_TEST" in os.environ:
        pytest.skip(f"{STARTS_A_PROCESS}: mark it with pytest.mark.workers")
