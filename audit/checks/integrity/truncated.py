"""`truncated`: picture files that end before their picture does, and were loaded all the same."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import choose_files, open_unbuffered_files
from audit.picture_formats import open_picture
from audit.store.bucket.location import is_remote

#: The last bytes of a file that are read at first: enough for the end of a PNG, and for a JPEG that something follows.
_TAIL = 64
#: Reading the end of a file in a bucket fetches all of it.
_REMOTE = 200


OpenUnbuffered = io.FileIO | io.BytesIO


class Truncated(Check):
    """Look for the marker at the end of JPEG, PNG and WebP files; decode those without one to see whether pixels are missing."""

    description = "Picture files that were cut off and loaded all the same: the rest of the picture is grey or black."
    question = "Is a file cut off?"
    statistic = "none: the end marker is missing, and Pillow does not decode it"
    assumes = "JPEG, PNG or WebP"
    needs = ("pictures", "files")
    options = settings(
        files=Option(10_000, "Look at the end of at most this many files, evenly chosen; 0 looks at all.")
    )

    def run(self, context: Context) -> Iterable[Finding]:
        may = "status = 'ok' AND regexp_matches(lower(source), '\\.(jpe?g|jfif|png|webp)$')"
        most = context.options["files"]
        if is_remote(context.facts.root or ""):
            most = min(most or _REMOTE, _REMOTE)
        files = choose_files(context, most, may)
        if not files:
            raise Skip("no file is a JPEG, PNG or WebP")
        for file, found in open_unbuffered_files(files):
            if isinstance(found, OSError):
                continue
            with found:
                if has_end(found):
                    continue
                missing = not _decodes(found)
            yield Finding(
                f"{file.source} (index {file.index}) is cut off: "
                + (
                    "its last pixels are missing, and loading filled them." if missing else "its end marker is missing."
                ),
                index=file.index,
                source=file.source,
                stage=0,
                sql=context.evidence("samples", file.index),
                severity=None if missing else "info",
            )


def has_end(file: OpenUnbuffered) -> bool:
    """Return whether a file has the end of its picture; True for formats that are not known."""
    file.seek(0)
    head = file.read(16)
    size = file.seek(0, os.SEEK_END)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return size >= 8 + int.from_bytes(head[4:8], "little")
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return b"IEND" in tail or b"IEND" in _read_all(file)
    if head[:3] == b"\xff\xd8\xff":
        return tail.rstrip(b"\0\n\r ").endswith(b"\xff\xd9") or _jpeg_has_end(_read_all(file))
    return True


def _read_all(file: OpenUnbuffered) -> bytes:
    file.seek(0)
    return file.read()


def _jpeg_has_end(data: bytes) -> bool:
    """Return whether the end marker follows the first scan: cameras write other data after it, and thumbnails before."""
    place = 2
    while data[place : place + 1] == b"\xff" and place + 4 <= len(data):
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if marker == 0xDA:
            return data.find(b"\xff\xd9", place + 2 + length) >= 0
        place += 1 if marker == 0xFF else 2 + length
    return False


def _decodes(file: OpenUnbuffered) -> bool:
    """Return whether Pillow, which raises an error for missing pixels, decodes the picture."""
    file.seek(0)
    try:
        with open_picture(file if isinstance(file, io.BytesIO) else io.BytesIO(_read_all(file))) as image:
            image.load()
    except Exception:
        return False
    return True
