"""Pictures: PIL.Image in every mode that Pillow can make.

Pixels, size, mode, palette and the transparency entry are kept and digested; file metadata (EXIF, profiles, format) is not,
because the source file has it. A picture that was opened but not yet read is read, as its first use would.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from audit.values import compression, hashing, statistics, thumbnail
from audit.values import native as loops
from audit.values.base import DecodeOptions, EncodedValue, Facts, Preview, ValueKind, damage_error, pack, unpack
from audit.values.bits import pack_rgb, unpack_rgb
from audit.values.pixels import CORE, PLAIN_CLASSES, pad_rgb, plain_pixels, raw_rgb, sum_rgb

_BYTE_MODES = frozenset(("L", "P", "PA", "LA", "La", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV"))
_DTYPES = {"1": "bool", "I": "int32", "F": "float32"}
_WIDTHS = {"I": 4, "F": 4}


def pillow_names() -> tuple[Any, ...]:
    """Return what the compiled loops must know of Pillow, in their order."""
    fields = ("_size", "_im", "_mode", "palette", "info", "transparency", "__arrow_c_array__", "tile")
    return (Image.Image, CORE, Facts, "image", "uint8", "RGB", *fields, PLAIN_CLASSES)


class ImageKind(ValueKind):
    """PIL.Image.Image and its subclasses; decodes to PIL.Image.Image."""

    name = "image"
    by_type = True
    digest_rows = (
        (
            "image, mode RGB",
            "`RGB`",
            "height, width, 3",
            'four bytes per pixel: R, G, B, 255, which is `image.convert("RGBX").tobytes()`',
        ),
        (
            "image, other modes",
            "the Pillow mode",
            "height, width, and the number of bands if more than one",
            "`image.tobytes()`",
        ),
        (
            "image, modes P and PA",
            "the mode",
            "as above",
            "`image.tobytes()`, then the palette's mode in ASCII (`RGB`, `RGBA`…), then the palette's bytes",
        ),
        (
            'image with `info["transparency"]`',
            "as above",
            "as above",
            "as above, then `\\|transparency` and the entry's bytes; or `\\|transparency ` and the entry's numbers in decimal, with commas",
        ),
    )
    encoding_rows = (
        (
            "image",
            "`raw`, `zstd`, `rows+zstd`, `bits`",
            "block; header `mode`, `size` [width, height], `palette` [mode, base64] and `transparency` (number, list, or base64) where there are; body `image.tobytes()`; a row is its length divided by the height",
        ),
    )

    def matches(self, value: object) -> bool:
        return isinstance(value, Image.Image)

    def fingerprint(self, value: Any) -> tuple[str, int]:
        return self._digest(value), _size(value)

    def observe_fast(self, value: Any) -> Facts | None:
        """Return the facts of an RGB picture that Pillow has in memory; None for every other picture."""
        if loops.native is None or (pixels := plain_pixels(value)) is None or "transparency" in value.info:
            return None
        width, height = value._size
        found: Facts | None = loops.native.pixels(pixels, height, width, "image", "uint8", "RGB", Facts)
        return found

    def preview_fast(self, value: Any) -> Preview | None:
        """Return the preview of an RGB picture that Pillow has in memory; None for every other picture."""
        if loops.native is None or (pixels := plain_pixels(value)) is None:
            return None
        return thumbnail.of_pixels(pixels, *value._size)

    def observe(self, value: Any) -> Facts:
        if value.mode == "RGB":
            width, height = value.size
            if loops.native is not None and width and height and "transparency" not in value.info:
                found: Facts | None = loops.native.pixels(raw_rgb(value), height, width, "image", "uint8", "RGB", Facts)
                if found is not None:
                    return found
            shape, size = (height, width, 3), _size(value)
            words, sums = sum_rgb(value)
            digest = hashing.digest_parts(self.name, "RGB", shape, words, *_transparency(value))
            stats = statistics.of_sums(3 * width * height, sums) if sums is not None else _statistics(value)
            return Facts(self.name, "uint8", shape, "RGB", digest, *stats, size)
        digest, stats = self._digest(value), _statistics(value)
        dtype = _DTYPES.get(value.mode) or ("uint16" if value.mode.startswith("I;16") else "uint8")
        return Facts(self.name, dtype, _shape(value), value.mode, digest, *stats, _size(value))

    def preview(self, value: Any) -> Preview | None:
        if 0 in value.size:
            return None
        return thumbnail.of_image(value)

    def encode(self, value: Any) -> EncodedValue:
        if (
            loops.native is not None
            and value.mode == "RGB"
            and 0 not in value.size
            and "transparency" not in value.info
        ):
            head = _rgb_head(value.size)
            data = pack_rgb(value, head)
            if len(data) - len(head) < 3 * value.width * value.height:
                return EncodedValue("bits", data)
            return EncodedValue("raw", b"".join((head, value.tobytes())))
        header: dict[str, Any] = {"mode": value.mode, "size": value.size}
        palette = _palette(value)
        if palette is not None:
            header["palette"] = [palette[0], base64.b64encode(palette[1]).decode()]
        transparency = value.info.get("transparency")
        if isinstance(transparency, bytes):
            header["transparency"] = base64.b64encode(transparency).decode()
        elif isinstance(transparency, (int, tuple, list)):
            header["transparency"] = transparency
        raw = value.tobytes()
        row = len(raw) // value.height if value.height else 0
        if value.mode in _BYTE_MODES and row:
            filtered: Any = compression.subtract_rows(np.frombuffer(raw, np.uint8), row)
            encoding, body = compression.compress_smallest(raw, len(raw), "rows+zstd", filtered)
        else:
            encoding, body = compression.compress_smallest(raw, len(raw), "zstd", raw)
        return EncodedValue(encoding, pack(header, body))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> Image.Image:  # noqa: B008
        header, raw = _unpack(encoded)
        mode, (width, height), size = header["mode"], header["size"], len(raw)
        image = Image.frombytes(mode, (width, height), bytes(raw)) if size else Image.new(mode, (width, height))
        if "palette" in header:
            image.putpalette(base64.b64decode(header["palette"][1]), header["palette"][0])
        transparency = header.get("transparency")
        if transparency is not None:
            if isinstance(transparency, str):
                transparency = base64.b64decode(transparency)
            image.info["transparency"] = tuple(transparency) if isinstance(transparency, list) else transparency
        return image

    def export(self, value: Any, stem: Path) -> list[Path]:
        exact, picture = stem.with_name(stem.name + ".npy"), stem.with_name(stem.name + ".png")
        np.save(exact, np.asarray(value))
        if 0 in value.size:
            return [exact]
        # PNG holds these exactly; the rest is shown as RGB or grey, since the .npy is exact.
        lossless = value.mode in ("1", "L", "P", "LA", "RGB", "RGBA", "I;16")
        shown = value.copy() if lossless else thumbnail.to_viewable(value)
        if shown.mode != "P":
            shown.info = {}  # entries that belonged to another mode make the PNG writer raise
        shown.save(picture, "PNG")
        return [exact, picture]

    def _digest(self, image: Image.Image) -> str:
        shape = _shape(image)
        if image.mode == "RGB":
            return hashing.digest_parts(self.name, "RGB", shape, pad_rgb(image), *_transparency(image))
        raw = image.tobytes()
        palette = _palette(image)
        if palette is None:
            return hashing.digest_parts(self.name, image.mode, shape, raw, *_transparency(image))
        return hashing.digest_parts(
            self.name, image.mode, shape, raw, palette[0].encode(), palette[1], *_transparency(image)
        )


def decode_pixels(encoded: EncodedValue) -> Any:
    """Return the pixels of a grey or RGB picture as an array of bytes, faster than `decode`; None for other pictures."""
    header, raw = _unpack(encoded)
    shape = {"L": (), "RGB": (3,)}.get(header["mode"])
    if shape is None or not len(raw) or "transparency" in header:
        return None
    width, height = header["size"]
    return np.frombuffer(raw, np.uint8).reshape(height, width, *shape)


def decode_all_pixels(data: Sequence[bytes], encoding: str) -> Any:
    """Return the pixels of pictures of one encoding, size and mode together, an array of bytes; None if they differ or are of another mode.

    Frames of zstd that follow each other are decompressed as one: a tenth of the time of one by one.
    """
    first, body = unpack(data[0])
    head = len(data[0]) - len(body)
    shape = {"L": (), "RGB": (3,)}.get(first["mode"])
    width, height = first["size"]
    size = _raw_size(first["mode"], width, height)
    alike = all(one[:head] == data[0][:head] for one in data)
    if shape is None or encoding not in ("zstd", "rows+zstd") or not size or "transparency" in first or not alike:
        return None
    raw = compression.decompress(b"".join([one[head:] for one in data]), size * len(data))
    lines = np.frombuffer(raw, np.uint8).reshape(len(data), height, size // height)
    if encoding == "rows+zstd":
        lines = np.add.accumulate(lines, axis=1, dtype=np.uint8)
    return lines.reshape(len(data), height, width, *shape)


def _unpack(encoded: EncodedValue) -> tuple[dict[str, Any], Any]:
    """Return the header of a stored picture and its bytes, as `tobytes` of Pillow gives them."""
    header, body = unpack(encoded.data)
    mode, (width, height) = header["mode"], header["size"]
    size = _raw_size(mode, width, height)
    raw: Any
    if encoded.encoding == "raw":
        raw = body
    elif encoded.encoding == "bits":
        raw = unpack_rgb(body, width, height).reshape(-1)
    elif encoded.encoding == "zstd":
        raw = compression.decompress(body, size)
    elif encoded.encoding == "rows+zstd":
        raw = compression.add_rows(np.frombuffer(compression.decompress(body, size), np.uint8), size // height)
    else:
        raise damage_error(f"an image has no encoding {encoded.encoding!r}")
    if len(raw) != size:
        raise damage_error(f"a picture of {size} bytes has {len(raw)}")
    return header, raw


@functools.lru_cache(64)
def _rgb_head(size: tuple[int, int]) -> bytes:
    return pack({"mode": "RGB", "size": size}, b"")


def _shape(image: Image.Image) -> tuple[int, ...]:
    bands = len(image.getbands())
    return (image.height, image.width) if bands == 1 else (image.height, image.width, bands)


def _size(image: Image.Image) -> int:
    return _raw_size(image.mode, image.width, image.height) + sum(map(len, _transparency(image)))


def _raw_size(mode: str, width: int, height: int) -> int:
    if mode == "1":
        return (width + 7) // 8 * height
    if mode.startswith("I;16"):
        return 2 * width * height
    return width * height * (_WIDTHS.get(mode) or Image.getmodebands(mode))


def _transparency(image: Image.Image) -> tuple[bytes, ...]:
    """Return what of a transparency entry is part of the digest. It decides what becomes of the pixels in RGBA."""
    found = image.info.get("transparency")
    if not isinstance(found, (bytes, int, tuple, list)) or hashing.version() < 3:
        return ()
    if isinstance(found, bytes):
        return (b"|transparency", found)
    listed = (found,) if isinstance(found, int) else found
    return (f"|transparency {','.join(map(str, listed))}".encode(),)


def _palette(image: Image.Image) -> tuple[str, bytes] | None:
    if image.mode not in ("P", "PA"):
        return None
    image.load()
    mode: str = image.im.getpalettemode()
    return mode, bytes(image.im.getpalette(mode, mode))


def _statistics(image: Image.Image) -> statistics.Statistics:
    if image.mode in _BYTE_MODES:
        return statistics.of_histogram(image.histogram(), len(image.getbands()))
    return statistics.of_array(np.asarray(image))
