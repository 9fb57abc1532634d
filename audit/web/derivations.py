"""Recompute the stages of one visit for the viewer, where the store does not hold their exact values.

In a child of the warm process, because it runs the pipeline's code; one at a time. The last visits are
kept in memory, so that the other stages of a visit come without another request.
"""

from __future__ import annotations

import io
import json
import threading
from collections import OrderedDict

import numpy as np

from audit.errors import AuditError
from audit.report.html.exact_values import Values
from audit.web.warm_process import WarmProcess

Key = tuple[str, int, int, int]

_MOST_KEPT = 8


class Derivations:
    """Recomputed stage outputs by visit."""

    def __init__(self, location: str, process: WarmProcess, *, trust: bool = False) -> None:
        self._location = location
        self._trust = trust
        self._one = threading.Lock()
        self._kept: OrderedDict[Key, dict[int, Values]] = OrderedDict()
        self._process = process

    def kept_values(self, key: Key, stage: int) -> Values | None:
        """Return a stage's values if this visit was recomputed before."""
        return self._kept.get(key, {}).get(stage)

    def derive(self, key: Key) -> dict[int, Values]:
        """Return the values of every stage that is a picture. AuditError says why there are none."""
        with self._one:
            if key not in self._kept:
                self._kept[key] = self._run(key)
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            return self._kept[key]

    def _run(self, key: Key) -> dict[int, Values]:
        run_id, epoch, index, visit = key
        request = {"store": self._location, "trust": self._trust, "run": run_id}
        request |= {"epoch": epoch, "index": index, "visit": visit}
        return _read(self._process.ask("derive", request, "Recomputing"))


def _read(out: bytes) -> dict[int, Values]:
    head, _, body = out.partition(b"\n")
    try:
        answer = json.loads(head)
    except ValueError:
        answer = {"error": "The process that recomputes this sample ended without a result."}
    if "error" in answer:
        raise AuditError(str(answer["error"]), hint=answer.get("hint"))
    with np.load(io.BytesIO(body), allow_pickle=False) as found:
        return {int(stage): found[stage] for stage in found.files}
