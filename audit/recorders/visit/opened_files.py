"""The files that are opened while an item is made: Python tells of each one, whoever opens it.

An audit hook cannot be removed, so it is installed once in a process and returns at once unless a visit is under way in
the thread that opens something. Readers written in C++ (cv2.imread, torchvision.io) open files without telling.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from audit.recorders.visit.origin import Origin, printable_path, raw_path

#: What a sample is read from. Other files (annotations, caches, fonts, code, shards) belong to no single sample.
_MEDIA = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".jp2",
        ".avif",
        ".heic",
        ".jxl",
        ".dcm",
        ".nii",
        ".gz",
        ".exr",
        ".hdr",
        ".wav",
        ".flac",
        ".mp3",
        ".ogg",
        ".m4a",
        ".opus",
        ".mp4",
        ".avi",
        ".mov",
        ".mkv",
        ".webm",
    ]
)

_noted: list[str] | None = None
_thread = 0
_installed = 0


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or _noted is None or threading.get_ident() != _thread:
        return
    path, _, flags = arguments
    if isinstance(path, (str, bytes)) and not flags & (os.O_WRONLY | os.O_RDWR):
        _noted.append(os.fsdecode(path))


@contextmanager
def noting_opened_files(noted: list[str]) -> Iterator[None]:
    """Meanwhile put the path of each file that this thread opens for reading into the list."""
    global _noted, _thread, _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = 1
    before = _noted, _thread
    _noted, _thread = noted, threading.get_ident()
    try:
        yield
    finally:
        _noted, _thread = before


def observed_origin(origin: Origin, opened: Sequence[str]) -> Origin:
    """Return the origin by the files that were opened, where the dataset does not say which file a sample is from."""
    if origin.root is not None or not origin.source.startswith("dataset://"):
        return origin
    path = next((path for path in opened if os.path.splitext(path)[1].lower() in _MEDIA), None)
    if path is None:
        return origin
    path = os.path.abspath(path)
    root = os.path.abspath(origin.folder) if origin.folder is not None else ""
    if not root or not path.startswith(os.path.join(root, "")):
        root = os.path.dirname(path)
    relative = os.path.relpath(path, root)
    return replace(origin, source=printable_path(relative), root=root, raw=raw_path(relative), path=path)
