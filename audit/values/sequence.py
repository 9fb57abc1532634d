"""Lists, tuples, named tuples and sets of anything.

A set has no order, so its children are taken in the order of their digests. Subclasses of list and tuple come back as
plain ones; a named tuple comes back as its own class when that class is loaded, and as a look-alike otherwise.
"""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

from audit.values import attributes, composite, dispatch, joint_value
from audit.values.base import DecodeOptions, EncodedValue, Facts, Preview, ValueKind, damage_error, excerpt, unpack
from audit.values.loaded_classes import find_class
from audit.values.mapping import export_children


class SequenceKind(ValueKind):
    """list, tuple, namedtuple, set and frozenset."""

    name = "sequence"
    digest_rows = (
        (
            "sequence",
            "`list`, `tuple`, `set`, `frozenset`; `Name(field, field)` for a named tuple; `module.Class` for another subclass",
            "number of children",
            "the children's digests as ASCII, in order; those of a set sorted; then attributes (below)",
        ),
    )

    def matches(self, value: object) -> bool:
        return isinstance(value, (list, tuple, set, frozenset))

    def fingerprint(self, value: Any) -> tuple[str | None, int]:
        kept = attributes.digest_of_public(value)
        return composite.fingerprint(self.name, _mode(value), len(value), _children(value), kept)

    def observe(self, value: Any) -> Facts:
        digest, size = self.fingerprint(value)
        return composite.facts_of(
            self.name, (len(value),), _mode(value), digest, size, joint_value.observe_picture(value)
        )

    def preview(self, value: Any) -> Preview | None:
        return joint_value.preview(value) or excerpt(composite.outline(list(_children(value))))

    def encode(self, value: Any) -> EncodedValue:
        header: dict[str, Any] = {"type": _base(value), "mode": _mode(value)}
        if header["type"] == "namedtuple":
            header |= {"class": [type(value).__module__, type(value).__qualname__], "fields": list(value._fields)}
        if kept := attributes.digest_of_public(value):
            header["attributes"] = kept
        return composite.encode(header, _children(value))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> object:  # noqa: B008
        header, children = composite.decode(encoded, options)
        made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}.get(header["type"])
        if made is not None:
            result: object = made(children)
            return result
        if header["type"] != "namedtuple":
            raise damage_error(f"a sequence of unknown type {header['type']!r}")
        found = _load(header["class"], tuple(header["fields"]))
        # tuple.__new__ and not the class's own: reading a store runs nobody's code.
        return tuple.__new__(found, children)

    def encoded_digest(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> str | None:  # noqa: B008
        header, _ = unpack(encoded.data)
        if "mode" not in header:
            return None  # written before subclasses were distinguished
        marks = composite.encoded_digests(encoded, options)
        return composite.digest_over(self.name, header["mode"], len(marks), marks, header.get("attributes", ""))

    def export(self, value: Any, stem: Path) -> list[Path]:
        names = getattr(value, "_fields", None) or [""] * len(value)
        return export_children(value, stem, list(zip(names, _children(value), strict=True)))


def _base(value: Any) -> str:
    if isinstance(value, tuple):
        return "namedtuple" if _is_named(value) else "tuple"
    return next(
        name
        for name in ("list", "set", "frozenset")
        if isinstance(value, {"list": list, "set": set, "frozenset": frozenset}[name])
    )


def _is_named(value: Any) -> bool:
    fields = getattr(value, "_fields", None)
    return isinstance(fields, tuple) and len(fields) == len(value) and all(isinstance(name, str) for name in fields)


def _mode(value: Any) -> str:
    if type(value) in (list, tuple, set, frozenset):
        return type(value).__name__
    if _is_named(value):
        return f"{type(value).__name__}({', '.join(value._fields)})"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _children(value: Any) -> list[object]:
    return (
        sorted(value, key=lambda one: dispatch.digest(one) or "")
        if isinstance(value, (set, frozenset))
        else list(value)
    )


def _load(where: list[str], fields: tuple[str, ...]) -> Any:
    found = find_class(*where)
    if found is not None and issubclass(found, tuple) and vars(found).get("_fields") == fields:
        return found
    name = where[1].rpartition(".")[2]
    return namedtuple(name if name.isidentifier() else "Row", fields, rename=True)
