"""The source files of a run, as far as they are here or in a bucket: an even choice of them where there are many."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from audit.checks.context import Context
from audit.lineage.source_state import read_source, source_path
from audit.store.bucket.location import is_remote

Opened = io.BufferedReader | io.BytesIO
#: Objects that are fetched at once: one after the other, a bucket is all waiting.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file, or object of a bucket, that a sample was read from."""

    row: dict[str, Any]

    @property
    def index(self) -> int:
        """The sample's index."""
        return int(self.row["index"])

    @property
    def source(self) -> str:
        """Its name, as the run shows it."""
        return str(self.row["source"])

    def read(self) -> bytes:
        """All its bytes; OSError where they cannot be had."""
        return read_source(self.row)

    def open(self) -> Opened:
        """For a look at its beginning; OSError where it is none any more."""
        path = source_path(self.row)
        if path is not None and os.path.isfile(path):
            return open(path, "rb")
        return io.BytesIO(self.read())


def evenly(most: int, total: int) -> str:
    """An SQL condition that about `most` of `total` indices meet, spread over all of them, the same each time."""
    return f"(index * {most}) % {total} < {most}"


def chosen_files(context: Context, most: int, where: str = "true") -> list[SourceFile]:
    """At most `most` files (0: all) of the items that meet a condition; says how many were left out."""
    condition = f"root IS NOT NULL AND source NOT LIKE '%://%' AND {where}"
    total = context.value(f"SELECT count(*) FROM {context.items} WHERE {condition}")
    if most and total > most:
        context.note(f"looked at {most:,} of {total:,} files")
        condition += f" AND {evenly(most, total)}"
    return [
        SourceFile(row)
        for row in context.rows(
            f"SELECT index, source, root, source_raw, source_digest, source_bytes FROM {context.items} "
            f"WHERE {condition} ORDER BY index"
        )
    ]


def opened(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, Opened | OSError]]:
    """Each file, open, or why it cannot be; objects of a bucket come several at a time."""
    if not any(is_remote(file.row["root"] or "") for file in files):
        yield from ((file, _opened(file)) for file in files)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            yield from zip(some, pool.map(_opened, some), strict=True)


def _opened(file: SourceFile) -> Opened | OSError:
    try:
        return file.open()
    except OSError as error:
        return error
