"""What a stage output is to the rest of audit: facts, a preview, exact bytes, and files.

Every kind of value implements `ValueKind`; nothing outside this package asks what type a value has. An
implementation must not change the value, draw random numbers, or keep a reference to the value.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from audit.errors import StoreDamaged

EXCERPT = 500  # characters of a text preview


class Facts(NamedTuple):
    """What table `stage_outputs` keeps of a value. The compiled loops give the same values in the same order."""

    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    mode: str | None = None
    #: None where values of this kind cannot be compared with each other.
    digest: str | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    zeros: int | None = None
    nonfinite: int | None = None
    bytes: int = 0


@dataclass(slots=True)
class Preview:
    """A small picture or excerpt, good enough to recognise the value and nothing more."""

    media_type: str
    data: bytes


@dataclass(slots=True)
class EncodedValue:
    """An exact value as bytes; `encoding` names how `data` is to be read."""

    encoding: str
    data: bytes


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What a reader allows: torch may be imported, pickles may be executed."""

    numpy_only: bool = False
    allow_pickle: bool = False


class ValueKind(ABC):
    """One kind of stage output."""

    name: ClassVar[str]
    # The first version of the digest recipe that has this kind: of a new kind, one more than the version that
    # docs/FORMAT-values.md names. New runs then follow that version, and replays of earlier runs do not use the kind.
    since: ClassVar[int] = 1
    # What runs of earlier versions have such values as, in Markdown, for the table of versions in docs/FORMAT-values.md.
    kind_before: ClassVar[str] = "`other`"
    # True when the type alone decides, so that the answer of `matches` may be remembered for the type.
    by_type: ClassVar[bool] = False
    # True if no earlier kind in the table takes a value of a type that this one takes. After the first value of that type,
    # this kind is asked first.
    is_first_of_its_types: ClassVar[bool] = False
    # Rows of the two tables of docs/FORMAT-values.md, as Markdown, which docs/make_values.py writes: what is digested (kind,
    # `dtype` in the header, shape, raw bytes), and how a value is stored (kind, encoding, data). A row that two kinds share is
    # declared by one of them and names both.
    digest_rows: ClassVar[tuple[tuple[str, str, str, str], ...]] = ()
    encoding_rows: ClassVar[tuple[tuple[str, str, str], ...]] = ()

    @abstractmethod
    def matches(self, value: object) -> bool:
        """Return whether this kind describes `value` exactly; never raises."""

    @abstractmethod
    def observe(self, value: Any) -> Facts:
        """Return the facts of `value`."""

    def observe_fast(self, value: Any) -> Facts | None:
        """Return exact facts of a common form of value without asking `matches`; None for every other value."""
        return None

    def row_digests(self, value: Any) -> list[str] | None:
        """Return the digests of the parts of a value along its first axis, where that is cheap; else None."""
        return None

    @abstractmethod
    def fingerprint(self, value: Any) -> tuple[str | None, int]:
        """Return the digest (None if the value cannot be compared by one) and the size in bytes, without the cost of statistics."""

    @abstractmethod
    def preview(self, value: Any) -> Preview | None:
        """Return a small picture or excerpt, or None where nothing sensible can be shown."""

    def preview_fast(self, value: Any) -> Preview | None:
        """Return the preview of a common form of value without asking `matches`; None for every other value."""
        return None

    @abstractmethod
    def encode(self, value: Any) -> EncodedValue:
        """Return the exact value as self-contained bytes."""

    @abstractmethod
    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> object:  # noqa: B008  (frozen)
        """Return the value back, bit for bit."""

    def encoded_digest(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> str | None:  # noqa: B008
        """Return the digest of the value that was encoded, also where it decodes to another class; None where it is unknown."""
        return self.fingerprint(self.decode(encoded, options))[0]

    @abstractmethod
    def export(self, value: Any, stem: Path) -> list[Path]:
        """Write files that other programs open; returns their paths."""


def excerpt(text: str) -> Preview:
    """Return a text/plain preview of at most `EXCERPT` characters."""
    short = text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
    return Preview("text/plain", short.encode("utf-8", "backslashreplace"))


def pack(header: dict[str, Any], body: bytes) -> bytes:
    """Return a self-contained block: u32 little-endian length, JSON header, body."""
    head = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((struct.pack("<I", len(head)), head, body))


def unpack(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return what `pack` wrote."""
    try:
        (length,) = struct.unpack_from("<I", data)
        if 4 + length > len(data):
            raise ValueError("header longer than the block")
        header = json.loads(data[4 : 4 + length])
        if not isinstance(header, dict):
            raise ValueError("header is not an object")
    except (struct.error, ValueError) as error:
        raise damage_error(str(error)) from error
    return header, memoryview(data)[4 + length :]


def damage_error(reason: str) -> StoreDamaged:
    """Return the error for stored bytes that are not what their encoding says."""
    return StoreDamaged(
        f"A stored value cannot be decoded: {reason}.", hint="Run `audit store verify` to find the damaged part."
    )
