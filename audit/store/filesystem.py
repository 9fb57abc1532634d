"""The few operations a store needs of the place it lives in, and their meaning after a power cut.

Paths are relative to the store's root, with `/` between the parts. Nothing here knows about runs
or Parquet. A file is written under a temporary name, flushed, and only then given its own name, so
that a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from audit.errors import StoreBusy, StoreError, StoreReadOnly


class RandomReader(ABC):
    """One open file that several threads may read at any offset."""

    size: int

    @abstractmethod
    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset`, without moving any shared position."""

    @abstractmethod
    def close(self) -> None:
        """Release the file."""


class Filesystem(ABC):
    """What a store needs of the place it lives in."""

    location: str

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of that name."""

    @abstractmethod
    def is_folder(self, path: str) -> bool:
        """Whether there is a folder of that name."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file, or FileNotFoundError."""

    def read_each(self, paths: Sequence[str]) -> Iterator[bytes | Exception]:
        """Each file whole, or what kept it from being read, in this order."""
        return map(self._read_or_error, paths)

    def _read_or_error(self, path: str) -> bytes | Exception:
        try:
            return self.read(path)
        except (OSError, StoreError) as error:
            return error

    @abstractmethod
    def open(self, path: str) -> RandomReader:
        """The file, to be read at any offset."""

    @abstractmethod
    def size(self, path: str) -> int:
        """The file's length in bytes."""

    def stamp(self, path: str) -> tuple[int, ...] | None:
        """What changes when the file does, cheaply asked; None where only reading it would tell."""
        return None

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted; a missing folder is empty."""

    @abstractmethod
    def create(self, path: str, data: bytes | memoryview) -> None:
        """Put a new file in place, or FileExistsError: of two writers exactly one wins."""

    @abstractmethod
    def replace(self, path: str, data: bytes | memoryview) -> None:
        """Put a file in place of another, atomically."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete a file or a folder with all it holds; nothing there is no error."""

    @abstractmethod
    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold a lock that ends with the process, or StoreBusy."""

    @abstractmethod
    def is_locked(self, path: str) -> bool:
        """Whether a living process holds that lock."""


class _LocalReader(RandomReader):
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalFilesystem(Filesystem):
    """A directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(os.path.abspath(root))
        self.location = str(self._root)

    def _at(self, path: str) -> Path:
        return self._root / path if path else self._root

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def is_folder(self, path: str) -> bool:
        return self._at(path).is_dir()

    def read(self, path: str) -> bytes:
        # Text, not a Path: of a thousand manifests that is a tenth of the time.
        with open(f"{self.location}/{path}", "rb") as file:
            return file.read()

    def open(self, path: str) -> RandomReader:
        return _LocalReader(self._at(path))

    def size(self, path: str) -> int:
        return self._at(path).stat().st_size

    def stamp(self, path: str) -> tuple[int, ...] | None:
        status = os.stat(f"{self.location}/{path}")
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, path: str, data: bytes | memoryview) -> None:
        target = self._at(path)
        with self._temporary(target, data) as temporary:
            # link, unlike rename, fails when the name is taken: check-then-rename loses commits.
            os.link(temporary, target)

    def replace(self, path: str, data: bytes | memoryview) -> None:
        target = self._at(path)
        with self._temporary(target, data) as temporary:
            os.replace(temporary, target)

    @contextmanager
    def _temporary(self, target: Path, data: bytes | memoryview) -> Iterator[Path]:
        """A flushed file beside `target`; after the block the directory is flushed too."""
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        try:
            _make_folder(target.parent)
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
            _flush_directory(target.parent)
        except FileExistsError:
            raise
        except OSError as error:
            raise _write_error(self.location, target, error) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def remove(self, path: str) -> None:
        target = self._at(path)
        try:
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
        except OSError as error:
            raise _write_error(self.location, target, error) from error

    def hide(self, path: str) -> str:
        """Give a file or folder a name that begins with a dot, in one step that survives a power cut; gives that name."""
        target = self._at(path)
        hidden = target.parent / f".removed-{target.name}-{secrets.token_hex(4)}"
        try:
            os.rename(target, hidden)
            _flush_directory(target.parent)
        except OSError as error:
            raise _write_error(self.location, target, error) from error
        return str(hidden.relative_to(self._root))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        target = self._at(path)
        try:
            _make_folder(target.parent)
            descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _write_error(self.location, target, error) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise StoreError(
                        f"The file system of the store {self.location} cannot lock files: {error.strerror}.",
                        hint="Mount it with locks (for NFS, a running lock service), or record to a local folder or a bucket.",
                    ) from error
                raise StoreBusy(
                    f"Another process is writing {target.parent.name} in the store {self.location}.",
                    hint="Wait until it has finished, or stop it, and try again.",
                ) from error
            yield
        finally:
            os.close(descriptor)

    def is_locked(self, path: str) -> bool:
        try:
            descriptor = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


#: With a slash too few, too, as `Path` leaves it.
_FILE_URL = re.compile(r"file://(?:localhost(?=/))?(.*)|file:(/.*)", re.DOTALL | re.IGNORECASE)


def local_path(location: str) -> str | None:
    """The directory that a location names, file://… among them; None for anything else with a scheme."""
    from audit.store.bucket.location import is_remote

    if found := _FILE_URL.fullmatch(location):
        return found[1] or found[2] or ""
    return None if "://" in location or is_remote(location) else location


def filesystem_for(location: str) -> Filesystem:
    """The filesystem that a store's location names."""
    path = local_path(location)
    if path is not None:
        return LocalFilesystem(path)
    from audit.store.bucket.filesystem import object_filesystem

    return object_filesystem(location)


def _make_folder(path: Path) -> None:
    """Make a folder and those above it; each survives a power cut only once its parent is flushed."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        _flush_directory(folder.parent)


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}


def _write_error(location: str, target: Path, error: OSError) -> StoreError:
    if error.errno in _READ_ONLY:
        return StoreReadOnly(
            f"The store {location} cannot be written: {error.strerror} ({target.name}).",
            hint="Choose another with --store, or change its permissions.",
        )
    if error.errno in _FULL:
        return StoreError(
            f"The disk is full: {target.name} could not be written to the store {location}.",
            hint="What was committed is safe. Free some space, then continue with: audit run --resume RUN",
        )
    return StoreError(f"{target} could not be written: {error.strerror or error}.", hint="Check the disk and the path.")
