"""Other tools' side of audit: each file adapts one of them, and is loaded only by it.

audit.integrations.export("lineage", "latest", "tensorboard", "runs/audit")
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audit.integrations.exporters import Exported
    from audit.store.read.reader import HasReader, Reader

__all__ = ["export"]


def export(
    store: str | os.PathLike[str] | Reader | HasReader | None, run: str | None, to: str, output: str | os.PathLike[str]
) -> Exported:
    """Write one run in another tool's form into the folder `output`: the twin of `audit export`."""
    from audit.integrations.exporters import export as export_run

    return export_run(store, run, to, output)
