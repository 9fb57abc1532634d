"""Readers that open files outside of Python, where no audit hook sees it: their argument is the path.

Methods that read from a file which was opened before, perhaps for another item, are observed likewise: their object has the path.
While a visit is under way, a reader written in Python has a trampoline for its code (function_slot.py); one that is written
in C has a stand-in wherever its module, or a module of the user's own, holds it. Both only note the path and call the reader.
Only packages that are imported already are looked at, and those that an item imports: then the stand-ins are put in place at once.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import operator
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any
from urllib.parse import unquote

from audit.recorders.calls.call_profile import READERS, without_profile
from audit.recorders.calls.callables import is_library_file
from audit.recorders.calls.function_slot import FunctionSlot, is_observable
from audit.recorders.files.opened_files import is_noting, note_opened_file
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
    "pyarrow.dataset": ("dataset",),
    "pyarrow.feather": ("read_table", "read_feather"),
    "pyarrow.csv": ("read_csv",),
    "pyarrow.json": ("read_json",),
    "safetensors": ("safe_open",),
    "safetensors.torch": ("load_file",),
    "safetensors.numpy": ("load_file",),
    "lmdb": ("open", "Environment"),
    "sqlite3": ("connect",),
}
#: By module, the methods that read from an open file, and where their object has its path.
_METHODS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "zipfile": (("ZipFile", "open", "filename"),),
    "tarfile": (("TarFile", "extractfile", "name"),),
    "numpy": (("memmap", "__getitem__", "filename"),),
    "h5py": (("Dataset", "__getitem__", "file.filename"), ("Dataset", "read_direct", "file.filename")),
}


#: Files that were read by such methods: each item that reads from one is known.
OBSERVED_FILES: set[str] = set()
_MOST_OBSERVED = 1024
#: Folders of tables that were opened since these were last taken. Which of their files are read is not seen.
FOLDERS: set[str] = set()
_MOST_FILES = 4096


class _HeldMethod:
    """A method written in C, of a class that is written in Python."""

    def __init__(self, kind: type, name: str, path: Callable[[Any], Any]) -> None:
        self._kind, self._name, self._method = kind, name, vars(kind)[name]
        self._stand_in = _wrap_method(self._method, path)

    def put(self) -> bool:
        if vars(self._kind).get(self._name) is self._method:
            setattr(self._kind, self._name, self._stand_in)
        return True

    def restore(self) -> None:
        if vars(self._kind).get(self._name) is self._stand_in:
            setattr(self._kind, self._name, self._method)


def _wrap_method(method: Any, path: Callable[[Any], Any]) -> Any:
    @functools.wraps(method, updated=())
    def read(handle: Any, *args: Any, **kwargs: Any) -> Any:
        _note_object(handle, path)
        return method(handle, *args, **kwargs)

    return _as_reader(read)


def _as_reader(read: Any) -> Any:
    READERS.add(read.__code__)
    return read


def _note_object(handle: Any, path: Callable[[Any], Any]) -> None:
    # A handle that is closed has no path. Its method says so.
    with contextlib.suppress(Exception):
        found = path(handle)
        note_opened_file(found)
        if len(OBSERVED_FILES) < _MOST_OBSERVED:
            OBSERVED_FILES.add(os.path.abspath(os.fsdecode(found)))


class _HeldReader:
    """A reader written in C, in every module that holds it."""

    def __init__(self, module: ModuleType, name: str, reader: Any) -> None:
        self._places = [(vars(module), name), *_users_places(reader)]
        self._reader = reader
        self._stand_in = _stand_in_for(reader)

    def put(self) -> bool:
        for holder, name in self._places:
            if holder.get(name) is self._reader:
                holder[name] = self._stand_in
        return True

    def restore(self) -> None:
        for holder, name in self._places:
            if holder.get(name) is self._stand_in:
                holder[name] = self._reader


def _stand_in_for(reader: Any) -> Any:
    if isinstance(reader, type):
        return _ClassStandIn(reader)

    @functools.wraps(reader, updated=())
    def read(*args: Any, **kwargs: Any) -> Any:
        _note(args, kwargs, name=getattr(reader, "__name__", ""))
        return reader(*args, **kwargs)

    return _as_reader(read)


class _ClassStandIn:
    """Stands for a class written in C: it makes objects of that class, and `isinstance` and subclasses take it for the class."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _note(args, kwargs, name=self._kind.__name__)
        return self._kind(*args, **kwargs)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._kind)

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self._kind)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._kind,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)


def _note(args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str) -> None:
    path = args[0] if args else next(iter(kwargs.values()), None)
    if not is_noting() or not isinstance(path, (str, bytes, os.PathLike)):
        return
    path = os.fsdecode(path)
    if name == "connect":
        path = _path_of_base(path)
    if not os.path.isdir(path):
        note_opened_file(path)
    elif name == "Environment":
        note_opened_file(os.path.join(path, "data.mdb"))
    elif name == "read_table" and kwargs.get("filters") is None and (files := _tables_in(path)) is not None:
        for file in files:
            note_opened_file(file)
    else:
        FOLDERS.add(path)


