"""Texts of errors, compared between two processes."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def is_same_error(one: str | None, other: str | None) -> bool:
    """Return whether two texts tell the same error. Addresses of objects differ from process to process and say nothing."""
    if one is None or other is None:
        return one is other
    return _ADDRESS.sub("0x", one) == _ADDRESS.sub("0x", other)
