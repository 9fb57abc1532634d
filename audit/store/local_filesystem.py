"""A store in a directory: each write survives a power cut, and readers never see half a file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audit.errors import StoreBusy, StoreDamaged, StoreError, StoreReadOnly
from audit.store.direct_write import write_whole
from audit.store.filesystem import Filesystem, RandomReader
from audit.store.flush import flush_folder, flush_together
from audit.store.regular_file import LocalReader, check_no_link, open_regular

#: Set to 0, it lets a store be written on a file system that has no locks.
LOCKS_VARIABLE = "AUDIT_LOCKS"
#: That of a run with about 700,000 parts; reading a larger one would take several gigabytes of memory.
_LARGEST_MANIFEST = 256 * 2**20


class LocalFilesystem(Filesystem):
    """A directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(os.path.abspath(root))
        self.location = str(self._root)

    def _at(self, path: str) -> Path:
        return self._root / path if path else self._root

    def _for_change(self, path: str) -> Path:
        """Return the path of something that is to be written or deleted, and that lies in the store itself."""
        check_no_link(self._root, path)
        return self._at(path)

    def exists(self, path: str) -> bool:
        try:
            return self._at(path).exists()
        except OSError as error:
            raise _read_error(self.location, path, error) from error

    def is_folder(self, path: str) -> bool:
        return self._at(path).is_dir()

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
            raise _read_error(self.location, path, error) from error

    def open(self, path: str) -> RandomReader:
        return LocalReader(f"{self.location}/{path}")

    def size(self, path: str) -> int:
        try:
            return self._at(path).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise _read_error(self.location, path, error) from error

    def stamp(self, path: str) -> tuple[int, ...] | None:
        status = os.stat(f"{self.location}/{path}")
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def age(self, path: str) -> float | None:
        try:
            return time.time() - self._at(path).stat().st_mtime
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _read_error(self.location, path, error) from error

    def make_folders(self, paths: Iterable[str]) -> None:
        targets = [self._for_change(path) for path in paths]
        try:
            _make_folders(targets)
        except OSError as error:
            raise _write_error(self.location, targets[0], error) from error

    def create(self, path: str, data: bytes | memoryview) -> None:
        target = self._for_change(path)
        with self._temporary(target, data) as temporary:
            _name_if_absent(temporary, target)

    def replace(self, path: str, data: bytes | memoryview) -> None:
        target = self._for_change(path)
        with self._temporary(target, data) as temporary:
            os.replace(temporary, target)

    @contextmanager
    def creating(self) -> Iterator[Callable[[str, bytes | memoryview], None]]:
        made: list[tuple[Path, Path, int]] = []

        def create(path: str, data: bytes | memoryview) -> None:
            target = self._for_change(path)
            temporary = _temporary_name(target)
            with self._naming(target):
                _make_folders([target.parent])
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                made.append((temporary, target, descriptor))
                write_whole(descriptor, data)

        try:
            yield create
            with self._naming(made[0][1] if made else self._root):
                flush_together([functools.partial(os.fsync, descriptor) for _, _, descriptor in made])
            for temporary, target, _ in made:
                with self._naming(target):
                    try:
                        _name_if_absent(temporary, target)
                    except FileExistsError:
                        os.replace(temporary, target)
            folders = [*dict.fromkeys(target.parent for _, target, _ in made)]
            with self._naming(folders[0] if folders else self._root):
                flush_together([functools.partial(flush_folder, folder) for folder in folders])
        finally:
            for temporary, _, descriptor in made:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    @contextmanager
    def _naming(self, target: Path) -> Iterator[None]:
        """Say of an error inside which file could not be written."""
        try:
            yield
        except OSError as error:
            raise _write_error(self.location, target, error) from error

    @contextmanager
    def _temporary(self, target: Path, data: bytes | memoryview) -> Iterator[Path]:
        """Yield a flushed file beside `target`; after the block the directory is flushed too."""
        temporary = _temporary_name(target)
        try:
            _make_folders([target.parent])
            with open(temporary, "wb", buffering=0) as file:
                write_whole(file.fileno(), data)
                os.fsync(file.fileno())
            yield temporary
            flush_folder(target.parent)
        except FileExistsError:
            raise
        except OSError as error:
            raise _write_error(self.location, target, error) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def remove(self, path: str) -> None:
        target = self._for_change(path)
        try:
            if target.is_dir() and not target.is_symlink():
                # Another process may be deleting the same folder.
                shutil.rmtree(target, onerror=_unless_gone)
            else:
                target.unlink(missing_ok=True)
        except OSError as error:
            raise _write_error(self.location, target, error) from error

    def hide(self, path: str) -> str:
        """Give a file or folder a name that begins with a dot, in one step that survives a power cut; gives that name."""
        target = self._for_change(path)
        hidden = target.parent / f".removed-{target.name}-{secrets.token_hex(4)}"
        try:
            os.rename(target, hidden)
            flush_folder(target.parent)
        except OSError as error:
            raise _write_error(self.location, target, error) from error
        return str(hidden.relative_to(self._root))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        target = self._for_change(path)
        try:
            _make_folders([target.parent])
            descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise _write_error(self.location, target, error) from error
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
                    f"Another process is writing {target.parent.name} in the store {self.location}.",
                    hint="Wait until it has finished, or stop it, and try again.",
                ) from error
            if not _is_at(descriptor, target):
                # Its folder was removed between the opening and the locking: this lock keeps nobody away.
                raise StoreBusy(
                    f"Another process has just removed {target.parent.name} from the store {self.location}.",
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


def _temporary_name(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"


def _make_folders(paths: Iterable[Path]) -> None:
    """Make folders and those above them; each survives a power cut only once its parent is flushed."""
    changed: dict[Path, None] = {}
    for path in paths:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            changed[folder.parent] = None
    for parent in changed:
        flush_folder(parent)


#: What file systems without hard links answer: FAT, exFAT, some network and FUSE mounts.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


def _name_if_absent(temporary: Path, target: Path) -> None:
    """Give a file its name, or FileExistsError. link, unlike rename, fails when the name is taken: check-then-rename loses commits."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_if_absent(temporary, target)


def _renameat2() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _rename_if_absent(temporary: Path, target: Path) -> None:
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
            raise OSError(code, os.strerror(code), str(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(temporary, target)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _unless_gone(_: object, __: str, raised: Any) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def _read_error(location: str, path: str, error: OSError) -> StoreError:
    where = f"{location}/{path}" if path else location
    return StoreError(f"{where} cannot be read: {error.strerror or error}.", hint="Check its permissions and the disk.")


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
