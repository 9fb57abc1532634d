"""JSON that any reader accepts: NaN and infinity become null, bytes become hex, times become ISO 8601."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from audit.texts import as_utf8

#: A JSON object, or plain data for a page. Its keys are those of what it is made from, and are documented there.
JsonObject = dict[str, Any]


#: Characters that control a terminal, break a line or change the direction of a text.
_CONTROL_CHARACTERS = re.compile("[\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def as_plain_json(value: Any) -> Any:
    """Return `value` made of what JSON knows alone."""
    if value is None or isinstance(value, (bool, int, str)):
        return as_utf8(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_plain_json(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return as_plain_json(float(value))
    if isinstance(value, (timedelta, UUID)):
        return str(value)
    return str(value)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return one JSON text. What a terminal would obey is written as an escape, as JSON itself does below U+0020."""
    text = json.dumps(as_plain_json(value), indent=indent, allow_nan=False, ensure_ascii=False)
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
