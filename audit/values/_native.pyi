"""What _native.c offers. A source is anything with a buffer, or the Arrow capsule of an RGB picture of Pillow's."""

from typing import Any

def rgbx(source: Any, out: Any, /) -> tuple[int, int, int, int, int]:
    """Copy pixels of four bytes with the fourth set to 255; (min, max, sum, sum of squares, zeros) of the others."""

def u8(source: Any, /) -> tuple[int, int, int, int, int]:
    """(min, max, sum, sum of squares, zeros) of bytes; min is 255 and max 0 when there are none."""

def f32(source: Any, /) -> tuple[float, float, float, float, int, int] | tuple[None, None, None, None, int, int]:
    """(min, max, mean, std, zeros, nonfinite) of float32."""

def shrink(
    source: Any, is_float: bool, planes: int, height: int, width: int, step: int, bands: int, factor: int, /
) -> bytes | None:
    """Means of boxes of factor × factor pixels, bands interleaved; floats scaled between their extremes.

    None where floats do not allow it.
    """

def unit(source: Any, levels: Any, /) -> bool:
    """Whether every float32 is exactly k/255; the k are written to `levels`."""

def palette(source: Any, levels: Any, /) -> bytes | None:
    """The table of at most 256 float32 in numeric order, levels written to `levels`; None where there is none."""

def rgb_rows(source: Any, height: int, width: int, /) -> bytes:
    """R, G, B of pixels of four bytes, each minus the one in the row above."""

def loops(wide: bool = ..., /) -> bool:
    """Whether the wide loops were in use; an argument chooses, where the processor has them."""
