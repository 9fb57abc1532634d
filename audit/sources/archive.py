"""Parts of files: members of tar archives, each known as `FILE#MEMBER`, and rows of tables, each known as `FILE#ROW`.

Only archives that are not compressed, where any member can be read alone. Tables are files of Parquet and of Arrow.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import tarfile
from collections.abc import Mapping
from typing import Any

from audit.sources.files import open_file

_SEPARATOR = "#"


def member_name(archive: str, member: str) -> str:
    """Return how a member of an archive is named as a source."""
    return f"{archive}{_SEPARATOR}{member}"


def read_member(path: str) -> bytes:
    """Return the bytes of `FILE#MEMBER` or `FILE#ROW`; OSError where there is no such file, member or row."""
    archive, _, member = path.partition(_SEPARATOR)
    if archive.endswith((".parquet", ".arrow")):
        return row_bytes(_read_row(archive, int(member)))
    place = members_of(archive).get(member)
    if place is None:
        raise FileNotFoundError(errno.ENOENT, "the archive has no such member", path)
    start, size = place
    with open_file(os.fsencode(archive)) as file:
        file.seek(start)
        return file.read(size)


def row_bytes(values: Mapping[str, Any]) -> bytes:
    """Return a row as bytes that depend on its values alone: JSON, with the SHA-256 of bytes in their place."""
    return json.dumps(values, default=_as_text, sort_keys=True, ensure_ascii=True).encode()


def _as_text(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)


def _read_row(path: str, number: int) -> dict[str, Any]:
    found = os.stat(path)
    try:
        table, first = _rows_around(path, number, found.st_mtime_ns, found.st_size)
    except ValueError as error:  # pyarrow's errors are ValueErrors too
        raise OSError(errno.EINVAL, f"the table cannot be read: {error}", path) from error
    if table is None or not 0 <= number - first < table.num_rows:
        raise FileNotFoundError(errno.ENOENT, "the table has no such row", f"{path}#{number}")
    values: dict[str, Any] = table.slice(number - first, 1).to_pylist()[0]
    return values


def _rows_around(path: str, number: int, modified: int, size: int) -> tuple[Any, int]:
    """Return the rows of a file that lie around one, and the number of the first of them."""
    if path.endswith(".arrow"):
        return _read_rows(path, None, modified, size), 0
    first = 0
    for group, rows in enumerate(_row_groups(path, modified, size)):
        if number < first + rows:
            return _read_rows(path, group, modified, size), first
        first += rows
    return None, first


@functools.lru_cache(maxsize=4)
def _row_groups(path: str, _modified: int, _size: int) -> list[int]:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


@functools.lru_cache(maxsize=4)
def _read_rows(path: str, group: int | None, _modified: int, _size: int) -> Any:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    if group is None:
        with arrow.memory_map(path) as file:
            return arrow.ipc.open_stream(file).read_all()
    with parquet.ParquetFile(path) as file:
        return file.read_row_group(group)


def members_of(archive: str) -> dict[str, tuple[int, int]]:
    """Return where each member of an archive begins, and its length; none for what is not a plain tar archive."""
    found = os.stat(archive)
    return _members(archive, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=64)
def _members(archive: str, _modified: int, _size: int) -> dict[str, tuple[int, int]]:
    try:
        with open_file(os.fsencode(archive)) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            return {info.name: (info.offset_data, info.size) for info in tar if info.isfile()}
    except tarfile.TarError:
        return {}
