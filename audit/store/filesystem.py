"""The few operations a store needs of the place it lives in, and their meaning after a power cut.

Paths are relative to the store's root, with `/` between the parts. Nothing here knows about runs
or Parquet. A file is written under a temporary name, flushed, and only then given its own name, so
that a reader never sees half of one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from audit.errors import StoreError

#: With a slash too few, too, as `Path` leaves it.
_FILE_URL = re.compile(r"file://(?:localhost(?=/))?(.*)|file:(/.*)", re.DOTALL | re.IGNORECASE)


class RandomReader(ABC):
    """One open file that several threads may read at any offset."""

    size: int

    @abstractmethod
    def read_at(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`, without moving any shared position."""

    @abstractmethod
    def close(self) -> None:
        """Release the file."""


class Filesystem(ABC):
    """What a store needs of the place it lives in."""

    location: str

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder of that name."""

    @abstractmethod
    def is_folder(self, path: str) -> bool:
        """Return whether there is a folder of that name."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the whole file, or FileNotFoundError; StoreError where it cannot be read."""

    def read_each(self, paths: Sequence[str]) -> Iterator[bytes | Exception]:
        """Return each file whole, or what kept it from being read, in this order."""
        return map(self._read_or_error, paths)

    def _read_or_error(self, path: str) -> bytes | Exception:
        try:
            return self.read(path)
        except (OSError, StoreError) as error:
            return error

    @abstractmethod
    def open(self, path: str) -> RandomReader:
        """Return the file, to be read at any offset."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the file's length in bytes."""

    def stamp(self, path: str) -> tuple[int, ...] | None:
        """Return what changes when the file does, cheaply asked; None where only reading it would tell."""
        return None

    @abstractmethod
    def age(self, path: str) -> float | None:
        """Return the seconds since the file was written, by the clock of the place it lies in; None where there is none."""

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; a missing folder is empty."""

    @abstractmethod
    def create(self, path: str, data: bytes | memoryview) -> None:
        """Put a new file in place, or FileExistsError: of two writers exactly one wins."""

    @abstractmethod
    def replace(self, path: str, data: bytes | memoryview) -> None:
        """Put a file in place of another, atomically."""

    @contextmanager
    def open_writer(self) -> Iterator[FileWriter]:
        """Yield what takes files; after the block all are in place. They get their names in the order in which they came."""
        yield _SingleFileWriter(self)

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete a file or a folder with all it holds; nothing there is no error."""

    @abstractmethod
    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold a lock that ends with the process, or StoreBusy."""

    @abstractmethod
    def is_locked(self, path: str) -> bool:
        """Return whether a living process holds that lock."""


class FileWriter(ABC):
    """Takes files that are put in place together."""

    @abstractmethod
    def create(self, path: str, data: bytes | memoryview) -> None:
        """Put a new file in place; FileExistsError, now or at the end, where there is one."""

    @abstractmethod
    def replace(self, path: str, data: bytes | memoryview) -> None:
        """Put a file in place of another."""

    @abstractmethod
    def put(self, path: str, data: bytes | memoryview) -> None:
        """Put a file in place. One that is there already is a copy: the name contains the digest of the content."""


class _SingleFileWriter(FileWriter):
    """Puts each file in place as it comes."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def create(self, path: str, data: bytes | memoryview) -> None:
        self._filesystem.create(path, data)

    def replace(self, path: str, data: bytes | memoryview) -> None:
        self._filesystem.replace(path, data)

    def put(self, path: str, data: bytes | memoryview) -> None:
        try:
            self.create(path, data)
        except FileExistsError:
            self.replace(path, data)


def local_path(location: str) -> str | None:
    """Return the directory that a location names, file://… among them; None for anything else with a scheme."""
    from audit.store.bucket.location import is_remote

    if found := _FILE_URL.fullmatch(location):
        return found[1] or found[2] or ""
    return None if "://" in location or is_remote(location) else location


def filesystem_for(location: str) -> Filesystem:
    """Return the filesystem that a store's location names."""
    path = local_path(location)
    if path is not None:
        from audit.store.local_filesystem import LocalFilesystem

        return LocalFilesystem(path)
    from audit.store.bucket.filesystem import object_filesystem

    return object_filesystem(location)
