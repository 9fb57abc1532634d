"""numpy arrays of every dtype that is plain memory.

Arrays of Python objects and numpy subclasses with behaviour of their own (masked arrays, records) are refused: they
are `other`.
"""

from __future__ import annotations

import ast
import io
from pathlib import Path
from typing import Any

import numpy as np

from audit.values import compression, hashing, statistics, thumbnail
from audit.values.base import (
    DecodeOptions,
    EncodedValue,
    Facts,
    Preview,
    ValueKind,
    damage_error,
    excerpt,
    pack,
    unpack,
)


class ArrayKind(ValueKind):
    """numpy.ndarray (and memory maps, which come back as plain arrays)."""

    name = "array"
    is_first_of_its_types = True
    digest_rows = (
        (
            "array",
            "numpy's name (`float32`) for a native number or boolean; `dtype.str` (`>i4`, `<U3`, `<M8[D]`) for other plain types; `repr(dtype.descr)` for structures",
            "the shape",
            "the elements, with the padding inside structures",
        ),
    )
    encoding_rows = (
        ("array", "`npy`", "an npy file"),
        (
            "array",
            "`npy+zstd`, `npy+bytes+zstd`",
            "block; header `npy` (length of the npy header), `bytes`, `width` (of an element); body the npy header as it is, then the frame",
        ),
    )

    def matches(self, value: object) -> bool:
        return type(value) in (np.ndarray, np.memmap) and is_storable(value.dtype)  # type: ignore[attr-defined]

    def fingerprint(self, value: Any) -> tuple[str, int]:
        digest = hashing.digest_parts(self.name, dtype_text(value.dtype), value.shape, raw_bytes(value))
        return digest, int(value.nbytes)

    def observe(self, value: Any) -> Facts:
        digest, size = self.fingerprint(value)
        stats = statistics.of_array(value)
        return Facts(self.name, dtype_text(value.dtype), value.shape, None, digest, *stats, size)

    def preview(self, value: Any) -> Preview | None:
        return thumbnail.of_array(value) or describe(value)

    def encode(self, value: Any) -> EncodedValue:
        head, body = _npy(value)
        width = value.dtype.itemsize
        if width in (2, 4, 8) and value.dtype.kind in "fiu" and body:
            split = compression.split_bytes(np.frombuffer(body, np.uint8), width)
            encoding, frame = compression.compress_smallest(body, len(body), "npy+bytes+zstd", split)
        else:
            encoding, frame = compression.compress_smallest(body, len(body), "npy+zstd", body)
        if encoding == "raw":
            return EncodedValue("npy", head + body)
        return EncodedValue(encoding, pack({"npy": len(head), "bytes": len(body), "width": width}, head + frame))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> Any:  # noqa: B008
        if encoded.encoding == "npy":
            return from_npy(encoded.data)
        if encoded.encoding not in ("npy+zstd", "npy+bytes+zstd"):
            raise damage_error(f"an array has no encoding {encoded.encoding!r}")
        header, block = unpack(encoded.data)
        head = header["npy"]
        body = compression.decompress(block[head:], header["bytes"])
        if encoded.encoding == "npy+bytes+zstd":
            body = compression.join_bytes(np.frombuffer(body, np.uint8), header["width"]).tobytes()
        return from_npy(bytes(block[:head]) + body)

    def export(self, value: Any, stem: Path) -> list[Path]:
        return export_array(value, stem)


def is_storable(dtype: Any) -> bool:
    """Return whether `dtype` is plain memory that the npy format gives back exactly."""
    if dtype.hasobject:
        return False
    if dtype.kind in "biufcSUmM":
        return bool(dtype.isbuiltin != 2)
    if dtype.kind != "V" or not isinstance(dtype, np.dtype) or dtype.type is not np.void:
        return False
    try:
        return bool(np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype)
    except (ValueError, TypeError):
        return False


def _npy(value: Any) -> tuple[bytes, bytes]:
    """Return header and data of the npy format, with the padding inside structures, which numpy's writer leaves to chance."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, value, allow_pickle=False)
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    return buffer.getvalue()[: buffer.tell() - value.nbytes], value.tobytes("F" if fortran else "C")


def to_npy(value: Any) -> bytes:
    """Return `value` as an npy file."""
    return b"".join(_npy(value))


def from_npy(data: bytes) -> Any:
    """Return the array in an npy file; never a pickle."""
    # Versions 1 to 3 of the format; numpy reads the third only while it also copies the data, without the padding.
    wide = 2 if data[6] == 1 else 4
    start = 8 + wide + int.from_bytes(data[8 : 8 + wide], "little")
    described = ast.literal_eval(data[8 + wide : start].decode("utf-8" if data[6] == 3 else "latin-1"))
    shape, fortran = described["shape"], described["fortran_order"]
    dtype = np.lib.format.descr_to_dtype(described["descr"])
    if not is_storable(dtype):
        raise damage_error(f"an array of {dtype} is not plain memory")
    body = bytearray(data[start:])
    count = int(np.prod(shape, dtype=np.int64))
    if len(body) != count * dtype.itemsize:
        raise damage_error(f"an array of {count * dtype.itemsize} bytes has {len(body)}")
    flat = np.frombuffer(body, dtype) if body else np.zeros(count, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def dtype_text(dtype: Any) -> str:
    """Return `float32` for a plain native type, numpy's own descriptor otherwise."""
    if dtype.names is not None or dtype.subdtype is not None:
        return repr(dtype.descr if dtype.names is not None else dtype)
    return str(dtype.name) if dtype.isnative and dtype.kind in "biufc" else str(dtype.str)


def raw_bytes(value: Any) -> Any:
    """Return the elements in C order as a flat buffer of bytes, copied only when they lie otherwise."""
    if value.flags.c_contiguous and value.dtype.itemsize and value.size:
        return value.reshape(-1).view(np.uint8)
    return value.tobytes()


def describe(value: Any) -> Preview:
    """Return an excerpt that names dtype and shape and shows the first values."""
    first = ", ".join(str(item) for item in value.reshape(-1)[:32])
    more = ", …" if value.size > 32 else ""
    return excerpt(f"{value.dtype} {'×'.join(map(str, value.shape)) or 'scalar'}: {first}{more}")


def export_array(value: Any, stem: Path) -> list[Path]:
    """Write an exact .npy, and .png where the array looks like a picture."""
    exact = stem.with_name(stem.name + ".npy")
    np.save(exact, value, allow_pickle=False)
    picture = thumbnail.as_picture(value)
    if picture is None:
        return [exact]
    shown = stem.with_name(stem.name + ".png")
    picture.save(shown, "PNG")
    return [exact, shown]
