"""The files that one sample was read from: those that its dataset names, then those that were seen being opened.

The first picture, sound or video is the sample's source where the dataset names none. Any other file is the source only if
it is that of one sample (see file_lists.py): a file of annotations may be opened for every sample.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from audit.recorders.calls.callables import is_library_file
from audit.recorders.files.file_lists import is_of_one_sample
from audit.recorders.files.origin import Origin, file_below
from audit.sources.archive import read_member

#: What a sample is read from. Other files (annotations, caches, shards) may belong to many samples.
_MEDIA = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif", ".heic"),
    *(
        ".jxl",
        ".dcm",
        ".nii",
        ".nii.gz",
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
    ),
    *(".mov", ".mkv", ".webm"),
)
#: Code and what it needs to run: no part of a sample.
_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dll", ".dylib", ".ttf", ".otf")
#: What is known of installed packages: read when plugins are looked for, also in a source tree.
_METADATA = (f".dist-info{os.sep}", f".egg-info{os.sep}")
_SYSTEM = tuple(f"{os.sep}{name}{os.sep}" for name in ("proc", "sys", "dev", "etc", "usr"))
#: Shared memory is a folder like any other: people copy datasets there.
_SHARED_MEMORY = os.path.join(os.sep, "dev", "shm", "")
_MOST_FILES = 256
_MOST_KNOWN = 4096
#: A larger file that a dataset opened by itself is not read a second time to hash it.
_LARGEST = 256 * 2**20


@dataclass(frozen=True, slots=True)
class FileContent:
    """What a file held: its SHA-256, and its length."""

    digest: str | None
    bytes: int | None


_NO_CONTENT = FileContent(None, None)
#: By path: the file's state, and what it held. A file of annotations is opened for every sample, and hashed once.
_known: dict[str, tuple[tuple[int, int, int, int], FileContent]] = {}


def content_of(path: str) -> FileContent:
    """Return digest and length of a file as it is now; nothing where it cannot be read."""
    try:
        if "#" in path and not os.path.lexists(path):
            # A member of an archive, or a row of a table, that somebody names.
            data = read_member(path)
            return FileContent(hashlib.sha256(data).hexdigest(), len(data))
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return _NO_CONTENT
        state = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = _known.get(path)
        if known is not None and known[0] == state:
            return known[1]
        content = FileContent(None, found.st_size) if found.st_size > _LARGEST else _hash(path)
    except (OSError, ValueError):
        return _NO_CONTENT
    _known[path] = (state, content)
    if len(_known) > _MOST_KNOWN:
        del _known[next(iter(_known))]
    return content


def _hash(path: str) -> FileContent:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileContent(digest, file.tell())


def is_media(path: str) -> bool:
    """Return whether a file is a picture, a sound or a video, by its name."""
    return path.lower().endswith(_MEDIA)


def is_data_file(path: str) -> bool:
    """Return whether a file may hold a sample: it is not a part of the system, of a library or of a program."""
    return not _is_system(os.path.abspath(path))


def find_observed_origin(origin: Origin, opened: Sequence[str]) -> Origin:
    """Return the origin of a sample with all its files: those that its dataset names, then those that were opened."""
    if not opened or (len(opened) == 1 and opened[0] == origin.path):
        return origin
    if origin.is_listed and not _was_opened(origin, opened):
        origin = replace(origin, source=f"dataset://{origin.number}", root=None, raw=None, path=None, is_listed=False)
    paths = list(_data_files(opened, origin))
    if not paths:
        return origin
    if origin.root is None and origin.source.startswith("dataset://"):
        first = _first_file(origin, paths)
        if first is not None:
            file = file_below(first, origin.folder, origin.owner)
            paths.remove(first)
            origin = replace(origin, source=file.source, root=file.root, raw=file.raw, path=first)
    further = [file_below(path, origin.folder or origin.root, origin.owner) for path in paths]
    return replace(origin, further=(*origin.further, *further))


def _was_opened(origin: Origin, opened: Sequence[str]) -> bool:
    """Return whether the file that a list names may be the one that was read: no other picture, sound or video was."""
    if origin.path is None or origin.path in opened:
        return True
    listed = os.path.realpath(origin.path)
    return all(not is_media(path) for path in opened) or any(os.path.realpath(path) == listed for path in opened)


def _first_file(origin: Origin, paths: Sequence[str]) -> str | None:
    """Return the file that is the source of a sample whose dataset names none."""
    media = next((path for path in paths if is_media(path)), None)
    if media is not None:
        return media
    return next((path for path in paths if is_of_one_sample(origin.owner, origin.number, path)), None)


def _data_files(opened: Sequence[str], origin: Origin) -> Iterator[str]:
    """Yield the files among those opened that may hold a sample, each once, without those that the origin has already."""
    known = {origin.path, *(file.path for file in origin.further)}
    if known.issuperset(opened):
        return
    if origin.path is not None:
        known.add(os.path.abspath(origin.path))
    elif origin.root is not None:
        known.add(os.path.join(origin.root, os.fsdecode(origin.raw) if origin.raw else origin.source))
    count = 0
    for given in opened:
        if given in known:
            continue
        known.add(given)
        path = os.path.abspath(given)
        if (path in known and path != given) or _is_system(path):
            continue
        known.add(path)
        count += 1
        if count > _MOST_FILES:
            return
        yield path


def _is_system(path: str) -> bool:
    is_system = path.startswith(_SYSTEM) and not path.startswith(_SHARED_MEMORY)
    if not is_media(path) and (path.lower().endswith(_CODE) or is_system or is_library_file(path)):
        return True
    return any(part in path for part in _METADATA) or not os.path.isfile(path)
