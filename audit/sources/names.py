"""File names as they are, and as they can be shown.

A name is bytes: it need not be UTF-8, and may hold a newline. `printable` gives text that is safe in a terminal, a
page and a Parquet column, and different for different names; `raw_of` says when the bytes must be kept beside it.
`Names` holds a million names in two flat buffers: a list of a million objects would be copied into every worker
process, since counting references writes to each. Nothing here touches the file system.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence

_JOINER = "\u200d"  # inside composed emoji; invisible, and harmless between them


def printable(name: bytes) -> str:
    """The name as text, with a backslash escape for what cannot be shown, and for the backslash itself."""
    text = name.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(character if _shown(character) else _escape(character) for character in text)


def raw_of(name: bytes, shown: str) -> bytes | None:
    """The bytes to keep beside the printable form: None where that form already is the name."""
    return None if shown.encode("utf-8") == name else name


def _shown(character: str) -> bool:
    if character == "\\":
        return False  # else the file `a\n` and the file a-newline would look the same
    return character.isprintable() or character == _JOINER or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if 0x80 <= code <= 0xFF:  # \xNN is taken by such bytes
        return f"\\u{code:04x}"
    return character.encode("unicode_escape").decode("ascii")


class Names(Sequence[bytes]):
    """An immutable sequence of byte strings in one buffer."""

    def __init__(self, names: Iterable[bytes] = ()) -> None:
        buffer = bytearray()
        self._ends = array("Q")
        for name in names:
            buffer += name
            self._ends.append(len(buffer))
        self._buffer = bytes(buffer)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]  # slices are not needed
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        return self._buffer[self._ends[index - 1] if index else 0 : self._ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in self._ends:
            yield self._buffer[start:end]
            start = end
