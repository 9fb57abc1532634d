"""Files that are opened in threads which a dataset starts: they are the files of the item that waits for the thread to end.

While a visit is under way, the start and the join of threads are observed (file_readers.py puts the trampolines). A thread that a visit
started and joined worked for that visit alone. One that goes on may read for later items, so audit only says that it read.
The compiled audit hook looks at one thread; this one is installed when a visit starts a thread, and not before.

The threads of a pool that began before are not known. If an item waits for one (call_profile.py sees that), audit says which files
such threads open.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from audit.recorders.calls.function_slot import FunctionSlot
from audit.recorders.files import opened_files

#: By the threads that visits of this process started and that have not been joined: the files that they opened.
FILES: dict[threading.Thread, list[str]] = {}

#: Files that threads opened which no visit started, while one was under way.
UNKNOWN: list[str] = []
_MOST_UNKNOWN = 64

_is_installed = _watches_all = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not (FILES or _watches_all):
        return
    files = FILES.get(threading.current_thread())
    if files is None and _watches_all and _is_of_others():
        files = UNKNOWN
    path, _, flags = arguments
    if files is not None and isinstance(path, (str, bytes)) and not flags & (os.O_WRONLY | os.O_RDWR):
        files.append(os.fsdecode(path))


def _is_of_others() -> bool:
    if len(UNKNOWN) >= _MOST_UNKNOWN or opened_files.is_noting() or not opened_files.is_under_way():
        return False
    return not threading.current_thread().name.startswith("audit-")


def watch_all_threads() -> None:
    """Note from now on which files other threads open while a visit is under way."""
    global _watches_all
    _watches_all = True
    _install()


def _observe_start(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if opened_files.is_noting():
        _install()
        FILES[args[0]] = []
    return slot.original(*args, **kwargs)


def _observe_join(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = slot.original(*args, **kwargs)
    if args[0] in FILES and opened_files.is_noting() and not args[0].is_alive():
        for path in FILES.pop(args[0]):
            opened_files.note_opened_file(path)
    return result


def _install() -> None:
    global _is_installed
    if not _is_installed:
        sys.addaudithook(_hook)
        _is_installed = True


def thread_slots() -> list[FunctionSlot]:
    """Return the places where starting and joining threads is observed."""
    return [
        FunctionSlot(threading.Thread.start, _observe_start),  # type: ignore[arg-type]
        FunctionSlot(threading.Thread.join, _observe_join),  # type: ignore[arg-type]
    ]


def files_of_thread() -> list[str] | None:
    """Return the files that this thread has opened so far, if a visit started it."""
    return FILES.get(threading.current_thread())


def take_unclaimed() -> list[str]:
    """Return the files that were opened since in threads which nobody has waited for."""
    found, UNKNOWN[:] = list(UNKNOWN), []
    for thread, files in list(FILES.items()):
        found += files
        files.clear()
        if not thread.is_alive():
            del FILES[thread]
    return found
