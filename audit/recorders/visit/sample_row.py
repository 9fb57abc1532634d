"""The rows of `samples` and `sample_sources` of a visit, the same for every recorder."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import get_worker_info

from audit.recorders.visit.origin import Origin, OriginFile
from audit.recorders.visit.source_files import content_of, observed_origin
from audit.recorders.visit.visit import Visit
from audit.records import Columns


def add_sample(
    samples: Columns,
    sources: Columns,
    index: int,
    position: int,
    visit: Visit,
    origin: Origin,
    label: int | None,
    classes: Sequence[str] | None,
) -> None:
    """Append them. `label` is the item's own; where it has none, the origin may know one."""
    origin = observed_origin(origin, visit.opened)
    if visit.source_digest is None and origin.path is not None:
        content = content_of(origin.path)
        visit.source_digest, visit.source_bytes = content.digest, content.bytes
    elif visit.source_digest is None:
        visit.source_digest, visit.source_bytes = origin.digest, origin.size
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
    _add_sources(sources, index, position, visit, origin)


def _add_sources(sources: Columns, index: int, position: int, visit: Visit, origin: Origin) -> None:
    files = list(origin.further)
    if origin.root is not None or not origin.source.startswith("dataset://"):
        first = OriginFile(
            origin.source, origin.root, origin.raw, None, origin.role, visit.source_digest, visit.source_bytes
        )
        files.insert(0, first)
    for ordinal, file in enumerate(files):
        digest, size = file.digest, file.bytes
        if digest is None and file.path is not None:
            content = content_of(file.path)
            digest, size = content.digest, content.bytes
        sources.add(
            index=index,
            position=position,
            ordinal=ordinal,
            role=file.role,
            source=file.source,
            root=file.root,
            digest=digest,
            bytes=size,
            source_raw=file.raw,
        )
