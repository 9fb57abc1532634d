"""What is done to a store besides recording: each of these changes a run that exists, or deletes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from audit.store.leftovers import clean
from audit.store.maintain.amend import tag_run
from audit.store.maintain.compact import compact, remove
from audit.store.read.reader import Reader


def _merge(reader: Reader, run_id: str) -> None:
    compact(reader, run_id)


def _tag(reader: Reader, run_id: str) -> None:
    tag_run(reader, run_id, {"campaign": "yes"})


def _clean(reader: Reader, _: str) -> None:
    clean(reader.filesystem)


def _remove(reader: Reader, run_id: str) -> None:
    remove(reader, run_id)


#: By name. REMOVE is the only one after which the run may be gone.
REMOVE = "remove"
UPKEEP: dict[str, Callable[[Reader, str], None]] = {"merge": _merge, "tag": _tag, "clean": _clean, REMOVE: _remove}


def keep_up(what: str, place: Path, run_id: str) -> None:
    """Do one of them to a run."""
    with Reader(str(place)) as reader:
        UPKEEP[what](reader, run_id)
