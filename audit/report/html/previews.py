"""Stored previews as pictures that can be shown anywhere: decoded and encoded again by Pillow.

Bytes from a store are never passed on as they are. A preview that does not decode is a missing picture, not
an error.
"""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageChops, ImageOps

from audit.picture_formats import open_picture
from audit.values import Preview
from audit.values.thumbnail import to_viewable

_MOST_PIXELS = 80_000_000
_SIDE = 384
_TINY = 64

EncodedPicture = tuple[str, bytes]


def encode(preview: Preview | None, side: int = _SIDE) -> EncodedPicture | None:
    """Return a stored preview as a newly encoded picture, no larger than `side`; None if it is not a picture."""
    if preview is None or not preview.media_type.startswith("image/"):
        return None
    return encode_bytes(preview.data, side)


def data_address(made: EncodedPicture | None) -> str:
    """Return a picture as a data address; an empty text for None."""
    return f"data:{made[0]};base64,{base64.b64encode(made[1]).decode()}" if made else ""


def excerpt(preview: Preview, longest: int = 600) -> str:
    """Return the beginning of a stored preview that is text."""
    text = preview.data.decode("utf-8", "replace")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def encode_bytes(data: bytes, side: int = _SIDE) -> EncodedPicture | None:
    """Return the same for the bytes of a picture file."""
    picture = decode(data)
    if picture is None:
        return None
    picture.thumbnail((side, side))
    return save_picture(picture)


def encode_picture(picture: Image.Image, side: int = _SIDE) -> EncodedPicture:
    """Return a picture as a newly encoded one, no larger than `side`."""
    shown = to_viewable(picture).copy()
    shown.thumbnail((side, side))
    return save_picture(shown)


def decode(data: bytes) -> Image.Image | None:
    """Return the picture in these bytes, as L or RGB and small enough for a page; None if it is not a picture."""
    try:
        with open_picture(data) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                return None
            opened.draft(None, (_SIDE, _SIDE))
            opened.load()
            # A copy: the original may be read lazily, and would need its file again later.
            picture = to_viewable(opened).copy()
            picture.info = {}
            picture.thumbnail((_SIDE, _SIDE))
            return picture
    except Exception:  # hostile bytes: Pillow raises many kinds of errors
        return None


def save_picture(picture: Image.Image) -> EncodedPicture:
    """Encode the picture: PNG for a tiny one, which a browser enlarges; JPEG for the rest."""
    out = io.BytesIO()
    if max(picture.size) <= _TINY:
        picture.save(out, "PNG")
        return "image/png", out.getvalue()
    picture.save(out, "JPEG", quality=88)
    return "image/jpeg", out.getvalue()


def difference(first: Preview | None, second: Preview | None, side: int = _SIDE) -> EncodedPicture | None:
    """Return a picture of where two previews differ, amplified to be visible."""
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
    return save_picture(shown)
