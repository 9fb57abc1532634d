"""Where things are: the store's location from an option, the environment, or the default."""

from __future__ import annotations

import os

DEFAULT_STORE = "lineage"
STORE_VARIABLE = "AUDIT_STORE"


def store_location(given: str | os.PathLike[str] | None = None) -> str:
    """--store, else $AUDIT_STORE, else ./lineage."""
    if given is not None:
        return os.fspath(given)
    return os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
