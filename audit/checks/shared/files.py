"""The source files of a run, on disk or in a bucket; an evenly spread selection if there are many."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from audit.checks.context import Context
from audit.lineage.source_state import SourceFields, read_source, source_path
from audit.sources.files import FolderOpener, open_file
from audit.store.bucket.location import is_remote
from audit.store.read.rows import field_names

OpenFile = io.BufferedReader | io.BytesIO
AnyFile = TypeVar("AnyFile")
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
    split: str | None

    @property
    def sample(self) -> tuple[str | None, int]:
        """Return what identifies the sample, as `Picture.sample` does."""
        return self.split, self.index

    @property
    def _place(self) -> SourceFields:
        return {"source": self.source, "root": self.root, "source_raw": self.source_raw}

    def read(self) -> bytes:
        """Return all its bytes; raise OSError if they cannot be read."""
        return read_source(self._place)

    def open(self, opener: FolderOpener | None = None) -> OpenFile:
        """Open the file for reading; raise OSError if it no longer exists. `opener` is for many files of few folders."""
        file = self.open_unbuffered(opener)
        return file if isinstance(file, io.BytesIO) else io.BufferedReader(file)

    def open_unbuffered(self, opener: FolderOpener | None = None) -> io.FileIO | io.BytesIO:
        """Open the file without a buffer, for a few small reads."""
        path = source_path(self._place)
        if path is not None and not is_remote(self.root or ""):
            try:
                return opener.open(path) if opener else open_file(path)
            except (FileNotFoundError, NotADirectoryError):
                # It may be a member of an archive.
                return io.BytesIO(self.read())
        return io.BytesIO(self.read())


def spread_evenly(most: int, total: int) -> str:
    """Return an SQL condition that selects about `most` of `total` indices, evenly spread and always the same."""
    return f"(index * {most}) % {total} < {most}"


def choose_files(context: Context, most: int, where: str = "true") -> list[SourceFile]:
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


def open_files(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, OpenFile | OSError]]:
    """Yield each open file, or the error; objects of a bucket are fetched several at a time."""
    yield from _open_all(files, SourceFile.open)


def open_unbuffered_files(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, io.FileIO | io.BytesIO | OSError]]:
    """Yield each file as `open_files` does, without a buffer."""
    yield from _open_all(files, SourceFile.open_unbuffered)


def _open_all(
    files: Sequence[SourceFile], open_one: Callable[[SourceFile, FolderOpener | None], AnyFile]
) -> Iterator[tuple[SourceFile, AnyFile | OSError]]:
    def open_or_fail(file: SourceFile, opener: FolderOpener | None = None) -> AnyFile | OSError:
        try:
            return open_one(file, opener)
        except OSError as error:
            return error

    if not any(is_remote(root or "") for root in {file.root for file in files}):
        opener = FolderOpener()
        yield from ((file, open_or_fail(file, opener)) for file in files)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            yield from zip(some, pool.map(open_or_fail, some), strict=True)
