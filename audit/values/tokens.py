"""A flat, non-empty list or tuple of strings, or of integers: what a tokenizer gives.

Mixed lists and lists of booleans are refused; they are sequences.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from audit.values import compression, hashing, statistics
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


class TokensKind(ValueKind):
    """list or tuple of str, or of int."""

    name = "tokens"
    digest_rows = (
        ("tokens", "`list[int64]`, `tuple[int64]`", "the length", "8 bytes each, little-endian, signed"),
        (
            "tokens",
            "`list[int]`, `tuple[int]` (an integer does not fit 64 bits)",
            "the length",
            "for each: 8-byte little-endian length, then lower-case hexadecimal with a `-` where negative",
        ),
        (
            "tokens",
            "`list[str]`, `tuple[str]`",
            "the length",
            "for each: 8-byte little-endian length in bytes, then UTF-8",
        ),
    )
    encoding_rows = (
        ("tokens", "`raw`, `zstd`, `bytes+zstd`", "block; header `type`, `dtype`, `bytes`; body as for the digest"),
    )

    def matches(self, value: object) -> bool:
        if type(value) not in (list, tuple) or not value:
            return False
        kinds = set(map(type, value))  # type: ignore[call-overload]
        return kinds == {int} or kinds == {str}

    def fingerprint(self, value: Any) -> tuple[str, int]:
        dtype, raw = _to_bytes(value)
        return hashing.digest_parts(self.name, f"{type(value).__name__}[{dtype}]", (len(value),), raw), len(raw)

    def observe(self, value: Any) -> Facts:
        mode = type(value).__name__
        dtype, raw = _to_bytes(value)
        digest = hashing.digest_parts(self.name, f"{mode}[{dtype}]", (len(value),), raw)
        stats = statistics.of_array(np.frombuffer(raw, "<i8")) if dtype == "int64" else statistics.NO_STATISTICS
        return Facts(self.name, dtype, (len(value),), mode, digest, *stats, len(raw))

    def preview(self, value: Any) -> Preview | None:
        shown = value[:200]
        return excerpt(" ".join(shown if isinstance(shown[0], str) else map(_shorten, shown)))

    def encode(self, value: Any) -> EncodedValue:
        dtype, raw = _to_bytes(value)
        filtered: Any = raw
        name = "zstd"
        if dtype == "int64":
            filtered, name = compression.split_bytes(np.frombuffer(raw, np.uint8), 8), "bytes+zstd"
        encoding, body = compression.compress_smallest(raw, len(raw), name, filtered)
        return EncodedValue(encoding, pack({"type": type(value).__name__, "dtype": dtype, "bytes": len(raw)}, body))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> object:  # noqa: B008
        header, body = unpack(encoded.data)
        if encoded.encoding == "raw":
            raw = bytes(body)
        elif encoded.encoding in ("zstd", "bytes+zstd"):
            raw = compression.decompress(body, header["bytes"])
            if encoded.encoding == "bytes+zstd":
                raw = compression.join_bytes(np.frombuffer(raw, np.uint8), 8).tobytes()
        else:
            raise damage_error(f"tokens have no encoding {encoded.encoding!r}")
        items = _items(header["dtype"], raw)
        return tuple(items) if header["type"] == "tuple" else items

    def export(self, value: Any, stem: Path) -> list[Path]:
        path = stem.with_name(stem.name + ".json")
        safe = [item if isinstance(item, str) or item.bit_length() <= 10_000 else hex(item) for item in value]
        path.write_text(json.dumps(safe) + "\n", encoding="utf-8")
        return [path]


def _to_bytes(value: Any) -> tuple[str, bytes]:
    """Return integers of 64 bits as little-endian words; everything else as length-prefixed UTF-8."""
    if type(value[0]) is int:
        try:
            return "int64", np.array(value, dtype="<i8").tobytes()
        except OverflowError:
            return "int", _prefix_lengths([format(item, "x").encode() for item in value])
    return "str", _prefix_lengths([item.encode("utf-8", "surrogatepass") for item in value])


def _prefix_lengths(parts: list[bytes]) -> bytes:
    return b"".join(piece for part in parts for piece in (struct.pack("<Q", len(part)), part))


def _items(dtype: str, raw: bytes) -> list[Any]:
    if dtype == "int64":
        return list(np.frombuffer(raw, "<i8").tolist())
    items: list[Any] = []
    at = 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        part = raw[at + 8 : at + 8 + length]
        items.append(int(part, 16) if dtype == "int" else part.decode("utf-8", "surrogatepass"))
        at += 8 + length
    return items


def _shorten(item: int) -> str:
    return str(item) if item.bit_length() <= 1_000 else format(item, "#x")
