"""Integrations with other tools: each file adapts one tool, and is loaded only when it is used.

audit.integrations.export("lineage", "latest", "tensorboard", "runs/audit")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audit.integrations.exporters import ExportResult
    from audit.store.read.reader import HasReader, Reader

__all__ = ["export"]


def export(
    store: str | os.PathLike[str] | Reader | HasReader | None,
    run: str | None,
    to: str,
    output: str | os.PathLike[str],
    *,
    where: str | None = None,
    tag: str | None = None,
    indices: Sequence[int] | None = None,
) -> ExportResult:
    """Write one run, or chosen samples of it, in another tool's format into a folder, as `audit export` does."""
    from audit.integrations.exporters import export as export_run

    return export_run(store, run, to, output, where=where, tag=tag, indices=indices)
