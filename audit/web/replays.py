"""Replay one visit from the page, in a child of the warm process, because it runs the pipeline's code; one at a time."""

from __future__ import annotations

import base64
import json
import threading

from audit.errors import AuditError
from audit.plainjson import JsonObject
from audit.values import Preview
from audit.web.warm_process import SECONDS, WarmProcess


class Replays:
    """Replays over one store."""

    def __init__(self, location: str, process: WarmProcess, *, trust: bool = False) -> None:
        self._location = location
        self._trust = trust
        self._one = threading.Lock()
        self._process = process

    def replay(self, run_id: str, index: int, epoch: int, visit: int) -> tuple[JsonObject, dict[int, Preview]]:
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

    def _run(self, request: JsonObject) -> JsonObject:
        try:
            found = json.loads(self._process.ask("replay", request, "The replay"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise AuditError(
                "The replay process ended without a result.", hint="See why with: audit trace RUN INDEX --export DIR"
            )
        return found
