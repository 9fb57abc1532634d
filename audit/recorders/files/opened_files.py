"""The files that are opened while an item is made: Python reports each one, whichever code opens it.

An audit hook cannot be removed, so it is installed once in a process and returns at once unless a visit is under way in
the thread that opens something. It is called for every event of the program, so the compiled one is used where there is
one: it notes what `_hook` would note. Readers written in C++ open files without telling Python: see file_readers.py.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from audit.values import native as loops

#: Whose opened files were noted before: `stop_noting_files` goes back to it.
StateBefore = tuple[list[str] | None, int]
NO_OBSERVER: StateBefore = (None, 0)

_WRITES = os.O_WRONLY | os.O_RDWR

_noted_files: list[str] | None = None
_thread = 0
_is_installed = _is_compiled = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or _noted_files is None or threading.get_ident() != _thread:
        return
    path, _, flags = arguments
    if isinstance(path, (str, bytes)) and not flags & _WRITES:
        _noted_files.append(path if type(path) is str else os.fsdecode(path))


def is_noting() -> bool:
    """Return whether a visit is under way in this thread."""
    return _noted_files is not None and threading.get_ident() == _thread


def is_under_way() -> bool:
    """Return whether a visit is under way in any thread."""
    return _noted_files is not None


def note_opened_file(path: Any) -> None:
    """Note a file that a reader outside of Python is about to open, if a visit is under way in this thread."""
    if _noted_files is not None and is_noting() and isinstance(path, (str, bytes, os.PathLike)):
        _noted_files.append(os.fsdecode(path))


def note_opened_files(noted: list[str]) -> StateBefore:
    """Put the path of each file that this thread opens for reading into the list, until `stop_noting_files`."""
    global _noted_files, _thread
    before = NO_OBSERVER if _noted_files is None else (_noted_files, _thread)
    _noted_files, _thread = noted, threading.get_ident()
    if _is_compiled:
        loops.native.note_opened(noted, _thread)  # type: ignore[union-attr]
    elif not _is_installed:
        _install()
    return before


def _install() -> None:
    global _is_installed, _is_compiled
    if hasattr(loops.native, "note_opened"):
        _is_compiled = loops.native.note_opened(_noted_files, _thread)  # type: ignore[union-attr]
    if not _is_compiled:
        sys.addaudithook(_hook)
    _is_installed = True


def stop_noting_files(before: StateBefore) -> None:
    """Undo `note_opened_files`, which returned `before`."""
    global _noted_files, _thread
    _noted_files, _thread = before
    if _is_compiled:
        loops.native.note_opened(_noted_files, _thread)  # type: ignore[union-attr]
