"""Which addresses in a network may be contacted for the sake of a store.

A store names the places of its sources, and may come from anybody. Reading it contacts none of them, except those that the user
named here: the bucket of the store itself, the dataset of a run that this machine recorded, or any with `--trust`.
"""

from __future__ import annotations

import errno

from audit.errors import UsageError
from audit.records import Run
from audit.sources.trust import is_recorded_here
from audit.store.bucket.location import is_remote, parse_location

#: Locations that this process may contact, with all that is below them.
_allowed_locations: set[str] = set()


def allow_contact(location: str | None) -> None:
    """Let this process contact a location and what is below it; a local path needs no permission."""
    if location is not None and is_remote(location):
        _allowed_locations.add(_place(location))


def allow_sources(run: Run, store: str, *, trust: bool = False, root: str | None = None) -> None:
    """Allow what reading the sources of a run may contact: see above. `root` is allowed with `trust` alone."""
    if is_remote(store):
        allow_contact(store.partition("://")[0] + "://" + store.partition("://")[2].partition("/")[0])
    dataset = run.recipe.get("dataset")
    if isinstance(dataset, str) and is_remote(dataset) and (trust or is_recorded_here(run.recipe)):
        allow_contact(dataset)
    if trust:
        allow_contact(root)


def may_contact(location: str) -> bool:
    """Return whether a location may be contacted; True for a local path."""
    if not is_remote(location):
        return True
    place = _place(location)
    return any(place == one or place.startswith(f"{one}/") for one in _allowed_locations)


def require_contact(location: str) -> None:
    """Raise OSError unless a location may be contacted."""
    if not may_contact(location):
        raise PermissionError(
            errno.EACCES, "is not contacted, because only the store names it; --trust allows it", location
        )


def _place(location: str) -> str:
    try:
        return str(parse_location(location, "dataset"))
    except UsageError:
        return "\0"  # below nothing that is allowed
