"""Code that may change a value in place, so that the same object is another value afterwards.

A tensor counts its changes. An array or a picture does not: its content is compared, but only where such code is.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from types import CodeType

from audit.recorders.calls.callables import is_a

#: Methods that change a picture of Pillow's in place.
PICTURE_METHODS = frozenset(["alpha_composite", "paste", "putalpha", "putdata", "putpalette", "putpixel", "thumbnail"])
#: Methods and functions that change an array or a picture in place; so do torch's, whose names end with an underscore.
_NAMES = {
    *("byteswap", "fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "shuffle", "sort"),
    *("copyto", "fill_diagonal", "place", "put_along_axis", "putmask", "as_strided", "frombuffer", "memoryview"),
    *PICTURE_METHODS,
    *("frombytes", "Draw", "ImageDraw", "setattr", "apply_along_axis", "nditer"),
    *("arrowedLine", "circle", "drawContours", "drawMarker", "ellipse", "fillConvexPoly", "fillPoly", "floodFill"),
    *("line", "polylines", "putText", "rectangle"),
}


def may_change_in_place(code: CodeType) -> bool:
    """Return whether code, or the functions inside it, may change a value in place."""
    names = {*code.co_names, *(name for found in code.co_consts if isinstance(found, tuple) for name in found)}
    if any(name in _NAMES or name == "out" or _is_torchs(name) for name in names if isinstance(name, str)):
        return True
    if any(_stores(instruction) for instruction in dis.get_instructions(code)):
        return True
    return any(may_change_in_place(inner) for inner in code.co_consts if isinstance(inner, CodeType))


def changes_in_place(ran: Iterable[dis.Instruction]) -> bool:
    """Return whether instructions that ran may change a value in place."""
    return any(_stores(one) or (is_a(one.argval, str) and one.argval in _NAMES) for one in ran)


def _stores(one: dis.Instruction) -> bool:
    if one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
        return True
    return one.opname == "BINARY_OP" and one.argrepr.endswith("=")


def _is_torchs(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")
