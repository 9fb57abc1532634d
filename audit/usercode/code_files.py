"""The source files that the user's code consists of, and the execution of exactly their bytes.

So the digests of a run are those of the code that ran, whatever is edited meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from audit.texts import path_as_utf8


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One module's source, as it was read."""

    module: str
    path: str
    source: bytes
    is_package: bool = False

    @property
    def sha256(self) -> str:
        """The digest of the bytes that are executed."""
        return hashlib.sha256(self.source).hexdigest()


class CodeFiles:
    """The files of one piece of user code, by module name.

    A copy that reaches another process makes that process execute the same bytes: unpickle it before anything that
    needs the modules.
    """

    def __init__(self, files: Iterable[CodeFile] = ()) -> None:
        self._files = {file.module: file for file in files}

    def __iter__(self) -> Iterator[CodeFile]:
        return iter(self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def get(self, module: str) -> CodeFile | None:
        """Return the file of a module; None where it is not one of these."""
        return self._files.get(module)

    def add(self, other: CodeFiles) -> None:
        """Take in the files of another piece of code."""
        self._files.update(other._files)

    def as_recipe(self) -> list[dict[str, Any]]:
        """Return how a run's recipe names them."""
        return [
            {"module": file.module, "file": path_as_utf8(file.path), "sha256": file.sha256}
            for file in sorted(self, key=lambda file: file.module)
        ]

    def sha256_of(self, path: str) -> str | None:
        """Return the digest of the file at a path; None where it is not one of these."""
        path = os.path.abspath(path)
        return next((file.sha256 for file in self if file.path == path), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _import_files, (list(self),)


def _import_files(files: list[CodeFile]) -> CodeFiles:
    """Make this process import the given bytes, unless it has these modules already."""
    FINDER.offer(file for file in files if file.module not in sys.modules)
    return CodeFiles(files)


class CodeLoader(importlib.machinery.SourceFileLoader):
    """Executes the bytes that were read, not those that lie on the disk by now or in a cache of compiled code."""

    def __init__(self, code: CodeFile) -> None:
        super().__init__(code.module, code.path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes."""
        FINDER.withdraw(self.code)
        code: CodeType = self.source_to_code(self.code.source, self.code.path)
        return code

    def get_source(self, fullname: str) -> str:
        """Return the text that is executed."""
        return importlib.util.decode_source(self.code.source)


class CodeFinder:
    """Gives the offered files to the import system, until they are executed: a later reload by the user reads the disk."""

    def __init__(self) -> None:
        self._offered: dict[str, CodeFile] = {}
        self.lock = threading.RLock()

    def offer(self, files: Iterable[CodeFile]) -> None:
        """Let the next import of these modules execute these bytes."""
        self._offered.update((file.module, file) for file in files)
        if self._offered and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module; called by Python for each import that is not in `sys.modules`."""
        code = self._offered.get(name)
        return specification_of(code) if code is not None and target is None else None

    def withdraw(self, code: CodeFile) -> None:
        """Offer the module no longer; called when it has been executed."""
        if self._offered.get(code.module) == code:
            del self._offered[code.module]


def specification_of(code: CodeFile) -> importlib.machinery.ModuleSpec | None:
    """Return how Python is to load a module from these bytes."""
    folder = [os.path.dirname(code.path)] if code.is_package else None
    return importlib.util.spec_from_file_location(
        code.module, code.path, loader=CodeLoader(code), submodule_search_locations=folder
    )


FINDER = CodeFinder()


def is_ours(module: ModuleType) -> bool:
    """Return whether the module was executed by `CodeLoader`, so that its bytes are known."""
    return find_executed_code(module) is not None


def find_executed_code(module: ModuleType) -> CodeFile | None:
    """Return the bytes that a module was executed from; None where they are not known."""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return loader.code if isinstance(loader, CodeLoader) else None


@contextlib.contextmanager
def show_source(value: object) -> Iterator[None]:
    """Let `inspect` find the text that a class or function was executed from, although its file was edited."""
    spec = getattr(value, "__globals__", {}).get("__spec__")
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    loader = getattr(spec or getattr(module, "__spec__", None), "loader", None)
    if not isinstance(loader, CodeLoader):
        yield
        return
    path, text = loader.code.path, loader.get_source(loader.code.module)
    before = linecache.cache.pop(path, None)
    # Without a time of change an entry is not compared with the disk.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    try:
        yield
    finally:
        del linecache.cache[path]
        if before is not None:
            linecache.cache[path] = before


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def find_changed_files(recorded: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield (file, digest then, digest now) of the recorded code files that have changed; missing ones are left out."""
    for one in recorded:
        file, before = one.get("file"), one.get("sha256")
        if not file or not before:
            continue
        try:
            now = hashlib.sha256(read_bytes(str(file))).hexdigest()
        except OSError:
            continue
        if now != before:
            yield str(file), str(before), now
