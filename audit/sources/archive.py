"""Members of tar archives, each known as `FILE#MEMBER`. Only archives that are not compressed: any member can be read alone."""

from __future__ import annotations

import errno
import functools
import os
import tarfile

_SEPARATOR = "#"


def member_name(archive: str, member: str) -> str:
    """Return how a member of an archive is named as a source."""
    return f"{archive}{_SEPARATOR}{member}"


def read_member(path: str) -> bytes:
    """Return the bytes of `FILE#MEMBER`; OSError where there is no such file or member."""
    archive, _, member = path.partition(_SEPARATOR)
    place = members_of(archive).get(member)
    if place is None:
        raise FileNotFoundError(errno.ENOENT, "the archive has no such member", path)
    start, size = place
    with open(archive, "rb") as file:
        file.seek(start)
        return file.read(size)


def members_of(archive: str) -> dict[str, tuple[int, int]]:
    """Return where each member of an archive begins, and its length; none for what is not a plain tar archive."""
    found = os.stat(archive)
    return _members(archive, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=64)
def _members(archive: str, _modified: int, _size: int) -> dict[str, tuple[int, int]]:
    try:
        with tarfile.open(archive, "r:") as tar:
            return {info.name: (info.offset_data, info.size) for info in tar if info.isfile()}
    except tarfile.TarError:
        return {}
