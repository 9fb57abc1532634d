"""Dictionaries and what behaves like one, with keys in their order; dataclasses by their fields.

dict, OrderedDict and defaultdict come back as themselves, and so does a dataclass whose class is loaded. Every other
mapping decodes to a dict, because rebuilding its class would run its code. `mode` names the type.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audit.values import attributes, composite, dispatch, joint_value, loaded_classes
from audit.values.base import DecodeOptions, EncodedValue, Facts, Preview, ValueKind, damage_error, excerpt, unpack

_DATACLASS = "dataclass "
#: What a defaultdict may make by itself without running anybody's code.
_FACTORIES: dict[str, Any] = {made.__name__: made for made in (int, float, str, list, dict, set, tuple, bool)}


class MappingKind(ValueKind):
    """collections.abc.Mapping and dataclass instances."""

    name = "mapping"
    digest_rows = (
        (
            "mapping",
            "`dict`; `module.Class` for another mapping; `dataclass module.Class`",
            "number of items",
            "for each item in order: the key's digest, the value's digest, both as 32 ASCII characters; then attributes (below)",
        ),
    )
    encoding_rows = (
        (
            "mapping, sequence",
            "`children`",
            "block; header `type` and `children`, a list of [kind, encoding, length]; body the children's data one after the other (a mapping's keys and values in turn); a named tuple also has `class` [module, name] and `fields`; a sequence has `mode`, its `dtype` in the digest; a defaultdict its `factory` where that is a built-in type; `attributes` is the digest of attributes, if there are any",
        ),
    )

    def matches(self, value: object) -> bool:
        if isinstance(value, Mapping):
            return True
        return dataclasses.is_dataclass(value) and not isinstance(value, type)

    def fingerprint(self, value: Any) -> tuple[str | None, int]:
        items = _items(value)
        children = itertools.chain.from_iterable(items)
        return composite.fingerprint(self.name, _mode(value), len(items), children, _attributes(value))

    def observe(self, value: Any) -> Facts:
        digest, size = self.fingerprint(value)
        shape = (len(_items(value)),)
        return composite.facts_of(self.name, shape, _mode(value), digest, size, joint_value.observe_picture(value))

    def preview(self, value: Any) -> Preview | None:
        return joint_value.preview(value) or excerpt(composite.outline(dict(_items(value))))

    def encode(self, value: Any) -> EncodedValue:
        header = {"type": _mode(value)}
        if kept := _attributes(value):
            header["attributes"] = kept
        factory = getattr(value, "default_factory", None)
        if type(value) is defaultdict and factory in _FACTORIES.values():
            header["factory"] = getattr(factory, "__name__", "")
        return composite.encode(header, itertools.chain.from_iterable(_items(value)))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> object:  # noqa: B008
        header, children = composite.decode(encoded, options)
        if len(children) % 2:
            raise damage_error("a mapping has a key without a value")
        found = dict(zip(children[::2], children[1::2], strict=True))
        if header["type"] == "collections.OrderedDict":
            return OrderedDict(found)
        if header["type"] == "collections.defaultdict":
            return defaultdict(_FACTORIES.get(header.get("factory", "")), found)
        if str(header["type"]).startswith(_DATACLASS):
            return loaded_classes.rebuild_dataclass(header["type"].removeprefix(_DATACLASS), found)
        return found

    def encoded_digest(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> str | None:  # noqa: B008
        header, _ = unpack(encoded.data)
        marks = composite.encoded_digests(encoded, options)
        return composite.digest_over(self.name, header["type"], len(marks) // 2, marks, header.get("attributes", ""))

    def export(self, value: Any, stem: Path) -> list[Path]:
        return export_children(value, stem, [(str(key), child) for key, child in _items(value)])


def export_children(value: object, stem: Path, children: list[tuple[str, object]]) -> list[Path]:
    """Write a .json outline, and each child beside it under the stem's own folder."""
    path = stem.with_name(stem.name + ".json")
    outline = [{"name": name, "value": composite.outline(child)} for name, child in children]
    path.write_text(json.dumps({"type": type(value).__name__, "children": outline}, indent=1) + "\n", encoding="utf-8")
    paths = [path]
    for at, (name, child) in enumerate(children):
        # Keys are data: nothing but letters, digits, dash and underscore reaches the file system.
        safe = "".join(c if (c.isascii() and c.isalnum()) or c in "-_" else "_" for c in name)[:60]
        paths += dispatch.export(child, stem / f"{at:03d}-{safe}")
    return paths


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


def _attributes(value: Any) -> str:
    if isinstance(value, Mapping):
        return attributes.digest_of_public(value)
    return attributes.digest_of_public(value, [field.name for field in dataclasses.fields(value)])


def _mode(value: Any) -> str:
    if type(value) is dict:
        return "dict"
    prefix = "" if isinstance(value, Mapping) else _DATACLASS
    return f"{prefix}{type(value).__module__}.{type(value).__qualname__}"
