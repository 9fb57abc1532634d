"""The rows of `samples` and `sample_sources` of a visit, the same for every recorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.utils.data import get_worker_info

from audit.recorders.files.origin import ListedFile, Origin, OriginFile, absolute_folder, relative_path
from audit.recorders.files.source_files import content_of, find_observed_origin
from audit.recorders.visit.visit import Visit
from audit.records import Columns

#: The columns that a row gives, in the order of its values.
SAMPLE_COLUMNS = (
    "index",
    "position",
    "split",
    "source",
    "root",
    "source_raw",
    "source_digest",
    "source_bytes",
    "label",
    "label_name",
    "status",
    "failed_stage",
    "error",
    "worker",
)
SOURCE_COLUMNS = ("index", "position", "ordinal", "role", "source", "root", "digest", "bytes", "source_raw")


def add_sample(
    tables: Mapping[str, Columns],
    index: int,
    position: int,
    visit: Visit,
    origin: Origin,
    label: int | None,
    classes: Sequence[str] | None,
) -> None:
    """Append the rows of one visit."""
    origin = find_observed_origin(origin, visit.opened)
    if visit.source_path is not None and visit.source_path != origin.path:
        # Another file than the source was hashed first, such as one that could not be decoded.
        visit.source_digest = None
    if visit.source_digest is None and origin.path is not None:
        content = content_of(origin.path)
        visit.source_digest, visit.source_bytes = content.digest, content.bytes
    elif visit.source_digest is None:
        visit.source_digest, visit.source_bytes = origin.digest, origin.size
    worker = get_worker_info()
    tables["samples"].append(
        SAMPLE_COLUMNS,
        (
            index,
            position,
            origin.split,
            origin.source,
            origin.root,
            origin.raw,
            visit.source_digest,
            visit.source_bytes,
            label,
            classes[label] if classes and label is not None and 0 <= label < len(classes) else None,
            "ok" if visit.error is None else "failed",
            visit.failed_stage,
            visit.error,
            worker.id if worker else None,
        ),
    )
    _add_sources(tables["sample_sources"], index, position, visit, origin)


def add_listed_sample(
    tables: Mapping[str, Columns],
    index: int,
    position: int,
    visit: Visit,
    file: ListedFile,
    label: int,
    classes: Sequence[str] | None,
) -> bool:
    """Append the same rows as `add_sample`, in a faster way, for a dataset with a list of files such as ImageFolder.

    Return False, and append nothing, if the visit did not read exactly the one file that the list names.
    """
    path, root = file.path, file.root
    folder = absolute_folder(root) if root is not None else ""
    if len(visit.opened) != 1 or visit.opened[0] != path or not folder:
        return False
    source = file.name or relative_path(path, folder, root)
    if not source.isascii():
        return False
    digest, size = visit.source_digest, visit.source_bytes
    name = classes[label] if classes and 0 <= label < len(classes) else None
    worker = get_worker_info()
    number = worker.id if worker else None
    first = (index, position, file.split, source, folder, None, digest, size)
    tables["samples"].append(SAMPLE_COLUMNS, (*first, label, name, "ok", None, None, number))
    tables["sample_sources"].append(SOURCE_COLUMNS, (index, position, 0, None, source, folder, digest, size, None))
    return True


def _add_sources(sources: Columns, index: int, position: int, visit: Visit, origin: Origin) -> None:
    if not origin.further and origin.root is not None:
        first_row = (index, position, 0, origin.role, origin.source, origin.root)
        sources.append(SOURCE_COLUMNS, (*first_row, visit.source_digest, visit.source_bytes, origin.raw))
        return
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
        sources.append(
            SOURCE_COLUMNS, (index, position, ordinal, file.role, file.source, file.root, digest, size, file.raw)
        )
