"""Single numbers: Python's bool, int, float and complex, and numpy's scalars with their dtype.

Subclasses (enumerations, for one) are not numbers here: they would come back as something else.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from audit.values import array, hashing, statistics
from audit.values.base import DecodeOptions, EncodedValue, Facts, Preview, ValueKind, damage_error, excerpt

_PYTHON: dict[type, str] = {bool: "bool", int: "int", float: "float", complex: "complex"}
_LONG = 10_000  # bits; beyond this decimal digits take quadratic time, and Python refuses


class NumberKind(ValueKind):
    """bool, int, float, complex and numpy scalars."""

    name = "number"
    is_first_of_its_types = True
    digest_rows = (
        ("number", "`bool`", "empty", "one byte, 0 or 1"),
        ("number", "`int`", "empty", "lower-case hexadecimal, with a `-` where negative"),
        ("number", "`float`, `complex`", "empty", "one or two IEEE doubles, little-endian"),
        ("number", "numpy's name, as for array", "empty", "the scalar's bytes"),
    )
    encoding_rows = (
        ("number", "`bool`, `int`, `float`, `complex`", "as for the digest"),
        ("number", "`npy`", "an npy file of no dimensions"),
    )

    def matches(self, value: object) -> bool:
        if type(value) in _PYTHON:
            return True
        return isinstance(value, np.generic) and type(value).__module__ == "numpy" and array.is_storable(value.dtype)

    def fingerprint(self, value: Any) -> tuple[str, int]:
        raw = _to_bytes(value)
        return hashing.digest_parts(self.name, _dtype(value), (), raw), len(raw)

    def observe(self, value: Any) -> Facts:
        digest, size = self.fingerprint(value)
        return Facts(self.name, _dtype(value), (), None, digest, *_statistics(value), size)

    def preview(self, value: Any) -> Preview | None:
        return excerpt(_text(value))

    def encode(self, value: Any) -> EncodedValue:
        if isinstance(value, np.generic):
            return EncodedValue("npy", array.to_npy(np.asarray(value)))
        return EncodedValue(_dtype(value), _to_bytes(value))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> object:  # noqa: B008
        data = encoded.data
        try:
            if encoded.encoding == "npy":
                return array.from_npy(data)[()]
            if encoded.encoding == "bool":
                return data == b"\x01"
            if encoded.encoding == "int":
                return int(data, 16)
            if encoded.encoding == "float":
                return struct.unpack("<d", data)[0]
            if encoded.encoding == "complex":
                return complex(*struct.unpack("<dd", data))
        except (struct.error, ValueError) as error:
            raise damage_error(str(error)) from error
        raise damage_error(f"a number has no encoding {encoded.encoding!r}")

    def export(self, value: Any, stem: Path) -> list[Path]:
        path = stem.with_name(stem.name + ".json")
        plain: object = _text(value)
        if type(value) is bool or (type(value) is int and value.bit_length() <= _LONG):
            plain = value
        if type(value) is float and math.isfinite(value):
            plain = value
        path.write_text(json.dumps({"dtype": _dtype(value), "value": plain}) + "\n", encoding="utf-8")
        return [path]


def _dtype(value: Any) -> str:
    return _PYTHON.get(type(value)) or array.dtype_text(value.dtype)


def _to_bytes(value: Any) -> bytes:
    if type(value) is bool:
        return b"\x01" if value else b"\x00"
    if type(value) is int:
        return format(value, "x").encode()  # hexadecimal: linear in the digits, and not subject to Python's limit
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return bytes(value.tobytes())


def _text(value: Any) -> str:
    if type(value) is int and value.bit_length() > _LONG:
        return format(value, "#x")
    return repr(value) if type(value) in _PYTHON else str(value)


def _statistics(value: Any) -> statistics.Statistics:
    if isinstance(value, np.generic):
        return statistics.of_array(np.asarray(value))
    try:
        number = abs(value) if type(value) is complex else float(value)
    except OverflowError:
        number = math.inf if type(value) is complex or value > 0 else -math.inf
    zeros = int(value == 0)
    if not math.isfinite(number):
        return statistics.Statistics(zeros=zeros, nonfinite=0 if type(value) is int else 1)
    return statistics.Statistics(number, number, number, 0.0, zeros, 0)
