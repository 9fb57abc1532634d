"""Which texts name code. What executes code and what asks for permission must agree, so the rule is written once."""

from __future__ import annotations

import os
import re

_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_code_name(spec: str) -> bool:
    """Return whether it is FILE.py, FILE.py:name or module:name, and not the name of an existing file of another kind."""
    if spec.endswith(".py"):
        return True
    place, _, name = spec.rpartition(":")
    if not place or not _DOTTED_NAME.fullmatch(name) or os.path.exists(spec):
        return False
    return place.endswith(".py") or _DOTTED_NAME.fullmatch(place) is not None
