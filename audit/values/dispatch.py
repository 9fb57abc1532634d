"""Which kind a value has, and the operations over any value.

Kinds are tried in the order of their registration and the last one, `other`, takes what the rest refuses. A kind that
fails on a strange value is not an error here: the value falls back to `other`, because observing must never raise.
"""

from __future__ import annotations

from pathlib import Path

from audit.errors import AuditError, NeedsTrust, NotFound
from audit.registry import Registry
from audit.values import hashing
from audit.values.base import DecodeOptions, EncodedValue, Facts, Preview, ValueKind, damage_error

KINDS: Registry[ValueKind] = Registry("value kind", "audit.values")

# The kind of the last value of a type, where no other kind that comes before it takes values of that type.
_by_type: dict[type, ValueKind] = {}


def kind_of(value: object) -> ValueKind:
    """Return the kind that describes `value`."""
    version = hashing.version()
    known = _by_type.get(type(value))
    if known is not None and known.since <= version and (known.by_type or known.matches(value)):
        return known
    for kind in KINDS.values():
        if kind.name != "other" and kind.since <= version and kind.matches(value):
            if kind.by_type or kind.is_first_of_its_types:
                _by_type[type(value)] = kind
            return kind
    return KINDS.get("other")


def load_kinds() -> None:
    """Look for the kinds of plugins now, which opens a file of every installed package, instead of at the first value."""
    KINDS.values()


def observe(value: object) -> Facts:
    """Return the facts of any value; never raises, never changes it."""
    try:
        known = _by_type.get(type(value))
        if known is not None and known.since <= hashing.version() and (facts := known.observe_fast(value)) is not None:
            return facts
    except Exception:  # the slower way decides
        pass
    try:
        return kind_of(value).observe(value)
    except Exception:
        return KINDS.get("other").observe(value)


def known_kinds() -> dict[type, ValueKind]:
    """Return the kinds of types that are known: where it is `tensor` or `image`, compiled loops describe values of the type."""
    return _by_type


def fingerprint(value: object) -> tuple[str | None, int]:
    """Return the digest and size in bytes of any value."""
    try:
        return kind_of(value).fingerprint(value)
    except Exception:
        return KINDS.get("other").fingerprint(value)


def digest(value: object) -> str | None:
    """Return the digest of any value, as 32 hexadecimal characters; None where equal ones would prove nothing."""
    return fingerprint(value)[0]


def row_digests(value: object) -> list[str] | None:
    """Return the digest of each part of a value along its first axis; None where they must be asked for one by one."""
    try:
        return kind_of(value).row_digests(value)
    except Exception:
        return None


def preview(value: object) -> Preview | None:
    """Return a small picture or excerpt of any value."""
    try:
        known = _by_type.get(type(value))
        if known is None or known.since > hashing.version():
            known = kind_of(value)
        if (made := known.preview_fast(value)) is not None:
            return made
    except Exception:  # the slower way decides
        pass
    try:
        return kind_of(value).preview(value)
    except Exception:
        return KINDS.get("other").preview(value)


def encode(value: object) -> tuple[str, EncodedValue]:
    """Return the kind's name and the exact value as bytes."""
    try:
        kind = kind_of(value)
        return kind.name, kind.encode(value)
    except Exception:
        return "other", KINDS.get("other").encode(value)


def decode(kind: str, encoded: EncodedValue, *, numpy_only: bool = False, allow_pickle: bool = False) -> object:
    """Return the value back; `numpy_only` never imports torch, `allow_pickle` permits executing what a store contains."""
    reader = KINDS.get(kind)
    try:
        return reader.decode(encoded, DecodeOptions(numpy_only, allow_pickle))
    except AuditError:
        raise
    except Exception as error:  # stored bytes are outside data: whatever they break is damage, not a traceback
        raise damage_error(f"{type(error).__name__}: {error}") from error


def encoded_digest(kind: str, encoded: EncodedValue) -> str | None:
    """Return the digest of the value that was encoded; None where its bytes do not tell. Executes nothing that a store contains."""
    try:
        return KINDS.get(kind).encoded_digest(encoded, DecodeOptions())
    except (NeedsTrust, NotFound):
        return None
    except AuditError:
        raise
    except Exception as error:
        raise damage_error(f"{type(error).__name__}: {error}") from error


def export(value: object, stem: Path) -> list[Path]:
    """Write `value` as files named after `stem`: exact ones, and a viewable picture where it looks like one."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    return kind_of(value).export(value, stem)
