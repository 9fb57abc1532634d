"""Functions of Pillow that change a picture in place, instead of returning another one."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any

from audit.recorders.calls.callables import dict_of
from audit.recorders.calls.data_values import is_picture
from audit.recorders.calls.in_place_changes import PICTURE_METHODS

#: By module, the functions whose first argument is the picture, or an object that holds it.
_IN_PLACE = {
    "PIL.Image": {*PICTURE_METHODS, "apply_transparency"},
    "PIL.ImageDraw": {
        *("arc", "bitmap", "chord", "circle", "ellipse", "floodfill", "line", "multiline_text", "pieslice", "point"),
        *("polygon", "rectangle", "regular_polygon", "rounded_rectangle", "shape", "text"),
    },
}
_NAMES = frozenset().union(*_IN_PLACE.values())


def picture_changed_by(frame: FrameType, code: CodeType) -> Any:
    """Return the picture that a call changes in place; None for every other call."""
    if code.co_name not in _NAMES or code.co_name not in _IN_PLACE.get(str(frame.f_globals.get("__name__")), ()):
        return None
    owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if is_picture(owner):
        # `Image.alpha_composite` as a function returns another picture.
        return owner if code.co_qualname != "alpha_composite" else None
    return next((held for held in dict_of(owner).values() if is_picture(held)), None)
