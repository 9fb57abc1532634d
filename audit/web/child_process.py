"""Run a module of ours in a process of its own, because it imports torch and runs the pipeline's code.

It is given one JSON object and has a deadline; what it writes is returned as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from audit.errors import AuditError

SECONDS = 120.0


class ChildProcess:
    """Starts `python -m module` for each request; `work` names what it does in an error."""

    def __init__(self, module: str, work: str) -> None:
        self._module = module
        self._work = work
        self._running: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> bytes:
        """Return what the process writes for a request. AuditError when it takes too long."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._running = process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module],  # -P: modules in the working directory are not ours
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(json.dumps(request).encode(), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise AuditError(f"{self._work} took longer than {SECONDS:.0f} seconds and was stopped.") from None
        finally:
            self._running = None
        return out

    def close(self) -> None:
        """End a process that is still running."""
        if self._running is not None:
            self._running.kill()
