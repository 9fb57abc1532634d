"""What the headers of picture files say: each file is opened once for all checks that ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from audit.checks.context import Context
from audit.checks.shared.files import OpenFile, SourceFile, open_files
from audit.picture_formats import open_picture

_ORIENTATION = 0x0112
#: EXIF's maker, model and software.
_CAMERA = (271, 272, 305)
_PNG = b"\x89PNG\r\n\x1a\n"
#: Chunks of a PNG that hold metadata, and those of one without any; the types of colour that have an alpha channel.
_TEXTS = {b"eXIf", b"zTXt", b"iTXt", b"tEXt"}
_PLAIN_CHUNKS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"gAMA", b"cHRM", b"sRGB", b"bKGD", b"tIME", b"sBIT"}
_WITH_ALPHA = (4, 6)
_NO_METADATA = ((), False, "None", False)


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
    known: dict[tuple[str | None, str], FileHeader | None] = context.facts.cache.setdefault("headers", {})
    unread = [file for file in files if (file.root, file.source) not in known]
    for file, found in open_files(unread):
        header = None
        if not isinstance(found, OSError):
            try:
                with found:
                    header = _read_header(found)
            except Exception:
                header = None
        known[file.root, file.source] = header
    yield from ((file, known[file.root, file.source]) for file in files)


def _read_header(file: OpenFile) -> FileHeader:
    """Return what the header of an open file says; of a PNG without metadata, without the help of Pillow."""
    head = file.read(26)
    chunks = _chunks(file) if head[:8] == _PNG else None
    if chunks is not None and chunks <= _PLAIN_CHUNKS and head[12:16] == b"IHDR":
        return FileHeader(head[25] in _WITH_ALPHA, 1, None, _NO_METADATA)
    file.seek(0)
    with open_picture(file) as image:
        # Text may hold EXIF or XMP. Pillow would decode all pixels of a PNG to know that there is none.
        return _header(image, may_have_exif=chunks is None or bool(chunks & _TEXTS))


def _chunks(file: OpenFile) -> set[bytes]:
    """Return the names of the chunks of a PNG."""
    found = set()
    place = len(_PNG)
    file.seek(place)
    while len(head := file.read(8)) == 8:
        found.add(head[4:])
        place += int.from_bytes(head[:4], "big") + 12
        file.seek(place)
    return found


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
