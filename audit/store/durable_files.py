"""Files of a directory that are put in place together, with as few waits for the disk as their order needs.

A file is written under a temporary name. At the end all contents are flushed together, the files get their names in the
order in which they came, and the folders are flushed together: two waits, however many files and new folders there are.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from audit.store.direct_write import write_whole
from audit.store.disk_errors import write_error
from audit.store.filesystem import FileWriter
from audit.store.flush import flush_files, flush_folder, flush_together


class NewFolders:
    """Folders that were made, and whose names are not flushed yet: each survives a power cut only once its parent is flushed."""

    def __init__(self) -> None:
        self._parents: dict[str, None] = {}

    def make(self, path: str) -> None:
        """Make a folder and those above it."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            try:
                os.mkdir(folder)
            except FileExistsError:  # another process has just made it
                if not os.path.isdir(folder):
                    raise
            self._parents[os.path.dirname(folder)] = None

    def flush_with(self, folders: list[str]) -> None:
        """Flush these folders, and the names of all new ones."""
        made = list(self._parents)
        flush_together([functools.partial(flush_folder, folder) for folder in dict.fromkeys((*folders, *made))])
        # Not before: another thread that puts files in place meanwhile must wait for them, too.
        for folder in made:
            self._parents.pop(folder, None)


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    """A file under its temporary name, and how it gets its own."""

    temporary: str
    target: str
    descriptor: int
    give_name: Callable[[str, str], None]


class DurableFiles(FileWriter):
    """Takes files; `finish` puts them in place, so that they survive a power cut. To be closed in any case."""

    def __init__(self, location: str, folders: NewFolders, path_of: Callable[[str], str]) -> None:
        self._location = location
        self._folders = folders
        self._path_of = path_of
        self._written: list[_WrittenFile] = []

    def create(self, path: str, data: bytes | memoryview) -> None:
        self._write(path, data, name_if_absent)

    def replace(self, path: str, data: bytes | memoryview) -> None:
        self._write(path, data, os.replace)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._write(path, data, _name_or_replace)

    def _write(self, path: str, data: bytes | memoryview, give_name: Callable[[str, str], None]) -> None:
        target = self._path_of(path)
        folder, name = os.path.split(target)
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        try:
            self._folders.make(folder)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._written.append(_WrittenFile(temporary, target, descriptor, give_name))
            write_whole(descriptor, data)
        except OSError as error:
            raise write_error(self._location, target, error) from error

    def finish(self) -> None:
        """Put all files in place. FileExistsError, or StoreError: then some may be in place, and none of those that came after."""
        if not self._written:
            return
        target = self._written[0].target
        try:
            flush_files([file.descriptor for file in self._written])
            for file in self._written:
                target = file.target
                file.give_name(file.temporary, target)
            self._folders.flush_with([os.path.dirname(file.target) for file in self._written])
        except FileExistsError:
            raise
        except OSError as error:
            raise write_error(self._location, target, error) from error

    def close(self) -> None:
        """Remove the temporary names."""
        for file in self._written:
            os.close(file.descriptor)
            with contextlib.suppress(OSError):
                os.unlink(file.temporary)


#: What file systems without hard links answer: FAT, exFAT, some network and FUSE mounts.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


def name_if_absent(temporary: str, target: str) -> None:
    """Give a file its name, or FileExistsError. link, unlike rename, fails when the name is taken: check-then-rename loses commits."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_if_absent(temporary, target)


def _name_or_replace(temporary: str, target: str) -> None:
    try:
        name_if_absent(temporary, target)
    except FileExistsError:
        os.replace(temporary, target)


def _renameat2() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _rename_if_absent(temporary: str, target: str) -> None:
    """Give a file its name where there are no hard links, or FileExistsError.

    Linux can rename without replacing. Where it cannot either, the name is looked at first: of two writers one could
    then replace the other's file, but all that is created is created under the lock of its run.
    """
    rename = _renameat2()
    if rename is not None:
        names = os.fsencode(temporary), os.fsencode(target)
        if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (*_NO_LINKS, errno.EINVAL):
            raise OSError(code, os.strerror(code), target)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(temporary, target)
