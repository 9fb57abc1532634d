"""What _native.c offers. A source is anything with a buffer, or the Arrow capsule of an RGB picture of Pillow's."""

from typing import Any

from audit.values.base import Facts

def rgbx(source: Any, out: Any, /) -> tuple[int, int, int, int, int]:
    """Copy pixels of four bytes with the fourth set to 255; (min, max, sum, sum of squares, zeros) of the others."""

def u8(source: Any, /) -> tuple[int, int, int, int, int]:
    """(min, max, sum, sum of squares, zeros) of bytes; min is 255 and max 0 when there are none."""

def f32(source: Any, /) -> tuple[float, float, float, float, int, int] | tuple[None, None, None, None, int, int]:
    """(min, max, mean, std, zeros, nonfinite) of float32."""

def tensor(value: Any, known: tuple[Any, ...], /) -> Facts | None:
    """The fields of `Facts` of a plain float32 or uint8 tensor, in one pass; None for every other value."""

def rows(value: Any, known: tuple[Any, ...], /) -> list[str] | None:
    """The digest of each part of such a tensor along its first axis; None for every other value."""

def pixels(
    source: Any, height: int, width: int, kind: str, dtype: str, mode: str, facts: type[Facts], /
) -> Facts | None:
    """The facts of an RGB picture with four bytes a pixel; None where the loops cannot give them."""

def shrink(
    source: Any, is_float: bool, planes: int, height: int, width: int, step: int, bands: int, factor: int, /
) -> bytes | None:
    """Means of boxes of factor × factor pixels, bands interleaved; floats scaled between their extremes.

    None where floats do not allow it.
    """

def shrink_tensor(value: Any, known: tuple[Any, ...], side: int, /) -> tuple[bytes, int, int, int] | None:
    """Means of boxes of a float32 or uint8 tensor that looks like a picture, their height, width and bands.

    None for every other tensor, and for one whose sides are not greater than `side`.
    """

def unit(source: Any, levels: Any, /) -> bool:
    """Whether every float32 is exactly k/255; the k are written to `levels`."""

def palette(source: Any, levels: Any, /) -> bytes | None:
    """The table of at most 256 float32 in numeric order, levels written to `levels`; None where there is none."""

def rgb_rows(source: Any, height: int, width: int, /) -> bytes:
    """R, G, B of pixels of four bytes, each minus the one in the row above."""

def tiny(source: Any, height: int, width: int, /) -> bytes | None:
    """An RGB picture with four bytes a pixel as an uncompressed PNG; None where it is not tiny."""

def tiny_tensor(value: Any, known: tuple[Any, ...], most: int, /) -> bytes | None:
    """A float32 or uint8 tensor of at most `most` elements that looks like a picture, as a PNG; else None."""

def jpeg(pixels: bytes, height: int, width: int, head: bytes, /) -> bytes | None:
    """A picture of interleaved bytes as a JPEG, after a head that Pillow wrote; None for a large one, or another kind of head."""

def bits(source: Any, height: int, width: int, head: bytes, scratch: Any, /) -> bytes:
    """`head`, and an RGB picture with four bytes a pixel in as few bits as its rows need (see bits.py).

    `scratch` is overwritten; bits.py says how large it must be.
    """

def unbits(source: Any, height: int, width: int, /) -> bytes | None:
    """The bytes of the RGB picture that `bits` packed, three a pixel; None where the source has not the length that its widths say."""

def tables(source: Any, height: int, width: int, digest: str, value: Any, known: tuple[Any, ...], /) -> bytes | None:
    """Three tables of 256 float32 that make a tensor (3, height, width) of the picture's bytes; None where none do.

    None also where the picture has another digest.
    """

def holds(
    whole: Any,
    height: int,
    width: int,
    digest: str,
    part: Any,
    part_height: int,
    part_width: int,
    left: int,
    top: int,
    /,
) -> bool:
    """Whether the part of an RGB picture of this digest, at this place, has the pixels of another one."""

def copy_memory(places: bytes, content: Any, /) -> None:
    """Copy the memory at (address, size) pairs to `content`."""

def same_holders(holders: list[Any], sizes: list[int], empty: list[tuple[dict[Any, Any], Any]], /) -> bool:
    """Whether each container has its length, and each (dict, key) holds None or nothing."""

def same_items(items: list[tuple[Any, Any, Any]], lengths: list[tuple[Any, int]], /) -> bool:
    """Whether each (holder, key) holds its object, and each holder has its length."""

def same_state(places: bytes, content: Any, held: list[tuple[Any, Any, Any]], /) -> bool:
    """Whether the memory at (address, size) pairs equals `content`, and each (holder, key) holds its object.

    The key is one of a dict, or the name of an attribute.
    """

def note_opened(files: list[str] | None, thread: int, /) -> bool:
    """Put the files that a thread opens for reading into the list from now on; False where this Python does not allow it."""

def run_stage(plan: tuple[Any, ...], visit: Any, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
    """Call a stage of a visit, note what it returned, and return it; what a plan is: recorders/visit/planned_stage.py."""

def run_load(
    plan: tuple[Any, ...],
    loader: tuple[Any, ...],
    visit: Any,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> Any:
    """Read the file of a visit, decode and note it, and return the picture; plan and loader: recorders/visit/file_load.py."""

def note_load(plan: tuple[Any, ...], visit: Any, value: Any, nanoseconds: int, /) -> bool:
    """Note the value of stage 0; return False, and change nothing, where it needs another way."""

def begin_visit(plan: tuple[Any, ...], index: int, level: str, /) -> Any:
    """Begin one of several visits in a row, and return it; None where something is unusual. See recorders/visit/make.py."""

def end_visit(plan: tuple[Any, ...], visit: Any, item: Any, /) -> bool:
    """End such a visit; return False, and change nothing, where something is unusual."""

def add_visits(
    waiting: list[tuple[Any, ...]], start: int, plan: tuple[Any, ...], lists: tuple[list[Any], ...], /
) -> int:
    """Append the rows of visits to lists, from `start` on until one is unusual; return how many were added.

    What a plan and the lists are: recorders/visit/gathered_rows.py.
    """

def column(
    values: list[Any], start: int, step: int, kind: str, /
) -> tuple[int, bytes | None, bytes | None, bytes | None] | None:
    """How many of every step-th value are None, their validity, and the buffers of an Arrow array of them.

    No buffers where all are None; None where a value is not exactly of the type. Kinds are in _columns.h.
    """

def loops(wide: int = ..., /) -> int:
    """How wide the loops were: 0 plain, 1 AVX2, 2 AVX-512; an argument chooses, as far as the processor has them."""
