"""The formats of `audit export --to`: one file and one entry for each.

An exporter reads a run and writes into a folder; it changes nothing in the store, but for a tag that points to where the
run went where the form promises a link both ways. A package that an exporter needs is imported when it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from audit.config import store_location
from audit.errors import UsageError
from audit.integrations import fiftyone, mlflow, openlineage, tables, tensorboard, wandb
from audit.records import Run
from audit.registry import Registry
from audit.store.read.reader import HasReader, Reader, reader_of


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    run_id: str
    to: str
    output: str
    #: Files that were written, relative to `output`.
    files: list[str] = field(default_factory=list)


#: Writes a run into an existing folder, and returns the written files.
Exporter = Callable[[Reader, Run, Path], list[Path]]

EXPORTERS: Registry[Exporter] = Registry("export form", group="audit.exporters")
EXPORTERS.add("mlflow", mlflow.export)
EXPORTERS.add("tensorboard", tensorboard.export)
EXPORTERS.add("wandb", wandb.export)
EXPORTERS.add("fiftyone", fiftyone.export)
EXPORTERS.add("openlineage", openlineage.export)
EXPORTERS.add("parquet", tables.export_parquet)
EXPORTERS.add("csv", tables.export_csv)


def export(
    store: str | os.PathLike[str] | Reader | HasReader | None, run: str | None, to: str, output: str | os.PathLike[str]
) -> Exported:
    """Write one run in another tool's format into the folder `output`; create the folder if it is missing."""
    exporter = EXPORTERS.get(to)
    with ExitStack() as held:
        reader = reader_of(store) or held.enter_context(Reader(store_location(store)))  # type: ignore[arg-type]
        row = reader.run(run)
        folder = Path(output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written = exporter(reader, row, folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                f"{output} could not be written: {reason}.", hint="Choose another folder with -o."
            ) from error
    files = sorted(os.path.relpath(path, folder) for path in written)
    return Exported(row.run_id, to, os.fspath(folder), files)
