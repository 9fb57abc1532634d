"""Committed parts as a filesystem that DuckDB sees, and the only one it can reach.

DuckDB treats `[`, `*` and `?` in a path as a glob, cannot read a name that is not UTF-8, and with
any directory allowed to it lets `COPY … TO` write there. So it is never given a path: it sees names
such as `audit://predictions/run_id=R/3.parquet`, which resolve to the parts that manifests list, can
be opened for reading alone, and carry the run id where DuckDB's partition pruning finds it. The same
names work whatever the store lives on. See docs/adr/0002-duckdb-sees-no-path.md.

The first file of every table is an empty one that exists in memory alone: DuckDB takes the columns from it, so that
no part is opened before a query needs its rows, and one that is damaged spoils no other table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

from fsspec import AbstractFileSystem

from audit.errors import StoreDamaged, StoreError
from audit.records import Part
from audit.store.commits import run_folder
from audit.store.filesystem import Filesystem, RandomReader
from audit.store.manifest import Manifest, read_manifest
from audit.store.read.part_digests import is_intact
from audit.store.schema import is_older

PROTOCOL = "audit"
_ALL = "/*"


def all_parts(table: str, version: int | None = None) -> str:
    """Return the name that stands for every exposed part of a table: those of an older version, or all others."""
    return f"{_folder(table, version)}{_ALL}"


def _folder(table: str, version: int | None) -> str:
    return f"{PROTOCOL}://{table}" if version is None else f"{PROTOCOL}://{table}@{version}"


def _table(name: str) -> str:
    """Return the table that the name of a part or of all parts belongs to."""
    return name.removeprefix(f"{PROTOCOL}://").split("/", 1)[0].split("@", 1)[0]


def empty_part(table: str, version: int | None = None) -> str:
    """Return the name of a table's first file, which has its columns and no rows."""
    # DuckDB sorts what a pattern gives, and a run's id begins with a letter or a digit: this comes first.
    return f"{_folder(table, version)}/run_id=-/memory.parquet"


def older_version(part: Part) -> int | None:
    """Return the version of a part that lacks columns which its table has now, else None."""
    return part.schema if is_older(part.table, part.schema) else None


