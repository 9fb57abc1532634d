"""Readers that open files outside of Python, where no audit hook sees it: their argument is the path.

While a visit is under way, a reader written in Python has a trampoline for its code (function_slot.py); one that is written
in C has a stand-in wherever its module, or a module of the user's own, holds it. Both only note the path and call the reader.
Only packages that are imported already are looked at.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from audit.recorders.calls.callables import is_library_file
from audit.recorders.calls.function_slot import FunctionSlot, is_observable
from audit.recorders.visit.opened_files import note_opened_file

#: By module, the functions and classes whose first argument is a path.
_READERS = {
    "cv2": ("imread", "imreadmulti", "VideoCapture"),
    "torchvision.io.image": ("read_file",),
    "torchvision.io.video_reader": ("VideoReader",),
    "decord": ("VideoReader", "AudioReader"),
    "torchcodec.decoders": ("VideoDecoder", "AudioDecoder"),
    "torchaudio": ("load",),
    "soundfile": ("SoundFile",),
    "SimpleITK": ("ReadImage",),
    "rasterio": ("open",),
    "h5py": ("File",),
    "av": ("open",),
}


class _HeldReader:
    """A reader written in C, in every module that holds it."""

    def __init__(self, module: ModuleType, name: str, reader: Any) -> None:
        self._places = [(vars(module), name), *_users_places(reader)]
        self._reader = reader
        self._stand_in = _noting(reader)

    def put(self) -> bool:
        for holder, name in self._places:
            if holder.get(name) is self._reader:
                holder[name] = self._stand_in
        return True

    def restore(self) -> None:
        for holder, name in self._places:
            if holder.get(name) is self._stand_in:
                holder[name] = self._reader


def _noting(reader: Any) -> Any:
    @functools.wraps(reader, updated=())
    def read(*args: Any, **kwargs: Any) -> Any:
        _note(args, kwargs)
        return reader(*args, **kwargs)

    return read


def _note(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    path = args[0] if args else next(iter(kwargs.values()), None)
    note_opened_file(path)


def _observe(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Of a class it is `__init__`, whose first argument is the object.
    _note(args[1:] if slot.function.__name__ == "__init__" else args, kwargs)
    return slot.original(*args, **kwargs)


def _users_places(reader: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the modules of the user's own that hold a reader under a name, as after `from cv2 import imread`."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        if file is not None and not is_library_file(file):
            yield from ((vars(module), name) for name, value in list(vars(module).items()) if value is reader)


Reader = FunctionSlot | _HeldReader

#: By module and name; None for what cannot be observed.
_found: dict[tuple[str, str], Reader | None] = {}


def _known_readers() -> Iterator[Reader]:
    for package, names in _READERS.items():
        if (module := sys.modules.get(package)) is None:
            continue
        for name in names:
            if (package, name) not in _found:
                _found[package, name] = _make(module, name)
            if (reader := _found[package, name]) is not None:
                yield reader


def _make(module: ModuleType, name: str) -> Reader | None:
    reader = vars(module).get(name)
    if reader is None:
        return None
    function = vars(reader).get("__init__") if isinstance(reader, type) else reader
    if isinstance(function, FunctionType) and is_observable(function):
        return FunctionSlot(function, _observe)
    # A class in C is asked for with isinstance, too: it stays where it is.
    return None if isinstance(reader, type) or not callable(reader) else _HeldReader(module, name, reader)


#: The readers of the packages that were imported when there were so many modules.
_readers: list[Reader] = []
_modules = 0


def observe_readers() -> list[Reader]:
    """Note the paths that readers outside of Python are given. The caller must restore each of those that this returns."""
    global _readers, _modules
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        _readers = list(_known_readers())
    return [reader for reader in _readers if reader.put()]
