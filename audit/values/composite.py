"""Values made of values: how children are joined into one digest and one block of bytes.

Mapping and sequence differ only in what the children are; the layout is the same. A value that contains itself
exceeds Python's recursion limit here and falls back to `other`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from audit.values import dispatch, hashing
from audit.values.base import Encoded, Reading, damaged, pack, unpack


def fingerprint(kind: str, mode: str, length: int, children: Iterable[object]) -> tuple[str, int]:
    """Digest over the children's digests, and the sum of their sizes."""
    marks: list[bytes] = []
    size = 0
    for child in children:
        mark, weight = dispatch.fingerprint(child)
        marks.append(mark.encode())
        size += weight
    return hashing.of(kind, mode, (length,), b"".join(marks)), size


def encode(header: dict[str, Any], children: Iterable[object]) -> Encoded:
    """Header with [kind, encoding, length] of each child, then the children's bytes."""
    entries: list[tuple[str, str, int]] = []
    blocks: list[bytes] = []
    for child in children:
        name, encoded = dispatch.encode(child)
        entries.append((name, encoded.encoding, len(encoded.data)))
        blocks.append(encoded.data)
    return Encoded("children", pack({**header, "children": entries}, b"".join(blocks)))


def decode(encoded: Encoded, reading: Reading) -> tuple[dict[str, Any], list[object]]:
    """The header and the decoded children."""
    if encoded.encoding != "children":
        raise damaged(f"a composite value has no encoding {encoded.encoding!r}")
    header, body = unpack(encoded.data)
    children: list[object] = []
    at = 0
    for name, encoding, length in header["children"]:
        block = Encoded(encoding, bytes(body[at : at + length]))
        children.append(dispatch.KINDS.get(name).decode(block, reading))
        at += length
    return header, children


def outline(value: object, depth: int = 2) -> str:
    """A short description: scalars and text in full, the rest by kind and shape."""
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
