"""What a stage returned, whatever it is: describe, digest, preview, encode, decode, export.

A new kind is one file and one entry in the table below, and its class says since which version of the digest recipe it
exists; a plugin's kind registers through the entry-point group `audit.values`. Observing never changes a value, never raises, never draws a random number and keeps no reference.
"""

from __future__ import annotations

from audit.values import hashing
from audit.values.array import ArrayKind
from audit.values.base import DecodeOptions, EncodedValue, Facts, Preview, ValueKind
from audit.values.derived import StoredPicture, expand, source_digest
from audit.values.dispatch import (
    KINDS,
    decode,
    digest,
    encode,
    encoded_digest,
    export,
    fingerprint,
    kind_of,
    known_kinds,
    load_kinds,
    observe,
    preview,
    row_digests,
)
from audit.values.hashing import follow_recipe as following_digests
from audit.values.hashing import version as digest_version
from audit.values.image import ImageKind, pillow_names
from audit.values.joint_value import describe_target
from audit.values.mapping import MappingKind
from audit.values.number import NumberKind
from audit.values.other import OtherKind
from audit.values.sequence import SequenceKind
from audit.values.tensor import TensorKind, torch_names
from audit.values.text import TextKind
from audit.values.tokens import TokensKind
from audit.values.tv import as_form

__all__ = [
    "DIGEST_VERSION", "KINDS", "DecodeOptions", "EncodedValue", "Facts", "Preview", "StoredPicture", "ValueKind",
    "as_form", "decode", "describe_target", "digest", "digest_version", "encode", "encoded_digest", "expand", "export", "fingerprint", "following_digests", "kind_of", "known_kinds", "load_kinds",
    "observe", "pillow_names", "preview", "row_digests", "source_digest", "torch_names",
]  # fmt: skip

# In the order in which they are asked; `other` takes what is left.
_TABLE: tuple[ValueKind, ...] = (
    ImageKind(),
    TensorKind(),
    ArrayKind(),
    NumberKind(),
    TextKind(),
    TokensKind(),
    MappingKind(),
    SequenceKind(),
    OtherKind(),
)
for _kind in _TABLE:
    KINDS.add(_kind.name, _kind)

#: The version of the digest recipe that new runs follow: the newest that a kind of value or another change came with.
DIGEST_VERSION = max(*hashing.RECIPE_CHANGES, *(kind.since for kind in _TABLE))
hashing.set_newest_version(DIGEST_VERSION)
