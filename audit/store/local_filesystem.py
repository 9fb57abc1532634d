"""A store in a directory: each write survives a power cut, and readers never see half a file."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from audit.errors import StoreBusy, StoreDamaged, StoreError
from audit.store.disk_errors import read_error, write_error
from audit.store.durable_files import DurableFiles, NewFolders
from audit.store.filesystem import Filesystem, FileWriter, RandomReader
from audit.store.flush import flush_folder
from audit.store.regular_file import LocalReader, check_no_link, open_regular

#: Set to 0, it lets a store be written on a file system that has no locks.
LOCKS_VARIABLE = "AUDIT_LOCKS"
#: That of a run with about 700,000 parts; reading a larger one would take several gigabytes of memory.
_LARGEST_MANIFEST = 256 * 2**20

#: What a path answers that leads nowhere.
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class LocalFilesystem(Filesystem):
    """A directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        # Texts instead of Paths: a commit asks for some hundred of them.
        self.location = os.path.abspath(os.fspath(root))
        self._folders = NewFolders()

    def _at(self, path: str) -> str:
        return f"{self.location}/{path}" if path else self.location

    def _path_for_change(self, path: str) -> str:
        """Return the path of something that is to be written or deleted, and that lies in the store itself."""
        check_no_link(self.location, path)
        return self._at(path)

    def exists(self, path: str) -> bool:
        try:
            os.stat(self._at(path))
            return True
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise read_error(self.location, path, error) from error

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(self._at(path))

    def read(self, path: str) -> bytes:
        # Text instead of a Path, and no file object: of a thousand manifests that is a fifth of the time.
        try:
            descriptor = open_regular(f"{self.location}/{path}")
            try:
                size = os.fstat(descriptor).st_size
                if path.endswith(".json") and size > _LARGEST_MANIFEST:
                    raise StoreDamaged(
                        f"{self.location}/{path} is larger than any manifest.",
                        hint="Remove it, or do not use this store.",
                    )
                return _read_all(descriptor, size)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise
        except OSError as error:
            raise read_error(self.location, path, error) from error

    def open(self, path: str) -> RandomReader:
        return LocalReader(f"{self.location}/{path}")

    def size(self, path: str) -> int:
        try:
            return os.stat(self._at(path)).st_size
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise read_error(self.location, path, error) from error

    def stamp(self, path: str) -> tuple[int, ...] | None:
        status = os.stat(f"{self.location}/{path}")
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def age(self, path: str) -> float | None:
        try:
            return time.time() - os.stat(self._at(path)).st_mtime
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise read_error(self.location, path, error) from error

    def create(self, path: str, data: bytes | memoryview) -> None:
        with self.open_writer() as files:
            files.create(path, data)

    def replace(self, path: str, data: bytes | memoryview) -> None:
        with self.open_writer() as files:
            files.replace(path, data)

    @contextmanager
    def open_writer(self) -> Iterator[FileWriter]:
        files = DurableFiles(self.location, self._folders, self._path_for_change)
        try:
            yield files
            files.finish()
        finally:
            files.close()

    def remove(self, path: str) -> None:
        target = self._path_for_change(path)
        try:
            if os.path.isdir(target) and not os.path.islink(target):
                # Another process may be deleting the same folder.
                shutil.rmtree(target, onerror=_ignore_missing)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(target)
        except OSError as error:
            raise write_error(self.location, target, error) from error

    def hide(self, path: str) -> str:
        """Give a file or folder a name that begins with a dot, in one step that survives a power cut; gives that name."""
        target = self._path_for_change(path)
        folder, name = os.path.split(target)
        hidden = f"{folder}/.removed-{name}-{secrets.token_hex(4)}"
        try:
            os.rename(target, hidden)
            flush_folder(folder)
        except OSError as error:
            raise write_error(self.location, target, error) from error
        return os.path.relpath(hidden, self.location)

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        target = self._path_for_change(path)
        folder = os.path.dirname(target)
        try:
            # Their names are flushed together with the first file that is put in place.
            self._folders.make(folder)
            descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise write_error(self.location, target, error) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    if os.environ.get(LOCKS_VARIABLE) == "0":
                        yield
                        return
                    raise StoreError(
                        f"The file system of the store {self.location} cannot lock files: {error.strerror}.",
                        hint="Mount it with locks (for NFS, a running lock service), or record to a local folder or a "
                        f"bucket. If only one process writes to this store at a time, set {LOCKS_VARIABLE}=0.",
                    ) from error
                raise StoreBusy(
                    f"Another process is writing {os.path.basename(folder)} in the store {self.location}.",
                    hint="Wait until it has finished, or stop it, and try again.",
                ) from error
            if not _is_at(descriptor, target):
                # Its folder was removed between the opening and the locking: this lock keeps nobody away.
                raise StoreBusy(
                    f"Another process has just removed {os.path.basename(folder)} from the store {self.location}.",
                    hint="Try again.",
                )
            yield
        finally:
            os.close(descriptor)

    def is_locked(self, path: str) -> bool:
        try:
            descriptor = open_regular(self._at(path), os.O_NOFOLLOW)
        except (OSError, StoreError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


def _read_all(descriptor: int, size: int) -> bytes:
    """Return all bytes from an open file of so many bytes; it may grow while it is read."""
    found = os.read(descriptor, size + 1)
    if len(found) == size:
        return found
    pieces = [found]
    while pieces[-1]:
        pieces.append(os.read(descriptor, 2**20))
    return b"".join(pieces)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _ignore_missing(_: object, __: str, raised: Any) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]
