"""run.json: a run's row and the parts that belong to it. A part that no manifest lists does not exist.

The manifest is replaced as a whole, so a reader sees one commit or the next, never a mixture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from audit.errors import NotAStore, NotFound, StoreDamaged, StoreError, StoreNotFound, StoreTooNew, UsageError
from audit.records import Part, Run
from audit.store.filesystem import Filesystem, LocalFilesystem
from audit.store.schema import FORMAT_NAME, FORMAT_VERSION, SCHEMAS

MARKER = "audit.json"
RUNS_FOLDER = "runs"

#: A run's id is a folder's name and part of the names that DuckDB sees.
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: A part is a file in the folder of its table, and nowhere else.
_PART_FILE = re.compile(r"([a-z_]+)/[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")


@dataclass(slots=True)
class Manifest:
    """One run as committed."""

    run: Run
    parts: list[Part] = field(default_factory=list)
    commit: int = 0

    def dump(self) -> bytes:
        """The bytes of run.json."""
        content = {
            "format": {"name": FORMAT_NAME, "version": FORMAT_VERSION},
            "commit": self.commit,
            "run": self.run.as_json(),
            "parts": [asdict(part) for part in self.parts],
        }
        return json.dumps(content, indent=1, ensure_ascii=True).encode()

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """run.json read back; `where` is for the error. What a later minor version added is left aside."""
        try:
            content: dict[str, Any] = json.loads(data)
            check_version(content["format"], where)
            return cls(
                run=Run.from_json(content["run"]),
                parts=[_part(row) for row in content["parts"]],
                commit=int(content["commit"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreDamaged(
                f"{where} is not a readable manifest: {error}.",
                hint="Restore it from a copy, or remove the run with: audit store remove RUN",
            ) from error


def check_run_id(run_id: str) -> str:
    """An id that can be a folder's name everywhere, or a UsageError."""
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"{run_id!r} cannot be a run's id.", hint="Use up to 100 letters, digits, dots, dashes and underscores."
        )
    return run_id


def _part(row: dict[str, Any]) -> Part:
    part = Part(**{name: row[name] for name in Part.__dataclass_fields__ if name in row})
    found = _PART_FILE.fullmatch(part.file)
    if found is None or found[1] != part.table:
        raise ValueError(f"{part.file!r} is not a part of {part.table}")
    return part


def run_folder(run_id: str) -> str:
    """Where a run lives in the store."""
    return f"{RUNS_FOLDER}/{run_id}"


def manifest_path(run_id: str) -> str:
    """Where a run's manifest lives."""
    return f"{run_folder(run_id)}/run.json"


def lock_path(run_id: str) -> str:
    """The lock that the one writer of a run holds."""
    return f"{run_folder(run_id)}/.writer.lock"


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


def read_manifest(filesystem: Filesystem, run_id: str, data: bytes | Exception | None = None) -> Manifest:
    """One run's manifest; `data` where its bytes, or what kept them from being read, are known already."""
    path = manifest_path(run_id)
    where = f"{filesystem.location}/{path}"
    if isinstance(data, Exception):
        raise data
    manifest = Manifest.parse(filesystem.read(path) if data is None else data, where)
    if manifest.run.run_id != run_id or not _RUN_ID.fullmatch(run_id):
        raise StoreDamaged(
            f"{where} says that it belongs to the run {manifest.run.run_id!r}.",
            hint="A run's folder must have the name of its id.",
        )
    return manifest


@contextmanager
def locked_manifest(filesystem: Filesystem, run_id: str) -> Iterator[Manifest]:
    """A run's manifest for who changes it: under its lock, as the last commit left it, or NotFound."""
    gone = NotFound(f"The run {run_id} is no longer in the store {filesystem.location}.", hint="See: audit runs")
    # Asked before the lock, which would make the run's folder.
    if not filesystem.exists(manifest_path(run_id)):
        raise gone
    with filesystem.lock(lock_path(run_id)):
        try:
            manifest = read_manifest(filesystem, run_id)
        except FileNotFoundError:
            raise gone from None
        yield manifest


def read_manifests(filesystem: Filesystem) -> tuple[list[Manifest], list[StoreError]]:
    """Every run in the order they were begun, and what could not be read.

    One damaged manifest must not hide the other runs. A folder without a manifest never
    committed anything: it is not a run.
    """
    manifests: list[Manifest] = []
    damaged: list[StoreError] = []
    run_ids = filesystem.list(RUNS_FOLDER)
    contents = filesystem.read_each([manifest_path(run_id) for run_id in run_ids])
    for run_id, data in zip(run_ids, contents, strict=True):
        try:
            manifests.append(read_manifest(filesystem, run_id, data))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except StoreError as error:
            damaged.append(error)
        except OSError as error:
            where = f"{filesystem.location}/{manifest_path(run_id)}"
            damaged.append(StoreDamaged(f"{where} cannot be read: {error.strerror}.", hint="Check permissions."))
    # By commit sequence, not by the wall clock: clocks of two machines need not agree.
    manifests.sort(key=lambda m: (m.run.sequence, m.run.started_at, m.run.run_id))
    return manifests, damaged


def withdraw(filesystem: Filesystem, run_id: str, parts: Iterable[Part]) -> None:
    """Delete parts that were written and that no commit will list: on a full disk their room is wanted.

    Only where a lock is one. From an object store, a writer that has taken over meanwhile may list the same part.
    """
    if isinstance(filesystem, LocalFilesystem):
        for part in parts:
            with suppress(StoreError, OSError):
                filesystem.remove(f"{run_folder(run_id)}/{part.file}")


def unlisted(filesystem: Filesystem, manifest: Manifest, prefix: str = "") -> list[str]:
    """Files whose name begins so and that the manifest does not list: parts that a merge replaced, or that a killed
    writer or a lost attempt left behind. Only who holds the run's lock may delete them."""
    folder = run_folder(manifest.run.run_id)
    listed = {f"{folder}/{part.file}" for part in manifest.parts}
    found = [(f"{folder}/{table}/{name}", name) for table in SCHEMAS for name in filesystem.list(f"{folder}/{table}")]
    return [path for path, name in found if path not in listed and name.lstrip(".").startswith(prefix)]
