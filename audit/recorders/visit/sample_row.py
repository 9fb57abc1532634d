"""The row of `samples` that a visit leaves, whoever records it."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import get_worker_info

from audit.recorders.visit.opened_files import observed_origin
from audit.recorders.visit.origin import Origin
from audit.recorders.visit.visit import Visit
from audit.records import Columns


def add_sample(
    samples: Columns,
    index: int,
    position: int,
    visit: Visit,
    origin: Origin,
    label: int | None,
    classes: Sequence[str] | None,
) -> None:
    """Append it. `label` is the item's own; where it has none, the origin may know one."""
    observed = observed_origin(origin, visit.opened)
    if visit.source_digest is None and observed.path is not None:
        visit.hash_file(observed.path)
    origin = observed
    label = origin.label if label is None else label
    worker = get_worker_info()
    samples.add(
        index=index,
        position=position,
        split=origin.split,
        source=origin.source,
        root=origin.root,
        source_raw=origin.raw,
        source_digest=visit.source_digest,
        source_bytes=visit.source_bytes,
        label=label,
        label_name=classes[label] if classes and label is not None and 0 <= label < len(classes) else None,
        status="ok" if visit.error is None else "failed",
        failed_stage=visit.failed_stage,
        error=visit.error,
        worker=worker.id if worker else None,
    )
