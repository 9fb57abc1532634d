"""The error for a path that does not exist, with the nearest name that does."""

from __future__ import annotations

import difflib
import os

from audit.errors import DatasetError
from audit.sources.names import printable


def missing_path(path: str) -> DatasetError:
    """Says which part of the path is missing, and what lies there under a similar name."""
    parent = os.path.abspath(path)
    missing = parent
    while not os.path.exists(parent):
        missing, parent = parent, os.path.dirname(parent)
    message = f"There is no {printable(os.fsencode(path))}."
    try:
        names = sorted(name for name in os.listdir(parent) if not name.startswith("."))
    except OSError:
        return DatasetError(message, hint=f"{printable(os.fsencode(parent))} is no folder that can be listed.")
    wanted = os.path.basename(missing)
    lower = {name.lower(): name for name in reversed(names)}
    near = [lower[name] for name in difflib.get_close_matches(wanted.lower(), lower, n=3, cutoff=0.5)]
    if near:
        shown = ", ".join(printable(os.fsencode(os.path.join(parent, name))) for name in near)
        return DatasetError(message, hint=f"Did you mean {shown}?")
    return DatasetError(message, hint=f"The nearest folder that exists is {printable(os.fsencode(parent))}.")
