"""What the headers of picture files say: each file is opened once for all checks that ask."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from audit.checks.context import Context
from audit.checks.shared.files import Opened, SourceFile, open_files
from audit.picture_formats import open_picture

_ORIENTATION = 0x0112
#: EXIF's maker, model and software.
_CAMERA = (271, 272, 305)


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What the header of a picture's file says."""

    #: Whether some pixels may be transparent.
    transparent: bool
    #: EXIF's number, 1 for upright.
    orientation: int
    #: The sum of the quantization tables of a JPEG: the lower, the better.
    quality: int | None
    #: Camera and software, and whether there are a colour profile, a resolution and a comment.
    metadata: tuple[object, ...]


def headers(context: Context, files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, FileHeader | None]]:
    """Yield each file with its header; None if it cannot be read."""
    known: dict[tuple[int, str], FileHeader | None] = context.facts.cache.setdefault("headers", {})
    unread = [file for file in files if (file.index, file.source) not in known]
    for file, found in open_files(unread):
        header = None
        if not isinstance(found, OSError):
            try:
                with found, open_picture(found) as image:
                    header = _header(image, may_have_exif=image.format != "PNG" or _has_exif(found))
            except Exception:
                header = None
        known[file.index, file.source] = header
    yield from ((file, known[file.index, file.source]) for file in files)


def _has_exif(file: Opened) -> bool:
    """Return whether a PNG has metadata with an orientation or a camera: Pillow would decode all pixels to know."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, name = int.from_bytes(head[:4], "big"), head[4:]
        # Text may hold EXIF or XMP.
        if name in (b"eXIf", b"zTXt", b"iTXt", b"tEXt"):
            return True
        file.seek(length + 4, os.SEEK_CUR)
    return False


def _header(image: object, *, may_have_exif: bool) -> FileHeader:
    from PIL.Image import Image

    assert isinstance(image, Image)
    tables = getattr(image, "quantization", None)
    exif: Mapping[int, object] = image.getexif() if may_have_exif else {}
    camera = tuple(str(exif[tag]) for tag in _CAMERA if tag in exif)
    orientation = exif.get(_ORIENTATION, 1)
    return FileHeader(
        image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info,
        orientation if isinstance(orientation, int) else 1,
        sum(map(sum, tables.values())) if tables else None,
        (camera, "icc_profile" in image.info, str(image.info.get("dpi")), "comment" in image.info),
    )
