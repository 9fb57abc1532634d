"""File names as bytes, and as text that can be shown.

A name is bytes: it need not be UTF-8, and may hold a newline. `printable` gives text that is safe in a terminal, a
page and a Parquet column, and different for different names; `raw_of` says when the bytes must be kept beside it.
`PackedNames` holds a million names in two flat buffers: a list of a million objects would be copied into every worker
process, since counting references writes to each. Nothing here touches the file system.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO

from audit.errors import DatasetError

_JOINER = "\u200d"  # inside composed emoji; invisible, and harmless between them


def to_printable(name: bytes) -> str:
    """Return the name as text, with backslash escapes for unprintable characters and for the backslash itself."""
    text = name.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(character if _is_printable(character) else _escape(character) for character in text)


def raw_of(name: bytes, shown: str) -> bytes | None:
    """Return the bytes to store with the printable form; None if that form is the name."""
    return None if shown.encode("utf-8") == name else name


def _is_printable(character: str) -> bool:
    if character == "\\":
        return False  # else the file `a\n` and the file a-newline would look the same
    return character.isprintable() or character == _JOINER or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if 0x80 <= code <= 0xFF:  # \xNN is taken by such bytes
        return f"\\u{code:04x}"
    return character.encode("unicode_escape").decode("ascii")


class PackedNames(Sequence[bytes]):
    """An immutable sequence of byte strings in one buffer."""

    def __init__(self, names: Iterable[bytes] = ()) -> None:
        buffer = bytearray()
        self._ends = array("Q")
        for name in names:
            buffer += name
            self._ends.append(len(buffer))
        self._buffer = bytes(buffer)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]  # slices are not needed
        if index < 0:
            raise IndexError(index)
        return self._buffer[self._ends[index - 1] if index else 0 : self._ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in self._ends:
            yield self._buffer[start:end]
            start = end


def missing_path(path: str) -> DatasetError:
    """Return the error for a dataset that is not there."""
    return DatasetError(
        f"There is no file or folder {to_printable(os.fsencode(path))}.", hint=nearest_path(path)
    ).as_usage()


def nearest_path(path: str, ending: str = "") -> str:
    """Return a hint: the part of a path that exists, and similar names in it that are folders or have this ending."""
    parent = os.path.abspath(path)
    missing = parent
    while not os.path.exists(parent):
        missing, parent = parent, os.path.dirname(parent)
    try:
        names = sorted(
            name
            for name in os.listdir(parent)
            if not name.startswith(".") and (name.endswith(ending) or os.path.isdir(os.path.join(parent, name)))
        )
    except OSError:
        return f"{to_printable(os.fsencode(parent))} cannot be listed."
    wanted = os.path.basename(missing)
    lower = {name.lower(): name for name in reversed(names)}
    near = [lower[name] for name in difflib.get_close_matches(wanted.lower(), lower, n=3, cutoff=0.5)]
    if near:
        # Written as the user wrote it: from the working directory, if the path was.
        base = parent if os.path.isabs(path) else os.path.relpath(parent)
        shown = ", ".join(to_printable(os.fsencode(os.path.normpath(os.path.join(base, name)))) for name in near)
        return f"Did you mean {shown}?"
    return f"The nearest folder that exists is {to_printable(os.fsencode(parent))}."


_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


#: Files there may wait, or never end, although they look like regular ones; shared memory is a place for data.
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_DATA = "/dev/shm/"


def read_file(path: bytes) -> bytes:
    """Return all bytes of a regular file; raise OSError for anything else."""
    with _FOLDERS.open(path) as file:
        return file.readall()


def open_file(path: bytes) -> FileIO:
    """Open a regular file for reading, without waiting; raise OSError for anything else, and for files of the system."""
    if b"\0" in path:
        raise OSError(errno.EINVAL, "the name contains a NUL byte, which no file name can have", os.fsdecode(path))
    name = os.fsdecode(path)  # as text, since it is what the messages of OSError show
    _require_regular(os.stat(name).st_mode, path)
    real = os.path.realpath(name)
    if real.startswith(_SYSTEM) and not real.startswith(_DATA):
        raise OSError(errno.EINVAL, "is a file of the system, not data", name)
    return _open_regular(path)


#: So many folders are remembered.
_MOST_FOLDERS = 4096


class FolderOpener:
    """Open many files of few folders as `open_file` does; each folder's links are followed once."""

    def __init__(self) -> None:
        self._is_data: dict[bytes, bool] = {}

    def open(self, path: bytes) -> FileIO:
        """Open a regular file for reading; raise OSError for anything else."""
        folder = path[: path.rfind(b"/") + 1]
        if folder not in self._is_data:
            if len(self._is_data) >= _MOST_FOLDERS:
                self._is_data.clear()
            real = os.path.realpath(os.fsdecode(folder)) + "/"
            self._is_data[folder] = not real.startswith(_SYSTEM) or real.startswith(_DATA)
        if not self._is_data[folder] or b"\0" in path or not stat.S_ISREG(os.lstat(os.fsdecode(path)).st_mode):
            # A link, or something to refuse.
            return open_file(path)
        return _open_regular(path, os.O_NOFOLLOW)


#: Following the links of a path takes longer than reading a picture.
_FOLDERS = FolderOpener()


def _open_regular(path: bytes, flags: int = 0) -> FileIO:
    """Open a file that was found regular; it may have been replaced since, so open without blocking and check again."""
    file = FileIO(os.open(os.fsdecode(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags))
    try:
        _require_regular(os.fstat(file.fileno()).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def size_of(path: bytes) -> int:
    """Return the file's size without opening it, or -1 if it is unknown."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _require_regular(mode: int, path: bytes) -> None:
    if not stat.S_ISREG(mode):
        kind = next((noun for is_kind, noun in _KINDS if is_kind(mode)), "special")
        raise OSError(errno.EINVAL, f"is {kind}, not a file", os.fsdecode(path))
