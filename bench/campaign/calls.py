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
    real = {name: getattr(os, name) for name in (*_TWO_PATHS, *_ONE_PATH, "fsync", "open", "listdir", "write")}
    real_flock = fcntl.flock

    def is_below_root(path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(root)

    def watch_two_paths(name: str) -> Any:
        def call(source: Any, target: Any, **options: Any) -> Any:
            if options or not is_below_root(target):
                return real[name](source, target, **options)
            paths = os.fspath(source), os.fspath(target)
            before(name, paths)
            done = real[name](source, target)
            after(name, paths, b"")
            return done

        return call

    def watch_one_path(name: str) -> Any:
        def call(path: Any, *more: Any, **options: Any) -> Any:
            # shutil.rmtree names files by their folder's descriptor.
            folder = options.get("dir_fd")
            full = f"{os.readlink(f'/proc/self/fd/{folder}')}/{os.fspath(path)}" if folder is not None else path
            if not is_below_root(full):
                return real[name](path, *more, **options)
            before(name, (os.fspath(full),))
            done = real[name](path, *more, **options)
            after(name, (os.fspath(full),), b"")
            return done

        return call

    def listdir(path: Any = ".") -> Any:
        if reads and is_below_root(path):
            before("listdir", (os.fspath(path),))
        return real["listdir"](path)

    def flock(descriptor: Any, kind: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if reads and is_below_root(path):
            before("flock", (path,))
        real_flock(descriptor, kind)

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if is_below_root(path):
            before("fsync", (path,))
        real["fsync"](descriptor)
        if is_below_root(path):
            after("fsync", (path,), b"")

    def write(descriptor: int, data: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if is_below_root(path):
            before("write", (path,))
        done: int = real["write"](descriptor, data)
        if is_below_root(path):
            after("write", (path,), bytes(data[:done]))
        return done

    def open_descriptor(path: Any, flags: int, *more: Any, **options: Any) -> int:
        creates = is_below_root(path) and flags & os.O_CREAT and not os.path.exists(path)
        if reads and is_below_root(path) and not flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            before("open", (os.fspath(path),))
        if creates:
            before("create", (os.fspath(path),))
        descriptor: int = real["open"](path, flags, *more, **options)
        if creates:
            after("create", (os.fspath(path),), b"")
        return descriptor

    for name in _TWO_PATHS:
        setattr(os, name, watch_two_paths(name))
    for name in _ONE_PATH:
        setattr(os, name, watch_one_path(name))
    os.fsync, os.open, os.listdir, os.write = fsync, open_descriptor, listdir, write  # type: ignore[assignment]
    fcntl.flock = flock
    try:
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)
        fcntl.flock = real_flock
