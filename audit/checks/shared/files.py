"""The source files of a run, on disk or in a bucket; an evenly spread selection if there are many."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from audit.checks.context import Context
from audit.lineage.source_state import SourceFields, read_source, source_path
from audit.sources.files import FolderOpener, open_file
from audit.store.bucket.location import is_remote
from audit.store.read.rows import field_names

Opened = io.BufferedReader | io.BytesIO
#: How many objects of a bucket are fetched at the same time.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file, or object of a bucket, that a sample was read from."""

    index: int
    source: str
    root: str | None
    source_raw: bytes | None
    source_digest: str | None
    source_bytes: int | None

    @property
    def _place(self) -> SourceFields:
        return {"source": self.source, "root": self.root, "source_raw": self.source_raw}

    def read(self) -> bytes:
        """Return all its bytes; raise OSError if they cannot be read."""
        return read_source(self._place)

    def open(self, opener: FolderOpener | None = None) -> Opened:
        """Open the file for reading; raise OSError if it no longer exists. `opener` is for many files of few folders."""
        path = source_path(self._place)
        if path is not None and os.path.isfile(path):
            return io.BufferedReader(opener.open(path) if opener else open_file(path))
        return io.BytesIO(self.read())


def spread_evenly(most: int, total: int) -> str:
    """Return an SQL condition that selects about `most` of `total` indices, evenly spread and always the same."""
    return f"(index * {most}) % {total} < {most}"


def chosen_files(context: Context, most: int, where: str = "true") -> list[SourceFile]:
    """Return at most `most` files (0: all) of the items that meet a condition; add a note if some were left out."""
    condition = f"root IS NOT NULL AND source NOT LIKE '%://%' AND {where}"
    total = context.value(f"SELECT count(*) FROM {context.items} WHERE {condition}")
    if most and total > most:
        context.note(f"checked {most:,} of {total:,} files")
        condition += f" AND {spread_evenly(most, total)}"
    columns = ", ".join(field_names(SourceFile))
    return context.facts.typed_rows(
        SourceFile, f"SELECT {columns} FROM {context.items} WHERE {condition} ORDER BY index"
    )


def open_files(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, Opened | OSError]]:
    """Yield each open file, or the error; objects of a bucket are fetched several at a time."""
    if not any(is_remote(file.root or "") for file in files):
        opener = FolderOpener()
        yield from ((file, _open(file, opener)) for file in files)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            yield from zip(some, pool.map(_open, some), strict=True)


def _open(file: SourceFile, opener: FolderOpener | None = None) -> Opened | OSError:
    try:
        return file.open(opener)
    except OSError as error:
        return error
