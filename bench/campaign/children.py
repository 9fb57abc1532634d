"""Processes of the campaign: forked from one that has imported everything, so that a try costs what it does and no more.

The parent starts no thread and connects no DuckDB: a child would inherit their locks without the threads that hold them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any


class Child:
    """A forked process in a session of its own, which ends by SIGKILL or with an exit code.

    What it prints is discarded, errors too unless a file for them is given.
    """

    def __init__(self, work: Callable[[int], int | None], errors: str = os.devnull) -> None:
        ours, theirs = os.pipe()
        gc.freeze()  # the collector of the child then leaves the parent's pages alone
        self.pid = os.fork()
        if not self.pid:
            code = 99
            try:
                os.close(ours)
                os.setsid()
                _redirect(errors)
                code = work(theirs) or 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 98
            finally:
                os._exit(code)
        os.close(theirs)
        self._said = ours
        self._handle = os.pidfd_open(self.pid)

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether it has ended within so many seconds."""
        return bool(select.select([self._handle], [], [], seconds)[0])

    def kill(self) -> None:
        """Kill it, and every process that it has started."""
        # Its session may not exist yet.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> tuple[int, list[str]]:
        """Wait for it; return its exit code, negative for a signal, and the words that it wrote."""
        self.wait()
        # Workers that outlive it hold the pipe open.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._handle)
        with open(self._said, "rb") as said:
            return code, said.read().decode().split()


def _redirect(errors: str) -> None:
    with open(os.devnull, "r+b") as nowhere, open(errors, "wb") as file:
        os.dup2(nowhere.fileno(), 0)
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # What a test runner has put in their places is not what the command would have.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def ask_child(question: Callable[[], Any]) -> Any:
    """Return what a function gives in a child: for what starts threads, as DuckDB does. It must be JSON."""
    # A file, not the pipe: nobody reads that before the child has ended.
    with tempfile.NamedTemporaryFile("r") as answer:

        def work(_: int) -> None:
            with open(answer.name, "w") as file:
                json.dump(question(), file)

        code, _ = Child(work).end()
        if code:
            raise RuntimeError(f"a process of the campaign ended with {code}")
        return json.load(answer)


def command(*arguments: str) -> int:
    """Run `audit` as its entry point does; return its exit code."""
    from audit.__main__ import main

    sys.argv = ["audit", *arguments]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
