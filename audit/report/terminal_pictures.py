"""Small pictures in a terminal: two pixels in each character, by its upper half and its background."""

from __future__ import annotations

from rich.text import Text

from audit.picture_formats import open_picture
from audit.values.base import Preview

_WIDTH = 32


def half_blocks(preview: Preview | None, width: int = _WIDTH) -> Text | None:
    """Return a stored preview as coloured half blocks; None when it is not a picture."""
    if preview is None or not preview.media_type.startswith("image/"):
        return None
    from PIL import Image

    try:
        with open_picture(preview.data) as opened:
            picture = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # a store may hold anything as a preview
    scale = width / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(2, 2 * round(picture.height * scale / 2)))
    picture = picture.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX)
    pixels = picture.load()
    assert pixels is not None
    text = Text(no_wrap=True)
    for y in range(0, size[1], 2):
        for x in range(size[0]):
            upper, lower = pixels[x, y], pixels[x, y + 1]
            text.append("▀", f"rgb{_rgb(upper)} on rgb{_rgb(lower)}")
        text.append("\n")
    text.rstrip()
    return text


def _rgb(pixel: object) -> str:
    assert isinstance(pixel, tuple)
    return f"({pixel[0]},{pixel[1]},{pixel[2]})"
