"""Is a zip archive what it says, before anything is unpacked from it?

torch reads the members of a checkpoint without comparing checksums, and unpacks a compressed one to whatever size it claims.
Nothing is kept in memory here but one block.
"""

from __future__ import annotations

import copy
import zipfile
import zlib
from pathlib import Path

from audit.errors import AuditError, ModelError

#: An archive may unpack to this many times its size, or to this many bytes. torch does not compress at all.
_MOST_TIMES = 20
_ALWAYS_ALLOWED = 64 * 2**20
_BLOCK = 2**20
_HINT = "Copy it again, or save it again with torch.save."


class _ArchiveError(Exception):
    """What is wrong with an archive, and what to do about it."""


def check_archive(path: Path, failure: type[AuditError] = ModelError, always_allowed: int = _ALWAYS_ALLOWED) -> None:
    """Raise an error for a zip archive whose members lie about their sizes, unpack to far more, or are damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.infolist()
            _check_sizes(path, found, always_allowed)
            for member in found:
                _check_member(path, archive, member)
    except _ArchiveError as error:
        raise failure(error.args[0], hint=error.args[1]) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise failure(f"{path} is a damaged archive: {error}.", hint=_HINT) from error


def _check_sizes(path: Path, found: list[zipfile.ZipInfo], always_allowed: int) -> None:
    size = path.stat().st_size
    if sum(member.compress_size for member in found) > size:
        raise _ArchiveError(f"{path} says that its members are larger than the file, which has {size:,} bytes.", _HINT)
    unpacked = sum(member.file_size for member in found)
    if unpacked > max(always_allowed, _MOST_TIMES * size):
        raise _ArchiveError(
            f"{path} has {size:,} bytes and would unpack to {unpacked:,}.",
            "PyTorch does not compress what it writes. Unpack the file and look at it before you load it.",
        )


def _check_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Read a member once, at most as many bytes as it claims; its checksum is compared at its end, if it has one."""
    if member.CRC == 0:
        # `torch.serialization.set_crc32_options(False)` writes none: there is nothing to compare with.
        member = copy.copy(member)
        del member.CRC
    left = member.file_size
    with archive.open(member) as file:
        while block := file.read(_BLOCK):
            left -= len(block)
            if left < 0:
                raise _ArchiveError(f"{path}: {member.filename} is longer than the archive says.", _HINT)
    if left:
        raise _ArchiveError(f"{path}: {member.filename} is shorter than the archive says.", _HINT)
