"""Why did the model say that about this file?

    store = audit.open("lineage")
    store.sql("FROM wrong_predictions WHERE label = 2").df()
    store.trace(index=1287).show()

Importing costs nothing: what needs torch or DuckDB is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audit.api import Store, doctor, open, record, run
    from audit.errors import AuditError
    from audit.lineage.trace import Trace
    from audit.recorders.loop.recording import Recording
    from audit.recorders.problems import RecordingWarning
    from audit.recorders.stages.user_stage import stage
    from audit.records import Run

__version__ = "0.1.0"
__all__ = [
    "AuditError",
    "Recording",
    "RecordingWarning",
    "Run",
    "Store",
    "Trace",
    "__version__",
    "doctor",
    "open",
    "record",
    "run",
    "stage",
]

_HOMES = {
    "AuditError": "audit.errors",
    "Recording": "audit.recorders.loop.recording",
    "RecordingWarning": "audit.recorders.problems",
    "Run": "audit.records",
    "Store": "audit.api",
    "Trace": "audit.lineage.trace",
    "doctor": "audit.api",
    "open": "audit.api",
    "record": "audit.api",
    "run": "audit.api",
    "stage": "audit.recorders.stages.user_stage",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'audit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
