"""Everything that no other kind takes, by its pickle.

Unpickling executes code that a store contains, so `decode` refuses unless the reader allows it. A pickle need not be
the same in two processes (sets and interned strings inside an object, for two), so equal digests prove equal values
but different ones prove nothing; `mode` names the type so that a reader knows. What cannot be pickled, and functions,
whose pickle is their name, have no digest and cannot be restored: whether two of them are equal is not known.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from audit.errors import NeedsTrust, NotFound
from audit.values import hashing
from audit.values.base import DecodeOptions, EncodedValue, Facts, Preview, ValueKind, damage_error, excerpt

#: Pickled as a name alone, whatever their code is.
_BY_NAME = (FunctionType, MethodType)
#: In every pickle that holds a tensor.
_TENSOR_PICKLE = b"torch._utils"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # differs from run to run and says nothing


class OtherKind(ValueKind):
    """Any object; None is the one that is safe to decode."""

    name = "other"
    digest_rows = (
        (
            "other",
            "`NoneType` or `module.Class`",
            "empty",
            "nothing for None; the pickle (protocol 5), in which each tensor is a persistent id: its own digest. What cannot be pickled, functions, methods and tensors without content have no digest (NULL), nor has what contains them. Of a masked array with a hard mask then `\\|hardmask`",
        ),
    )
    encoding_rows = (
        ("other", "`null`", "nothing: None"),
        ("other", "`pickle`", "a pickle, protocol 5; readers must not load it unless the user allows it"),
        ("other", "`none`", "nothing: the value could not be pickled and is not stored"),
    )

    def matches(self, value: object) -> bool:
        return True

    def fingerprint(self, value: Any) -> tuple[str | None, int]:
        return self._digest(value, _pickle(value))

    def _digest(self, value: Any, raw: bytes | None) -> tuple[str | None, int]:
        if hashing.version() >= 3:
            if _is_tensor(value) and value.device.type == "meta":
                return None, 0  # nothing of its content was seen
            if raw is not None and _is_masked(value) and value.hardmask:
                raw += b"|hardmask"  # a masked array's pickle leaves it out
        if raw is not None and hashing.version() >= 2 and not _is_tensor(value):
            raw = _with_tensor_digests(value, raw)
        if raw is None and hashing.version() >= 2:
            return None, 0
        data = b"" if value is None else raw if raw is not None else _show(value).encode("utf-8", "surrogatepass")
        return hashing.digest_parts(self.name, _type(value), (), data), len(data)

    def encoded_digest(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> str | None:  # noqa: B008
        # The class is inside the pickle, which is not opened to look.
        return self.fingerprint(None)[0] if encoded.encoding == "null" else None

    def observe(self, value: Any) -> Facts:
        raw = _pickle(value)
        digest, size = self._digest(value, raw)
        mode = _type(value) if value is None or raw is not None else "unpicklable"
        return Facts(self.name, _type(value), None, mode, digest, bytes=size)

    def preview(self, value: Any) -> Preview | None:
        return excerpt(_show(value))

    def encode(self, value: Any) -> EncodedValue:
        if value is None:
            return EncodedValue("null", b"")
        raw = _pickle(value)
        return EncodedValue("none", b"") if raw is None else EncodedValue("pickle", raw)

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> object:  # noqa: B008
        if encoded.encoding == "null":
            return None
        if encoded.encoding == "none":
            raise NotFound(
                "This stage output could not be pickled, so only its description was stored.",
                hint="To get the value, call the pipeline for this sample yourself.",
            )
        if encoded.encoding != "pickle":
            raise damage_error(f"a value of kind other has no encoding {encoded.encoding!r}")
        if not options.allow_pickle:
            raise NeedsTrust(
                "This stage output is stored as a pickle, and reading a pickle executes code that it contains.",
                hint="Pass allow_pickle=True if you trust the author of the store, or replay the sample instead.",
            )
        return pickle.loads(encoded.data)

    def export(self, value: Any, stem: Path) -> list[Path]:
        path = stem.with_name(stem.name + ".txt")
        path.write_text(_show(value) + "\n", encoding="utf-8", errors="backslashreplace")
        return [path]


def _type(value: object) -> str:
    if value is None:
        return "NoneType"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _pickle(value: object) -> bytes | None:
    if (isinstance(value, _BY_NAME) and hashing.version() >= 2) or _is_tensor_subclass(value):
        return None
    try:
        return pickle.dumps(_settle_fill_value(value), protocol=5)
    except Exception:  # a __reduce__ may raise anything at all
        return None


def _settle_fill_value(value: Any) -> Any:
    """Return a value whose pickle is the same each time: a masked array sets its fill value when somebody first asks for it."""
    if not _is_masked(value):
        return value
    view = value.view()
    view.fill_value  # noqa: B018
    return view


def _is_masked(value: object) -> bool:
    masked: Any = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(value, masked.MaskedArray)


def _is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_tensor_subclass(value: object) -> bool:
    """Return whether a value is a tensor of a subclass. Those that come here hold no numbers, as a FakeTensor does, and
    the pickle of one may hold all others of its mode."""
    return _is_tensor(value) and type(value) is not sys.modules["torch"].Tensor


def _with_tensor_digests(value: object, raw: bytes) -> bytes | None:
    """Return the pickle with the digest of each tensor in its place: the pickle of a tensor contains its address.

    None where a tensor has no digest.
    """
    if _TENSOR_PICKLE not in raw:
        return raw
    file = io.BytesIO()
    try:
        _TensorDigests(file, protocol=5).dump(value)
    except Exception:
        return None
    return file.getvalue()


class _TensorDigests(pickle.Pickler):
    def persistent_id(self, value: Any) -> str | None:
        if not _is_tensor(value):
            return None
        from audit.values.dispatch import digest

        found = digest(value)
        if found is None:
            raise pickle.PicklingError("a tensor without numbers")
        return found


def _show(value: object) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:
        return f"<{_type(value)}>"