class PartFilesystem(AbstractFileSystem):  # type: ignore[misc]
    """Names of committed parts, readable and nothing else."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, filesystem: Filesystem, *, verify: bool | None = None) -> None:
        super().__init__()
        self._verify = verify
        self._filesystem = filesystem
        self._manifests: list[Manifest] = []
        #: The names of each folder's files, and what they stand for, of the tables that were asked for.
        self._parts: dict[str, tuple[str, Part]] = {}
        self._folders: dict[str, list[str]] = {}
        self._exposed: dict[str, list[tuple[str, str, Part]]] = {}
        self._in_memory: dict[str, Callable[[], bytes]] = {}
        self._lock = threading.Lock()
        self.bytes_read = 0
        #: What kept a part from being read since it was last asked; DuckDB makes a traceback's text of the error itself.
        self.damage: StoreError | None = None

    def hold(self, table: str, make: Callable[[], bytes], version: int | None = None) -> None:
        """Let a table begin with a Parquet file that exists in memory alone, and is made when it is first asked for."""
        name = empty_part(table, version)
        self._in_memory[name] = cache(make)
        self._folders.setdefault(_folder(table, version), []).insert(0, name)

    def expose(self, manifests: Iterable[Manifest]) -> None:
        """Make these runs' parts visible."""
        self._manifests = list(manifests)

    def parts_of(self, table: str) -> list[tuple[str, str, Part]]:
        """Return name, run id and part of every visible part of a table."""
        # Named when a table is first asked for: of a thousand runs, naming all parts takes as long as an answer.
        with self._lock:
            if table not in self._exposed:
                self._exposed[table] = list(self._name_parts(table))
            return self._exposed[table]

    def _name_parts(self, table: str) -> Iterator[tuple[str, str, Part]]:
        for manifest in self._manifests:
            run_id = manifest.run.run_id
            for number, part in enumerate(manifest.parts):
                if part.table == table:
                    folder = _folder(table, older_version(part))
                    name = f"{folder}/run_id={run_id}/{number}.parquet"
                    self._parts[name] = (f"{run_folder(run_id)}/{part.file}", part)
                    self._folders.setdefault(folder, []).append(name)
                    yield name, run_id, part

    def _lookup(self, name: str) -> tuple[str, Part]:
        self.parts_of(_table(name))
        try:
            return self._parts[name]
        except KeyError:
            raise FileNotFoundError(f"{name} is not a committed part") from None

    def open(self, path: str, mode: str = "rb", **_: Any) -> PartFile:
        if mode != "rb":
            raise PermissionError(f"The store is read-only here: {path} cannot be opened to write.")
        if path in self._in_memory:
            return PartFile(self, _MemoryReader(self._in_memory[path]()), path)
        where, part = self._lookup(path)
        with self.keep_damage(where):
            reader = self._filesystem.open(where)
            if reader.size != part.bytes:
                reader.close()
                raise self._damage_error(where, f"has {reader.size} bytes instead of {part.bytes}")
            if not is_intact(self._filesystem, where, part, reader, self._verify):
                reader.close()
                raise self._damage_error(where, "has other bytes than were written (its SHA-256 differs)")
        return PartFile(self, reader, where)

    @contextmanager
    def keep_damage(self, where: str) -> Iterator[None]:
        """Keep what goes wrong with a part in the block, as one sentence."""
        try:
            yield
        except StoreError as error:
            self.damage = error
            raise
        except FileNotFoundError:
            self.damage = self._missing_error(where)
            raise self.damage from None
        except OSError as error:
            self.damage = self._damage_error(where, f"cannot be read: {error.strerror}")
            raise self.damage from error

    def _missing_error(self, where: str) -> StoreError:
        """Return the error for a missing part. Nothing is damaged when the run no longer lists the part: it was merged or removed by another process."""
        run_id = where.split("/")[1]
        listed = []
        with suppress(FileNotFoundError):
            listed = [f"{run_folder(run_id)}/{part.file}" for part in read_manifest(self._filesystem, run_id).parts]
        if where in listed:
            return self._damage_error(where, "is missing")
        return StoreError(
            f"The run {run_id} was merged or removed by another process since the store {self._filesystem.location} was "
            "opened here.",
            hint="Open the store again, or call refresh().",
        )

    def _damage_error(self, where: str, problem: str) -> StoreDamaged:
        return StoreDamaged(
            f"{self._filesystem.location}/{where} {problem}.", hint="See what else is damaged with: audit store verify"
        )

    def unstrip_protocol(self, name: str) -> str:
        # DuckDB asks it for every name that a pattern gives; these carry theirs.
        return name

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        size = len(self._in_memory[path]()) if path in self._in_memory else self._lookup(path)[1].bytes
        return {"name": path, "size": size, "type": "file"}

    def exists(self, path: str, **_: Any) -> bool:
        self.parts_of(_table(path))
        return path in self._parts or path in self._in_memory

    def isfile(self, path: str) -> bool:
        return self.exists(path)

    def glob(self, path: str, **_: Any) -> list[str]:
        # One pattern, made here: all parts of a table at once, instead of a question for each of thousands.
        if path.endswith(_ALL):
            self.parts_of(_table(path))
            return list(self._folders.get(path[: -len(_ALL)], ()))
        return [path] if self.exists(path) else []

    def modified(self, path: str) -> datetime:
        # Parts never change, so neither does their time: DuckDB may keep what it has read.
        return datetime.fromtimestamp(0, UTC)


class _MemoryReader(RandomReader):
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def read_at(self, offset: int, count: int) -> bytes:
        return self._content[offset : offset + count]

    def close(self) -> None:
        return None


class PartFile:
    """One part, open. Each thread has its own position: DuckDB seeks and reads one handle from several."""

    def __init__(self, owner: PartFilesystem, reader: RandomReader, where: str) -> None:
        self._owner = owner
        self._reader = reader
        self._where = where
        self._local = threading.local()
        self.closed = False

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self.tell(), self._reader.size)[whence]
        self._local.position = base + offset
        return base + offset

    def tell(self) -> int:
        return getattr(self._local, "position", 0)

    def read(self, count: int = -1) -> bytes:
        position = self.tell()
        with self._owner.keep_damage(self._where):
            data = self._reader.read_at(position, self._reader.size - position if count < 0 else count)
        self._local.position = position + len(data)
        self._owner.bytes_read += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self._reader.close()

    def __del__(self) -> None:
        # DuckDB drops its handle without closing it.
        self.close()
