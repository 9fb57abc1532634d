"""Plant a fault of the product for each member of the campaign: a member that does not find it would find nothing.

    python -m bench.campaign.planted
    python -m bench.campaign.planted readers full_disk

Exit code 1 if a fault is not found. The tests run the quick ones.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from audit.engines.resilient_loader import ResilientLoader
from audit.errors import StoreError
from audit.store.stamped_rows import StampedRows, join_stamped_tables
from audit.store.write.writer import RunWriter
from bench.campaign.trial import Trial

_SEED = 7
_APPEND = RunWriter.append


@dataclass(frozen=True)
class PlantedFault:
    """A function of the product, what takes its place, and how many tries find it at the latest."""

    place: str
    fault: Any
    tries: int
    #: Whether it takes a test too long: processes, mounts, thousands of samples.
    slow: bool = False


def _all_tables(tables: Any, stamped: StampedRows | None) -> dict[str, Any]:
    return join_stamped_tables([tables, stamped.tables()]) if stamped is not None else dict(tables)


def _without_stages(self: RunWriter, tables: Any, stamped: StampedRows | None = None, _: int = 0) -> None:
    given = _all_tables(tables, stamped)
    _APPEND(self, {name: rows for name, rows in given.items() if name != "stage_outputs"})


def _without_failures(self: RunWriter, tables: Any, stamped: StampedRows | None = None, _: int = 0) -> None:
    kept = _all_tables(tables, stamped)
    if "samples" in kept:
        kept["samples"] = kept["samples"].filter(pc.equal(kept["samples"]["status"], "ok"))
    _APPEND(self, kept)


def _table_by_table(self: RunWriter, tables: Any, stamped: StampedRows | None = None, _: int = 0) -> None:
    for name, rows in _all_tables(tables, stamped).items():
        _APPEND(self, {name: rows})
        self.flush()


def _with_a_leak(self: RunWriter, tables: Any, stamped: StampedRows | None = None, size: int = 0) -> None:
    os.open(os.devnull, os.O_RDONLY)
    _APPEND(self, tables, stamped, size)


def _make_unexplained_error(*_: object) -> StoreError:
    return StoreError("Something could not be written.")


def _iterate_unguarded(self: ResilientLoader, batches: Any, workers: int | None = None) -> Iterator[Any]:
    return iter(self._loader(batches, self.worker_count(len(batches)) if workers is None else workers))


_APPEND_NAME = "audit.store.write.writer.RunWriter.append"
_FLUSH_NAME = "audit.store.write.writer.RunWriter.flush"
_WRITE_ERROR = "audit.store.durable_files.write_error"

PLANTED_FAULTS: dict[str, PlantedFault] = {
    "writer_kills": PlantedFault(_FLUSH_NAME, lambda _: None, 25, slow=True),
    "engine_kills": PlantedFault(_APPEND_NAME, _without_stages, 4, slow=True),
    "bucket_kills": PlantedFault(_FLUSH_NAME, lambda _: None, 40, slow=True),
    "errnos": PlantedFault(_WRITE_ERROR, lambda _, __, error: error, 12),
    "power_cuts": PlantedFault("audit.store.durable_files.flush_folder", lambda _: None, 12),
    "damage": PlantedFault("audit.store.maintain.verify._examine", lambda *_: (None, None), 30),
    "sql_escapes": PlantedFault("audit.store.read.connection._SETTINGS", {"threads": 1}, 60),
    "broken_files": PlantedFault("bench.campaign.broken_files.load", lambda *_, **__: dict[str, int]()["raw"], 12),
    "full_disk": PlantedFault(_WRITE_ERROR, _make_unexplained_error, 2, slow=True),
    "full_places": PlantedFault(
        "audit.engines.resilient_loader.ResilientLoader._make_iterator", _iterate_unguarded, 60, slow=True
    ),
    "memory_kills": PlantedFault(_APPEND_NAME, _without_failures, 4, slow=True),
    "clock": PlantedFault("audit.store.write.writer.read_manifests", lambda _: ([], []), 15),
    "readers": PlantedFault(_APPEND_NAME, _table_by_table, 30, slow=True),
    "many_samples": PlantedFault(_APPEND_NAME, _with_a_leak, 14_000, slow=True),
}


def finds_fault(member: str, folder: Path, seconds: float = 120.0) -> bool:
    """Run a member of the campaign with its fault in place; return whether it found anything bad."""
    planted = PLANTED_FAULTS[member]
    trial = Trial(_SEED, seconds, planted.tries, folder)
    with warnings.catch_warnings(), _replace(planted.place, planted.fault), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module(f"bench.campaign.{member}").run(trial)
    return trial.bad > 0


@contextlib.contextmanager
def _replace(place: str, fault: Any) -> Iterator[None]:
    holder_name, _, name = place.rpartition(".")
    holder = pkgutil.resolve_name(holder_name)
    before = getattr(holder, name)
    setattr(holder, name, fault)
    try:
        yield
    finally:
        setattr(holder, name, before)


def main() -> int:
    """Look for the fault of each member that is named, or of all."""
    missed = 0
    for member in sys.argv[1:] or PLANTED_FAULTS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="audit-campaign-") as folder:
            found = finds_fault(member, Path(folder))
        print(f"{member}: {'found' if found else 'NOT FOUND'} in {time.monotonic() - begun:.0f} s", flush=True)
        missed += not found
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
