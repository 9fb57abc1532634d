"""Text, and bytes that are carried as such.

Text is UTF-8 with lone surrogates kept, since a file name or a damaged caption may hold them. It refuses subclasses
of str, which would come back as plain str.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from audit.values import compression, hashing
from audit.values.base import (
    EXCERPT,
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

_TYPES: dict[str, type] = {"str": str, "bytes": bytes, "bytearray": bytearray}


class TextKind(ValueKind):
    """str, bytes and bytearray."""

    name = "text"
    by_type = True
    digest_rows = (
        (
            "text",
            "`str`, `bytes`, `bytearray`",
            "its length (code points, or bytes)",
            "UTF-8 (lone surrogates as in WTF-8), or the bytes",
        ),
    )
    encoding_rows = (("text", "`raw`, `zstd`", "block; header `type`, `bytes`; body as for the digest"),)

    def matches(self, value: object) -> bool:
        return type(value) in (str, bytes, bytearray)

    def fingerprint(self, value: Any) -> tuple[str, int]:
        raw = _to_bytes(value)
        return hashing.digest_parts(self.name, type(value).__name__, (len(value),), raw), len(raw)

    def observe(self, value: Any) -> Facts:
        digest, size = self.fingerprint(value)
        kind = type(value).__name__
        mode = None if kind == "str" else kind
        return Facts(self.name, kind, (len(value),), mode, digest, bytes=size)

    def preview(self, value: Any) -> Preview | None:
        return excerpt(value if isinstance(value, str) else repr(bytes(value[:EXCERPT])))

    def encode(self, value: Any) -> EncodedValue:
        raw = _to_bytes(value)
        encoding, body = compression.compress_smallest(raw, len(raw), "zstd", raw)
        return EncodedValue(encoding, pack({"type": type(value).__name__, "bytes": len(raw)}, body))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> object:  # noqa: B008
        header, body = unpack(encoded.data)
        if encoded.encoding not in ("raw", "zstd"):
            raise damage_error(f"text has no encoding {encoded.encoding!r}")
        raw = bytes(body) if encoded.encoding == "raw" else compression.decompress(body, header["bytes"])
        made = _TYPES.get(header["type"])
        if made is None:
            raise damage_error(f"text of unknown type {header['type']!r}")
        return raw.decode("utf-8", "surrogatepass") if made is str else made(raw)

    def export(self, value: Any, stem: Path) -> list[Path]:
        path = stem.with_name(stem.name + (".txt" if isinstance(value, str) else ".bin"))
        path.write_bytes(_to_bytes(value))
        return [path]


def _to_bytes(value: Any) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
