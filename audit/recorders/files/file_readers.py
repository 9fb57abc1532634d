"""Readers that open files outside of Python, where no audit hook sees it: their argument is the path.

Methods that read from a file which was opened before, perhaps for another item, are observed likewise: their object has the path.
While a visit is under way, a reader written in Python has a trampoline for its code (function_slot.py); one that is written
in C has a stand-in wherever its module, or a module of the user's own, holds it. Both only note the path and call the reader.
Only packages that are imported already are looked at.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from audit.recorders.calls.callables import is_library_file
from audit.recorders.calls.function_slot import FunctionSlot, is_observable
from audit.recorders.files.opened_files import note_opened_file
from audit.recorders.files.thread_files import thread_slots

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
    "pyarrow": ("memory_map",),
    "pyarrow.parquet.core": ("read_table", "ParquetFile"),
    "pyarrow.feather": ("read_table", "read_feather"),
    "pyarrow.csv": ("read_csv",),
    "pyarrow.json": ("read_json",),
    "safetensors.torch": ("load_file",),
    "safetensors.numpy": ("load_file",),
}
#: By module, the methods that read from an open file, and where their object has its path.
_METHODS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "zipfile": (("ZipFile", "open", "filename"),),
    "tarfile": (("TarFile", "extractfile", "name"),),
    "numpy": (("memmap", "__getitem__", "filename"),),
    "h5py": (("Dataset", "__getitem__", "file.filename"), ("Dataset", "read_direct", "file.filename")),
}


#: Files that were read by such methods: each item that reads from one is known.
OBSERVED: set[str] = set()
_MOST_OBSERVED = 1024


class _HeldMethod:
    """A method written in C, of a class that is written in Python."""

    def __init__(self, kind: type, name: str, path: Callable[[Any], Any]) -> None:
        self._kind, self._name, self._method = kind, name, vars(kind)[name]
        self._stand_in = _noting_object(self._method, path)

    def put(self) -> bool:
        if vars(self._kind).get(self._name) is self._method:
            setattr(self._kind, self._name, self._stand_in)
        return True

    def restore(self) -> None:
        if vars(self._kind).get(self._name) is self._stand_in:
            setattr(self._kind, self._name, self._method)


def _noting_object(method: Any, path: Callable[[Any], Any]) -> Any:
    @functools.wraps(method, updated=())
    def read(handle: Any, *args: Any, **kwargs: Any) -> Any:
        _note_object(handle, path)
        return method(handle, *args, **kwargs)

    return read


def _note_object(handle: Any, path: Callable[[Any], Any]) -> None:
    # A handle that is closed has no path. Its method says so.
    with contextlib.suppress(Exception):
        found = path(handle)
        note_opened_file(found)
        if len(OBSERVED) < _MOST_OBSERVED:
            OBSERVED.add(os.path.abspath(os.fsdecode(found)))


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
        # Few of thousands of modules hold it. Whether a file is a library's takes longer to learn.
        if not isinstance(module, ModuleType) or id(reader) not in map(id, list(vars(module).values())):
            continue
        file = getattr(module, "__file__", None)
        if file is not None and not is_library_file(file):
            yield from ((vars(module), name) for name, value in list(vars(module).items()) if value is reader)


Reader = FunctionSlot | _HeldReader | _HeldMethod

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
    for package, methods in _METHODS.items():
        if (module := sys.modules.get(package)) is None:
            continue
        for kind, name, path in methods:
            key = package, f"{kind}.{name}"
            if key not in _found:
                _found[key] = _make_method(vars(module).get(kind), name, operator.attrgetter(path))
            if (reader := _found[key]) is not None:
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


def _make_method(kind: Any, name: str, path: Callable[[Any], Any]) -> Reader | None:
    method = vars(kind).get(name) if isinstance(kind, type) else None
    if method is None:
        return None
    if not is_observable(method):
        return _HeldMethod(kind, name, path)

    def observe(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _note_object(args[0], path)
        return slot.original(*args, **kwargs)

    return FunctionSlot(method, observe)


#: The readers of the packages that were imported when there were so many modules.
_readers: list[Reader] = []
_modules = 0
_threads: list[FunctionSlot] = []


def observe_readers() -> list[Reader]:
    """Note the paths that readers outside of Python are given. The caller must restore each of those that this returns."""
    find_readers()
    return [reader for reader in _readers if reader.put()]


def find_readers() -> None:
    """Look for readers in the modules that are imported now, unless that was done."""
    global _readers, _modules, _threads
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        _threads = _threads or thread_slots()
        _readers = [*_known_readers(), *_threads]
