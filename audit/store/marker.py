"""audit.json, the file in a store's root that says: this is a store, of this version."""

from __future__ import annotations

import json
from typing import Any

from audit.errors import NotAStore, StoreNotFound, StoreTooNew
from audit.store.filesystem import Filesystem
from audit.store.schema import FORMAT_NAME, FORMAT_VERSION

MARKER = "audit.json"


def check_version(stamp: dict[str, Any], where: str) -> None:
    """Refuse what a newer version wrote: reading it as if it were known could mislead."""
    if stamp.get("name") != FORMAT_NAME:
        raise NotAStore(f"{where} was not written by audit.", hint="Choose another store with --store.")
    if type(stamp.get("version")) is not int or stamp["version"] < 1:
        raise NotAStore(f"{where} has no format version.", hint="Choose another store with --store.")
    if stamp["version"] > FORMAT_VERSION:
        raise StoreTooNew(
            f"{where} has format version {stamp['version']}; this version of audit knows up to {FORMAT_VERSION}.",
            hint="Upgrade with: pip install --upgrade audit-lineage",
        )


def check_store(filesystem: Filesystem) -> None:
    """Raise unless there is a store of a known version."""
    location = filesystem.location
    try:
        data = filesystem.read(MARKER)
    except FileNotFoundError:
        if not filesystem.exists(""):
            raise StoreNotFound(
                f"There is no store at {location}.",
                hint="Record a run first (audit run --dataset DIR), or say where the store is with --store.",
            ) from None
        raise NotAStore(
            f"{location} is not an audit store: it has no {MARKER}.", hint="Choose another with --store."
        ) from None
    except (NotADirectoryError, IsADirectoryError):
        raise NotAStore(f"{location} is not an audit store.", hint="Choose another with --store.") from None
    except OSError as error:
        raise NotAStore(f"The store {location} cannot be read: {error.strerror}.", hint="Check permissions.") from error
    try:
        stamp = json.loads(data)
    except ValueError:
        raise NotAStore(f"{location}/{MARKER} is not JSON.", hint="Choose another store with --store.") from None
    check_version(stamp if isinstance(stamp, dict) else {}, f"{location}/{MARKER}")


def create_store(filesystem: Filesystem) -> None:
    """Make a store in an empty or missing place; an existing one is left as it is."""
    if filesystem.exists(MARKER):
        check_store(filesystem)
        return
    held = [name for name in filesystem.list("") if not name.startswith(".")]
    if held and filesystem.exists(MARKER):
        # Another process made the store between the two looks.
        check_store(filesystem)
        return
    if held:
        raise NotAStore(
            f"{filesystem.location} is not empty and is not an audit store (it holds {held[0]}).",
            hint="Choose an empty or new directory with --store.",
        )
    if filesystem.exists("") and not held and not filesystem.is_folder(""):
        raise NotAStore(f"{filesystem.location} is a file.", hint="Choose a directory with --store.")
    try:
        filesystem.create(MARKER, json.dumps({"name": FORMAT_NAME, "version": FORMAT_VERSION}).encode())
    except FileExistsError:
        check_store(filesystem)
