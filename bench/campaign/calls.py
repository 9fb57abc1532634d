"""Watch the calls by which a store changes its folder, in this process: to fail one of them, to die at it, or to note all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Called before an operation with its name and its paths; may raise, or end the process.
BeforeCall = Callable[[str, tuple[str, ...]], None]
#: Called after an operation with its name, its paths, and what was written.
AfterCall = Callable[[str, tuple[str, ...], bytes], None]

_TWO_PATHS = ("link", "replace", "rename")
_ONE_PATH = ("unlink", "mkdir", "rmdir")


def _do_nothing(*_: object) -> None:
    return None


@contextmanager
def watch_calls(
    root: str, before: BeforeCall = _do_nothing, after: AfterCall = _do_nothing, *, reads: bool = False
) -> Iterator[None]:
    """Watch the calls that change something below a folder, for the length of the block: `open` to write, write, fsync, link,
    replace, rename, unlink, mkdir, rmdir. With `reads` also `open` to read, listdir and flock, before they happen.
    """
    calls = _WatchedCalls(root, before, after, reads=reads)
    for name in _TWO_PATHS:
        setattr(os, name, calls.watch_two_paths(name))
    for name in _ONE_PATH:
        setattr(os, name, calls.watch_one_path(name))
    for name in ("fsync", "open", "listdir", "write"):
        setattr(os, name, getattr(calls, name))
    fcntl.flock = calls.flock
    try:
        yield
    finally:
        for name, call in calls.real.items():
            setattr(os, name, call)
        fcntl.flock = calls.real_flock


class _WatchedCalls:
    """Stand-ins for functions of `os` and `fcntl` that report what they do below a folder."""

    def __init__(self, root: str, before: BeforeCall, after: AfterCall, *, reads: bool) -> None:
        self._root = root
        self._before = before
        self._after = after
        self._reads = reads
        self.real = {name: getattr(os, name) for name in (*_TWO_PATHS, *_ONE_PATH, "fsync", "open", "listdir", "write")}
        self.real_flock = fcntl.flock

    def _is_below_root(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self._root)

    def watch_two_paths(self, name: str) -> Any:
        def call(source: Any, target: Any, **options: Any) -> Any:
            if options or not self._is_below_root(target):
                return self.real[name](source, target, **options)
            paths = os.fspath(source), os.fspath(target)
            self._before(name, paths)
            done = self.real[name](source, target)
            self._after(name, paths, b"")
            return done

        return call

    def watch_one_path(self, name: str) -> Any:
        def call(path: Any, *more: Any, **options: Any) -> Any:
            # shutil.rmtree names files by their folder's descriptor.
            folder = options.get("dir_fd")
            full = f"{os.readlink(f'/proc/self/fd/{folder}')}/{os.fspath(path)}" if folder is not None else path
            if not self._is_below_root(full):
                return self.real[name](path, *more, **options)
            self._before(name, (os.fspath(full),))
            done = self.real[name](path, *more, **options)
            self._after(name, (os.fspath(full),), b"")
            return done

        return call

    def listdir(self, path: Any = ".") -> Any:
        if self._reads and self._is_below_root(path):
            self._before("listdir", (os.fspath(path),))
        return self.real["listdir"](path)

    def flock(self, descriptor: Any, kind: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._reads and self._is_below_root(path):
            self._before("flock", (path,))
        self.real_flock(descriptor, kind)

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._is_below_root(path):
            self._before("fsync", (path,))
        self.real["fsync"](descriptor)
        if self._is_below_root(path):
            self._after("fsync", (path,), b"")

    def write(self, descriptor: int, data: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._is_below_root(path):
            self._before("write", (path,))
        done: int = self.real["write"](descriptor, data)
        if self._is_below_root(path):
            self._after("write", (path,), bytes(data[:done]))
        return done

    def open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        creates = self._is_below_root(path) and flags & os.O_CREAT and not os.path.exists(path)
        if self._reads and self._is_below_root(path) and not flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            self._before("open", (os.fspath(path),))
        if creates:
            self._before("create", (os.fspath(path),))
        descriptor: int = self.real["open"](path, flags, *more, **options)
        if creates:
            self._after("create", (os.fspath(path),), b"")
        return descriptor
