"""Why did the model say that about this file?

    store = audit.open("lineage")
    store.sql("FROM wrong_predictions WHERE label = 2").df()
    store.trace(index=1287).show()

Importing costs nothing: what needs torch or DuckDB is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from audit import display

if TYPE_CHECKING:
    from audit.api import Store, diff_pipelines, doctor, open, record, resume, run
    from audit.checks.baseline import Baseline
    from audit.checks.report import Report
    from audit.errors import AuditError
    from audit.integrations.exporters import ExportResult
    from audit.lineage.diff.diff import Diff
    from audit.lineage.replay.result import Replay
    from audit.lineage.trace import Trace
    from audit.recorders.loop.recording import Recording
    from audit.recorders.problems import RecordingWarning
    from audit.recorders.stages.user_stage import stage
    from audit.records import Progress, Run
    from audit.store.maintain.compact import CompactionResult
    from audit.store.maintain.stats import StoreStats
    from audit.store.maintain.verify import Damage
    from audit.store.read.relation import Relation
    from audit.web.server import serve

__version__ = "0.1.0"

#: Where each public name lives.
_HOMES = {
    "AuditError": "audit.errors",
    "AveragePrecision": "audit.metrics.average_precision",
    "Baseline": "audit.checks.baseline",
    "CompactionResult": "audit.store.maintain.compact",
    "Damage": "audit.store.maintain.verify",
    "Diff": "audit.lineage.diff.diff",
    "ExportResult": "audit.integrations.exporters",
    "Progress": "audit.records",
    "Recording": "audit.recorders.loop.recording",
    "RecordingWarning": "audit.recorders.problems",
    "Relation": "audit.store.read.relation",
    "Replay": "audit.lineage.replay.result",
    "Report": "audit.checks.report",
    "Run": "audit.records",
    "Store": "audit.api",
    "StoreStats": "audit.store.maintain.stats",
    "Trace": "audit.lineage.trace",
    "diff_pipelines": "audit.api",
    "doctor": "audit.api",
    "open": "audit.api",
    "record": "audit.api",
    "resume": "audit.api",
    "run": "audit.api",
    "serve": "audit.web.server",
    "stage": "audit.recorders.stages.user_stage",
}
__all__ = [
    "AuditError",
    "AveragePrecision",
    "Baseline",
    "CompactionResult",
    "Damage",
    "Diff",
    "ExportResult",
    "Progress",
    "Recording",
    "RecordingWarning",
    "Relation",
    "Replay",
    "Report",
    "Run",
    "Store",
    "StoreStats",
    "Trace",
    "__version__",
    "diff_pipelines",
    "doctor",
    "open",
    "record",
    "resume",
    "run",
    "serve",
    "stage",
]


def _html(value: object) -> str | None:
    from audit.report.html.notebook import as_html

    return as_html(value)


def _print(value: object) -> None:
    from audit.report.print_result import print_result

    print_result(value)


display.register(html=_html, text=_print)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'audit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
