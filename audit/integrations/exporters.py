"""The formats of `audit export --to`: one file and one entry for each.

An exporter reads a run and writes into a folder; it changes nothing in the store. An exporter that links both ways adds a
tag to the run: where the exported one is. A package that an exporter needs is imported when it runs.
"""

from __future__ import annotations

import inspect
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit.config import store_location
from audit.errors import UsageError
from audit.integrations import (
    cvat,
    dvc,
    fiftyone,
    label_studio,
    mlflow,
    openlineage,
    table_files,
    tensorboard,
    wandb,
)
from audit.integrations import run_facts as facts
from audit.output_file import explain_write_errors
from audit.registry import Registry
from audit.store.read.items import SampleIdentity
from audit.store.read.reader import HasReader, Reader, reader_of


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export."""

    run_id: str
    to: str
    output: str
    #: Files that were written, relative to `output`.
    files: list[str] = field(default_factory=list)
    #: Chosen samples that the format cannot hold, such as a text among pictures.
    left_out: int = 0


#: Writes a run into an existing folder, and returns the written files: `(reader, run, folder)`, or with a fourth parameter
#: `samples` for a format that takes chosen samples, which are rows of `run_facts.last_epoch_samples`.
Exporter = Callable[..., list[Path]]

EXPORTERS: Registry[Exporter] = Registry("export format", group="audit.exporters")
EXPORTERS.add("mlflow", mlflow.export)
EXPORTERS.add("tensorboard", tensorboard.export)
EXPORTERS.add("wandb", wandb.export)
EXPORTERS.add("fiftyone", fiftyone.export)
EXPORTERS.add("label-studio", label_studio.export)
EXPORTERS.add("cvat", cvat.export)
EXPORTERS.add("dvc", dvc.export)
EXPORTERS.add("openlineage", openlineage.export)
EXPORTERS.add("parquet", table_files.export_parquet)
EXPORTERS.add("csv", table_files.export_csv)


def export(
    store: str | os.PathLike[str] | Reader | HasReader | None,
    run: str | None,
    to: str,
    output: str | os.PathLike[str],
    *,
    where: str | None = None,
    tag: str | None = None,
    indices: Sequence[int] | None = None,
    items: Collection[SampleIdentity] | None = None,
) -> ExportResult:
    """Write one run in another tool's format into the folder `output`; create the folder if it is missing.

    `where` (an SQL condition over `lineage`), `tag`, `indices` and `items` choose samples, for formats that take chosen
    samples.
    """
    exporter = EXPORTERS.get(to)
    with ExitStack() as held:
        reader = reader_of(store) or held.enter_context(Reader(store_location(store)))  # type: ignore[arg-type]
        row = reader.run(run)
        arguments: dict[str, list[dict[str, Any]]] = {}
        if takes_samples(exporter):
            arguments["samples"] = facts.last_epoch_samples(
                reader, row, where=where, tag=tag, indices=indices, items=items
            )
        elif any(choice is not None for choice in (where, tag, indices, items)):
            raise UsageError(
                f"The format {to} holds whole runs, not chosen samples.",
                hint=f"Leave out the choice, or use one of {', '.join(selection_forms())}.",
            )
        folder = Path(output)
        with explain_write_errors(output, "Choose another folder with -o."):
            folder.mkdir(parents=True, exist_ok=True)
            written = exporter(reader, row, folder, **arguments)
    files = sorted(os.path.relpath(path, folder) for path in written)
    return ExportResult(row.run_id, to, os.fspath(folder), files, getattr(written, "left_out", 0))


def takes_samples(exporter: Exporter) -> bool:
    """Return whether an exporter writes chosen samples."""
    return "samples" in inspect.signature(exporter).parameters


def selection_forms() -> list[str]:
    """Return the names of the formats that take chosen samples."""
    return [name for name in EXPORTERS if takes_samples(EXPORTERS.get(name))]


def export_archive(
    reader: Reader,
    run: str | None,
    to: str,
    indices: Sequence[int] | None = None,
    *,
    items: Collection[SampleIdentity] | None = None,
) -> bytes:
    """Return chosen samples in another tool's format as one zip archive, for a download."""
    with tempfile.TemporaryDirectory(prefix="audit-export-") as folder:
        done = export(reader, run, to, folder, indices=indices, items=items)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in done.files:
                archive.write(os.path.join(folder, name), name)
    return packed.getvalue()
