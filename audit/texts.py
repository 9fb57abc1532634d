"""Texts as messages, files and tables hold them."""

from __future__ import annotations

import os
from collections.abc import Sequence


def as_utf8(text: str) -> str:
    """Return a text that every file and table can hold: half of a surrogate pair is written as an escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def path_as_utf8(path: str | os.PathLike[str]) -> str:
    """Return a path as such a text: bytes that are not UTF-8 are written as escapes."""
    if isinstance(path, str) and path.isascii():
        return path
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def enumerate_some(items: Sequence[object], most: int) -> str:
    """Return the first `most` items as a list in a sentence, and how many more there are."""
    more = len(items) - most
    return ", ".join(map(str, items[:most])) + (f" and {more:,} more" if more > 0 else "")
