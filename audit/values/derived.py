"""Stage outputs as an exact function of a picture that the same visit stores: a crop of it, or a table over its bytes.

ToTensor and Normalize give each byte of a picture one float, so that three tables of 256 say all; CenterCrop gives a part.
Nothing is guessed: a function is kept only if it gives back every bit, and readers check the digest again.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from audit.values import native as loops
from audit.values import tensor
from audit.values.base import EncodedValue, damage_error, pack, unpack
from audit.values.pixels import raw_rgb

ENCODING = "derived"
_UNIT = np.tile(np.arange(256, dtype=np.float32) / np.float32(255), (3, 1))


class StoredPicture:
    """An RGB picture that a visit stores, and what is known of it when later values are compared with it."""

    __slots__ = ("_picture", "_pixels", "digest", "size")

    def __init__(self, picture: Any, digest: str) -> None:
        """Take a picture whose content has this digest. It may be changed in place later: nothing is then a function of it."""
        self._picture = picture
        self._pixels: Any = None
        self.digest = digest
        self.size: tuple[int, int] = picture.size

    @property
    def pixels(self) -> Any:
        """The pixels where Pillow keeps them. Asked for once: to ask costs as much as to compare a small picture."""
        if self._pixels is None:
            self._pixels = raw_rgb(self._picture)
        return self._pixels

    def is_shown_by(self, value: Any) -> bool:
        """Return whether a tensor is the picture with each byte divided by 255, as ToTensor gives it.

        False without the compiled loops, which alone can tell at no price.
        """
        if loops.native is None:
            return False
        width, height = self.size
        names = tensor.torch_names()
        is_same: bool = loops.native.unit_planes(self.pixels, height, width, self.digest, value, names)
        return is_same

    def derive(self, value: Any, *, is_shown: bool | None = None) -> EncodedValue | None:
        """Return a value as a function of the picture; None where it is not one. `is_shown` is what `is_shown_by` said, if it was asked."""
        if loops.native is None:
            return None
        if self.is_shown_by(value) if is_shown is None else is_shown:
            return EncodedValue(ENCODING, self._table_head("unit"))
        if type(value) is type(self._picture) and getattr(value, "mode", None) == "RGB":
            return self._crop(value)
        width, height = self.size
        found = loops.native.tables(self.pixels, height, width, self.digest, value, tensor.torch_names())
        return None if found is None else EncodedValue(ENCODING, self._table_head("table") + found)

    def _crop(self, value: Any) -> EncodedValue | None:
        (width, height), (whole_width, whole_height) = value.size, self.size
        if "transparency" in value.info:
            return None
        if width > whole_width or height > whole_height or value.size == self.size or not width or not height:
            return None
        # As torchvision finds the middle.
        left, top = round((whole_width - width) / 2.0), round((whole_height - height) / 2.0)
        assert loops.native is not None
        part = raw_rgb(value)
        if not loops.native.holds(self.pixels, whole_height, whole_width, self.digest, part, height, width, left, top):
            return None
        header = {"mode": "RGB", "size": [width, height], "of": self.digest, "at": [left, top]}
        return EncodedValue(ENCODING, pack(header, b""))

    def _table_head(self, name: str) -> bytes:
        # As `pack` writes it, without its price: this is done for every tensor.
        width, height = self.size
        text = f'{{"dtype":"float32","shape":[3,{height},{width}],"tv":null,"of":"{self.digest}","map":"{name}"}}'
        return struct.pack("<I", len(text)) + text.encode()


def source_digest(encoded: EncodedValue) -> str | None:
    """Return the digest of the picture that a value is a function of; None for a value that is stored as it is."""
    if encoded.encoding != ENCODING:
        return None
    return str(unpack(encoded.data)[0]["of"])


def expand(encoded: EncodedValue, picture: Any) -> EncodedValue:
    """Return the value as it would be stored by itself; `picture` is the one that it is a function of."""
    header, body = unpack(encoded.data)
    pixels = np.asarray(picture)
    if "at" in header:
        (left, top), (width, height) = header["at"], header["size"]
        part = np.ascontiguousarray(pixels[top : top + height, left : left + width])
        return EncodedValue("raw", pack({"mode": header["mode"], "size": header["size"]}, part.tobytes()))
    if header["map"] == "unit":
        tables = _UNIT
    elif len(body) == 3 * 256 * 4:
        tables = np.frombuffer(body, "<f4").reshape(3, 256)
    else:
        raise damage_error(f"a derived tensor has tables of {len(body)} bytes")
    if list(pixels.shape) != [*header["shape"][1:], 3]:
        raise damage_error(f"a derived tensor of shape {header['shape']} has a picture of shape {list(pixels.shape)}")
    planes = np.stack([tables[band][pixels[..., band]] for band in range(3)])
    kept = {name: header[name] for name in ("dtype", "shape", "tv")}
    return EncodedValue("raw", pack(kept, planes.astype("<f4").tobytes()))
