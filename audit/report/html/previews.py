"""Stored previews as pictures that can be shown anywhere: decoded by Pillow, written anew by it.

Bytes from a store are never passed on as they are. A preview that does not decode is a missing picture, not
an error.
"""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageChops, ImageOps

from audit.values import Preview
from audit.values.thumbnail import viewable

_MOST_PIXELS = 80_000_000
_SIDE = 384
_TINY = 64

Encoded = tuple[str, bytes]


def encode(preview: Preview | None, side: int = _SIDE) -> Encoded | None:
    """Return a stored preview as a picture of our own making, no larger than `side`; None when it is none."""
    if preview is None or not preview.media_type.startswith("image/"):
        return None
    return encode_bytes(preview.data, side)


def data_address(made: Encoded | None) -> str:
    """Return a picture as an address that holds it; empty where there is none."""
    return f"data:{made[0]};base64,{base64.b64encode(made[1]).decode()}" if made else ""


def excerpt(preview: Preview, longest: int = 600) -> str:
    """Return the beginning of a stored preview that is text."""
    text = preview.data.decode("utf-8", "replace")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def encode_bytes(data: bytes, side: int = _SIDE) -> Encoded | None:
    """Return the same for the bytes of a picture file."""
    picture = decode(data)
    if picture is None:
        return None
    picture.thumbnail((side, side))
    return written(picture)


def decode(data: bytes) -> Image.Image | None:
    """The picture that these bytes are, as L or RGB and no larger than what a page shows; None when they are none."""
    try:
        with Image.open(io.BytesIO(data)) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                return None
            opened.draft(None, (_SIDE, _SIDE))
            opened.load()
            # A copy: the original may be read lazily, and would want its file again when it is shown.
            picture = viewable(opened).copy()
            picture.info = {}
            picture.thumbnail((_SIDE, _SIDE))
            return picture
    except Exception:  # hostile bytes: Pillow raises many kinds, and all mean the same here
        return None


def written(picture: Image.Image) -> Encoded:
    """PNG for the tiny, which a browser enlarges; JPEG for the rest."""
    out = io.BytesIO()
    if max(picture.size) <= _TINY:
        picture.save(out, "PNG")
        return "image/png", out.getvalue()
    picture.save(out, "JPEG", quality=88)
    return "image/jpeg", out.getvalue()


def difference(first: Preview | None, second: Preview | None, side: int = _SIDE) -> Encoded | None:
    """Return where two previews differ, amplified until it can be seen."""
    if first is None or second is None:
        return None
    a, b = decode(first.data), decode(second.data)
    if a is None or b is None:
        return None
    if b.size != a.size:
        b = b.resize(a.size)
    apart = ImageChops.difference(a.convert("RGB"), b.convert("RGB"))
    shown = ImageOps.autocontrast(apart.convert("L")) if apart.getbbox() else apart
    shown.thumbnail((side, side))
    return written(shown)
