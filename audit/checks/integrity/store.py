"""`store`: every committed part of the run is what its manifest says."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding
from audit.checks.context import Context
from audit.store.maintain.verify import verify


class StoreIntegrity(Check):
    """Compare each part with its digest, because DuckDB does not detect a changed byte."""

    description = "Every part of the run has the digest, size and row count that its manifest says."
    question = "Is the store whole?"
    rule = "size, SHA-256 and rows of each part"

    def run(self, context: Context) -> Iterable[Finding]:
        for damage in verify(context.reader, context.run.run_id):
            yield Finding(f"{damage.file} {damage.problem}.")