def _path_of_base(name: str) -> str:
    """Return the file that SQLite is given: it may be named by a URI."""
    return unquote(name.removeprefix("file:").partition("?")[0]) if name.startswith("file:") else name


def _tables_in(folder: str) -> list[str] | None:
    """Return the files that Arrow reads of a folder, in its order; None if there are too many."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        found += [os.path.join(place, name) for name in sorted(names) if not name.startswith((".", "_"))]
        if len(found) > _MOST_FILES:
            return None
    return sorted(found)


def _observe(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Of a class it is `__init__`, whose first argument is the object.
    name = slot.function.__name__
    if name == "dataset" and _is_called_by_reader(sys._getframe(1)):
        return slot.original(*args, **kwargs)
    _note(args[1:] if name == "__init__" else args, kwargs, name=name)
    return slot.original(*args, **kwargs)


def _is_called_by_reader(frame: FrameType | None) -> bool:
    """Return whether `read_table` has called this: then it was noted which files are read."""
    while frame is not None and frame.f_code.co_name != "read_table":
        frame = frame.f_back if is_library_file(frame.f_code.co_filename) else None
    return frame is not None


def _users_places(reader: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the modules of the user's own that hold a reader under a name, as after `from cv2 import imread`."""
    for module in list(sys.modules.values()):
        # Few of thousands of modules hold it. Whether a file is a library's takes longer to learn.
        if not isinstance(module, ModuleType) or id(reader) not in map(id, list(vars(module).values())):
            continue
        file = getattr(module, "__file__", None)
        if file is not None and not is_library_file(file):
            yield from ((vars(module), name) for name, value in list(vars(module).items()) if value is reader)


class _Imports:
    """The import statement: a reader that an item imports is observed from then on."""

    def __init__(self) -> None:
        self._users = 0
        self._before: Any = None
        self._added: list[Reader] = []
        #: How many modules there were when readers were last looked for.
        self._modules = 0

    def put(self) -> bool:
        if self._users == 0:
            self._modules = _modules
            self._before = builtins.__import__
            builtins.__import__ = self._import
        self._users += 1
        return True

    def restore(self) -> None:
        self._users -= 1
        if self._users:
            return
        if builtins.__import__ == self._import:
            builtins.__import__ = self._before
        for reader in self._added:
            reader.restore()
        self._added = []

    def _import(self, *args: Any, **kwargs: Any) -> Any:
        found = (
            self._before(*args, **kwargs) if sys.getprofile() is None else without_profile(self._before, args, kwargs)
        )
        count = len(sys.modules)
        if count != self._modules and is_noting():
            begun = (sys.modules[package] for package in (*_READERS, *_METHODS) if package in sys.modules)
            if not any(map(_is_initializing, begun)):
                self._modules = count
            known = {id(reader) for reader in (*_readers, *self._added)}
            fresh = [reader for reader in _find_known_readers() if id(reader) not in known]
            self._added += [reader for reader in fresh if reader.put()]
        return found


Reader = FunctionSlot | _HeldReader | _HeldMethod | _Imports

#: By module and name; None for what cannot be observed.
_found_readers: dict[tuple[str, str], Reader | None] = {}


def _find_known_readers() -> Iterator[Reader]:
    for package, names in _READERS.items():
        if (module := _find_loaded_module(package)) is None:
            continue
        for name in names:
            if (package, name) not in _found_readers:
                _found_readers[package, name] = _make(module, name)
            if (reader := _found_readers[package, name]) is not None:
                yield reader
    for package, methods in _METHODS.items():
        if (module := _find_loaded_module(package)) is None:
            continue
        for kind, name, path in methods:
            key = package, f"{kind}.{name}"
            if key not in _found_readers:
                _found_readers[key] = _make_method(vars(module).get(kind), name, operator.attrgetter(path))
            if (reader := _found_readers[key]) is not None:
                yield reader


def _find_loaded_module(package: str) -> ModuleType | None:
    """Return a module that has been imported to its end."""
    module = sys.modules.get(package)
    return None if module is None or _is_initializing(module) else module


def _is_initializing(module: ModuleType) -> bool:
    """Return whether the import of a module has begun and not ended."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def _make(module: ModuleType, name: str) -> Reader | None:
    reader = vars(module).get(name)
    if reader is None:
        return None
    function = vars(reader).get("__init__") if isinstance(reader, type) else reader
    if isinstance(function, FunctionType) and is_observable(function):
        return FunctionSlot(function, _observe)
    return _HeldReader(module, name, reader) if callable(reader) else None


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
_imports = _Imports()


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
        _readers = [*_find_known_readers(), *_threads, _imports]
