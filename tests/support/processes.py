"""Keep `make quick` to its promise: a test that starts a process is skipped there, and its reason says how to mark it."""

from __future__ import annotations

import multiprocessing.util
import os
import sys
from typing import Any

import pytest

#: How the reason of such a skip begins.
STARTS_A_PROCESS = "it starts a process"
#: Answers within milliseconds; `audit.run` asks it for the commit.
_HARMLESS = {"git"}
_EVENTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"}


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
