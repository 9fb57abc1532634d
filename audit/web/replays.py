"""Replay one visit from the page: in a process of its own, because it imports torch and runs the pipeline's code.

The server starts `python -m audit.web.replay_child`, waits with a deadline, and reads one JSON object. One
replay runs at a time. Verdicts are cached, because a record does not change, until a new replay is requested.
"""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

from audit.errors import AuditError
from audit.values import Preview
from audit.web.child_process import SECONDS, ChildProcess


class Replays:
    """Replays over one store."""

    def __init__(self, location: str, *, trust: bool = False) -> None:
        self._location = location
        self._trust = trust
        self._one = threading.Lock()
        self._child = ChildProcess("audit.web.replay_child", "The replay")

    def replay(self, run_id: str, index: int, epoch: int, visit: int) -> tuple[dict[str, Any], dict[int, Preview]]:
        """Return the verdict, and the pictures of the stages as they were derived."""
        visited = {"run": run_id, "index": index, "epoch": epoch, "visit": visit}
        request = {"store": self._location, "trust": self._trust, **visited}
        if not self._one.acquire(timeout=SECONDS):
            raise AuditError("Another replay is still running.", hint="Wait until it ends, then try again.")
        try:
            answer = self._run(request)
        finally:
            self._one.release()
        if "error" in answer:
            raise AuditError(str(answer["error"]), hint=answer.get("hint"))
        previews = {
            int(stage): Preview(str(item["type"]), base64.b64decode(item["data"]))
            for stage, item in answer.pop("previews", {}).items()
        }
        return answer, previews

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        out = self._child.ask(request)
        try:
            # The pipeline may have printed; the answer is the last line.
            found = json.loads(out.rstrip().rpartition(b"\n")[2])
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise AuditError(
                "The replay process ended without a result.", hint="See why with: audit trace RUN INDEX --export DIR"
            )
        return found

    def close(self) -> None:
        """End a replay that is still running."""
        self._child.close()
