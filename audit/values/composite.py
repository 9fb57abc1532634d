"""Values made of values: how children are joined into one digest and one block of bytes.

Mapping and sequence differ only in what the children are; the layout is the same. A value that contains itself has no
digest; to be encoded, it falls back to `other` at the end of Python's recursion limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from audit.values import dispatch, hashing
from audit.values.base import DecodeOptions, EncodedValue, Facts, damage_error, pack, unpack

#: A value that is nested more deeply, as one that contains itself is, has no digest.
_DEEPEST = 100
_depth: ContextVar[int] = ContextVar("depth", default=0)


def fingerprint(
    kind: str, mode: str, length: int, children: Iterable[object], attributes: str
) -> tuple[str | None, int]:
    """Return the digest over the children's digests (None where a child has none) and that of attributes, and the sum of their sizes."""
    marks: list[str | None] = []
    size = 0
    depth = _depth.get()
    if depth >= _DEEPEST:
        return None, 0
    before = _depth.set(depth + 1)
    try:
        for child in children:
            mark, weight = dispatch.fingerprint(child)
            marks.append(mark)
            size += weight
            if mark is None:
                break
    finally:
        _depth.reset(before)
    return digest_over(kind, mode, length, marks, attributes), size


def digest_over(kind: str, mode: str, length: int, marks: list[str | None], attributes: str = "") -> str | None:
    """Return the digest of a value whose children, and whose attributes together, have these digests."""
    known = [mark.encode() for mark in marks if mark is not None]
    if len(known) < len(marks):
        return None
    return hashing.digest_parts(kind, mode, (length,), b"".join(known), _attribute_bytes(attributes))


def _attribute_bytes(attributes: str) -> bytes:
    return f"|{attributes}".encode() if attributes and hashing.version() >= 3 else b""


def encode(header: dict[str, Any], children: Iterable[object]) -> EncodedValue:
    """Return a header with [kind, encoding, length] of each child, then the children's bytes."""
    entries: list[tuple[str, str, int]] = []
    blocks: list[bytes] = []
    for child in children:
        name, encoded = dispatch.encode(child)
        entries.append((name, encoded.encoding, len(encoded.data)))
        blocks.append(encoded.data)
    return EncodedValue("children", pack({**header, "children": entries}, b"".join(blocks)))


def decode(encoded: EncodedValue, options: DecodeOptions) -> tuple[dict[str, Any], list[object]]:
    """Return the header and the decoded children."""
    header, blocks = _blocks(encoded)
    return header, [dispatch.KINDS.get(name).decode(block, options) for name, block in blocks]


def encoded_digests(encoded: EncodedValue, options: DecodeOptions) -> list[str | None]:
    """Return the digests of the encoded children."""
    return [dispatch.KINDS.get(name).encoded_digest(block, options) for name, block in _blocks(encoded)[1]]


def _blocks(encoded: EncodedValue) -> tuple[dict[str, Any], list[tuple[str, EncodedValue]]]:
    if encoded.encoding != "children":
        raise damage_error(f"a composite value has no encoding {encoded.encoding!r}")
    header, body = unpack(encoded.data)
    blocks: list[tuple[str, EncodedValue]] = []
    at = 0
    for name, encoding, length in header["children"]:
        blocks.append((name, EncodedValue(encoding, bytes(body[at : at + length]))))
        at += length
    return header, blocks


def facts_of(
    kind: str, shape: tuple[int, ...], mode: str, digest: str | None, size: int, picture: Facts | None
) -> Facts:
    """Return the facts of a composite value. If it is a picture with its target, the statistics are the picture's."""
    facts = Facts(kind, None, shape, mode, digest, bytes=size)
    if picture is None:
        return facts
    return picture._replace(kind=kind, shape=shape, mode=mode, digest=digest, bytes=size)


def outline(value: object, depth: int = 2) -> str:
    """Return a short description: scalars and text in full, the rest by kind and shape."""
    from collections.abc import Mapping

    kind = dispatch.kind_of(value).name
    if kind in ("number", "text") or value is None:
        text = repr(value) if not isinstance(value, int) or value.bit_length() < 1000 else hex(value)
        return text if len(text) <= 80 else text[:79] + "…"
    if depth and kind == "mapping" and isinstance(value, Mapping):
        items = list(value.items())[:20]
        return "{" + ", ".join(f"{outline(k, 0)}: {outline(v, depth - 1)}" for k, v in items) + "}"
    if depth and kind in ("tokens", "sequence") and isinstance(value, (list, tuple)):
        return "[" + ", ".join(outline(child, depth - 1) for child in value[:20]) + "]"
    shape = getattr(value, "shape", None)
    size = "×".join(map(str, shape)) if isinstance(shape, tuple) else ""
    return f"<{kind} {type(value).__name__} {size}".rstrip() + ">"
