"""A run's manifest: its row and the parts that belong to it. A part that no manifest lists does not exist.

It is read from run.json and, while the run is being written, from the log of commits after it (see `commits`). A reader
sees one commit or the next, never a mixture.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, get_args

from audit.errors import NotAStore, NotFound, StoreDamaged, StoreError, UsageError
from audit.records import Part, Run, Status
from audit.store.commits import (
    LOG_FOLDER,
    RUNS_FOLDER,
    check_seal,
    list_logged_commits,
    log_path,
    manifest_path,
    run_folder,
    unseal,
)
from audit.store.filesystem import Filesystem
from audit.store.index_set import INDICES_FOLDER, PAGES_FOLDER, is_index_set
from audit.store.local_filesystem import LocalFilesystem
from audit.store.marker import check_version
from audit.store.run_row import parse_run
from audit.store.schema import SCHEMAS

#: What the name of a part that a merge wrote begins with.
MERGED_PREFIX = "merged-"
#: A file in a run's folder that says: this run is being removed.
TOMBSTONE = ".removed"
#: How the name of a run's folder begins that is being removed, in a directory.
REMOVED_PREFIX = ".removed-"
#: No part has more rows; a few bytes of Parquet can claim, and make a reader reserve memory for, any number.
MOST_ROWS = 2**26
#: How often a manifest is read again that is replaced while it is being read.
_MOST_LOOKS = 50

_PART = Part.__dataclass_fields__.keys()
_STATUSES = get_args(Status)
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
    #: Digests of this commit and of the one before it.
    head: str | None = None
    previous: str | None = None
    #: The commit that run.json holds; later ones are in the log of a run that is open.
    snapshot: int = 0
    is_open: bool = False

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """Return run.json as a manifest; `where` is for the error. What a later minor version added is left aside."""
        with _report_unreadable(where):
            # Read once: of a thousand runs, this is what opening a store takes.
            content = json.loads(data)
            stamp = _stamp(content)
            check_version(stamp, where)
            if stamp["version"] == 1:
                digest, is_open = hashlib.sha256(data).hexdigest(), False
            else:
                digest = check_seal(data)
                is_open = content["run"]["status"] == "running"
            manifest = cls(
                run=parse_run(content["run"]),
                parts=[_part(row) for row in content["parts"]],
                commit=_commit(content["commit"]),
                head=content.get("record") or digest,
                previous=content.get("previous"),
                snapshot=_commit(content["commit"]),
                is_open=is_open,
            )
            _check_listing(manifest)
        return manifest

    def apply(self, data: bytes, where: str) -> None:
        """Take the next commit of the log on; StoreDamaged where it is not the next."""
        with _report_unreadable(where):
            content, digest = unseal(data)
            check_version(content["format"], where)
            if content["commit"] != self.commit + 1 or content["previous"] != self.head:
                raise ValueError("it does not follow the commit before it")
            self.run = parse_run(content["run"])
            if "parts" in content:
                self.parts = [_part(row) for row in content["parts"]]
            else:
                self.parts.extend(_part(row) for row in content["added"])
            self.commit, self.previous, self.head = content["commit"], self.head, digest


@contextmanager
def _report_unreadable(where: str) -> Iterator[None]:
    """Tell whatever makes a manifest unreadable as one error."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damage_error(f"{where} is not a readable manifest: {error}.") from error
    except NotAStore as error:
        # The store itself is one: it is this file of it that is not as it was written.
        raise _damage_error(error.message) from error


def _damage_error(message: str) -> StoreDamaged:
    return StoreDamaged(
        message,
        hint="Restore it from a copy, or delete the run's folder; --allow-damaged (allow_damaged=True) reads the other runs.",
    )


def _stamp(content: dict[str, Any]) -> dict[str, Any]:
    stamp = content["format"]
    if not isinstance(stamp, dict):
        raise ValueError("it has no format")
    return stamp


def _commit(number: Any) -> int:
    if not isinstance(number, int) or not 0 <= number < 2**63:
        raise ValueError(f"its commit is {str(number)[:80]!r}")
    return number


def _check_listing(manifest: Manifest) -> None:
    """Raise ValueError for a listing that does not add up."""
    files = {part.file for part in manifest.parts}
    if len(files) != len(manifest.parts):
        raise ValueError("it lists a part twice")
    run = manifest.run
    if run.status not in _STATUSES:
        raise ValueError(f"its status is {run.status!r}")
    if not 0 <= run.wrong <= run.graded or not 0 <= run.failed <= run.samples:
        raise ValueError("its counts contradict each other")
    rows = sum(part.rows for part in manifest.parts if part.table == "samples")
    if rows != run.samples:
        raise ValueError(f"it counts {run.samples} samples, but its parts hold {rows}")


def check_run_id(run_id: str) -> str:
    """Return an id that can be a folder's name everywhere, or a UsageError."""
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"{run_id!r} cannot be a run's id.", hint="Use up to 100 letters, digits, dots, dashes and underscores."
        )
    return run_id


def _part(row: dict[str, Any]) -> Part:
    # What a later minor version added is left aside.
    part = Part(**(row if row.keys() <= _PART else {name: row[name] for name in _PART if name in row}))
    found = _PART_FILE.fullmatch(part.file)
    if found is None or found[1] != part.table:
        raise ValueError(f"{part.file!r} is not a part of {part.table}")
    for file, folder in ((part.indices, INDICES_FOLDER), (part.index_pages, PAGES_FOLDER)):
        if file is not None and not is_index_set(file, folder):
            raise ValueError(f"{file!r} is not a file of indices")
    for number in (part.rows, part.bytes, part.schema, part.first_index or 0, part.last_index or 0):
        if not isinstance(number, int) or not -(2**63) <= number < 2**63:
            raise ValueError(f"{part.file!r} is listed with what is not a number")
    if not 0 <= part.rows <= MOST_ROWS or part.bytes < 0 or part.schema < 1:
        raise ValueError(f"{part.file!r} cannot have {part.rows} rows in {part.bytes} bytes")
    return part


def lock_path(run_id: str) -> str:
    """Return the lock that the one writer of a run holds."""
    return f"{run_folder(run_id)}/.writer.lock"


def read_manifest(filesystem: Filesystem, run_id: str, data: bytes | Exception | None = None) -> Manifest:
    """Return one run's manifest; `data` where its bytes, or what kept them from being read, are known already."""
    path = manifest_path(run_id)
    where = f"{filesystem.location}/{path}"
    for _ in range(_MOST_LOOKS):
        if isinstance(data, Exception):
            raise data
        data = filesystem.read(path) if data is None else data
        manifest = Manifest.parse(data, where)
        if manifest.run.run_id != run_id or not _RUN_ID.fullmatch(run_id):
            raise StoreDamaged(
                f"{where} says that it belongs to the run {manifest.run.run_id!r}.",
                hint="A run's folder must have the name of its id.",
            )
        if not manifest.is_open:
            return manifest
        later = [number for number in list_logged_commits(filesystem, run_id) if number > manifest.commit]
        is_gapless = later == list(range(manifest.commit + 1, manifest.commit + 1 + len(later)))
        if later and is_gapless and _take_on(filesystem, manifest, later):
            return manifest
        # Nothing follows; or a newer snapshot has taken this one's place, and records that it holds were deleted.
        again = filesystem.read(path)
        if again == data and is_gapless:
            return manifest
        if again == data:
            missing = next(number for number in range(manifest.commit + 1, later[-1]) if number not in later)
            raise _damage_error(
                f"{filesystem.location}/{log_path(run_id, missing)} is missing, but later commits are there."
            )
        data = again
    raise StoreError(f"{where} changes faster than it can be read.", hint="Try again.")


def _take_on(filesystem: Filesystem, manifest: Manifest, numbers: Sequence[int]) -> bool:
    """Apply these commits of the log in order; False where one was deleted meanwhile."""
    run_id = manifest.run.run_id
    paths = [log_path(run_id, number) for number in numbers]
    for path, data in zip(paths, filesystem.read_each(paths), strict=True):
        if isinstance(data, FileNotFoundError):
            return False
        if isinstance(data, Exception):
            raise data
        manifest.apply(data, f"{filesystem.location}/{path}")
    with _report_unreadable(f"{filesystem.location}/{run_folder(run_id)}/{LOG_FOLDER}"):
        _check_listing(manifest)
    return True


@contextmanager
def lock_manifest(filesystem: Filesystem, run_id: str) -> Iterator[Manifest]:
    """Yield a run's manifest for who changes it: under its lock, as the last commit left it, or NotFound."""
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
    """Return every run in the order they were begun, and what could not be read.

    One damaged manifest must not hide the other runs. A folder with neither a manifest nor rows never committed
    anything: it is not a run. One that holds rows has lost its manifest.
    """
    manifests: list[Manifest] = []
    damaged: list[StoreError] = []
    run_ids = [name for name in filesystem.list(RUNS_FOLDER) if not name.startswith(".")]
    contents = filesystem.read_each([manifest_path(run_id) for run_id in run_ids])
    for run_id, data in zip(run_ids, contents, strict=True):
        try:
            manifests.append(read_manifest(filesystem, run_id, data))
        except (FileNotFoundError, NotADirectoryError):
            if has_lost_manifest(filesystem, run_id):
                where = f"{filesystem.location}/{manifest_path(run_id)}"
                lost = _damage_error(f"{where} is missing, but the run has parts.")
                lost.lost_run = run_id
                damaged.append(lost)
        except StoreError as error:
            damaged.append(error)
        except OSError as error:
            where = f"{filesystem.location}/{manifest_path(run_id)}"
            damaged.append(StoreDamaged(f"{where} cannot be read: {error.strerror}.", hint="Check permissions."))
    # By commit sequence, not by the wall clock: clocks of two machines need not agree.
    manifests.sort(key=lambda m: (m.run.sequence, m.run.started_at, m.run.run_id))
    return manifests, damaged


def has_lost_manifest(filesystem: Filesystem, run_id: str) -> bool:
    """Return whether a folder without a manifest holds parts or commits, and is not one that is being removed."""
    folder = run_folder(run_id)
    names = filesystem.list(folder)
    held = [name for name in names if name in SCHEMAS or name == LOG_FOLDER]
    if TOMBSTONE in names or not any(filesystem.list(f"{folder}/{name}") for name in held):
        return False
    # Listed again: another process may have begun or ended the removal meanwhile.
    now = filesystem.list(folder)
    return bool(now) and TOMBSTONE not in now and not filesystem.exists(manifest_path(run_id))


def withdraw(filesystem: Filesystem, run_id: str, parts: Iterable[Part]) -> None:
    """Delete parts that were written and that no commit will list: on a full disk their room is wanted.

    Only where a lock is one. From an object store, a writer that has taken over meanwhile may list the same part.
    """
    if isinstance(filesystem, LocalFilesystem):
        # Their file of indices stays for `clean`: an earlier commit of the same indices shares it.
        for part in parts:
            with suppress(StoreError, OSError):
                filesystem.remove(f"{run_folder(run_id)}/{part.file}")


def find_unlisted(filesystem: Filesystem, manifest: Manifest, prefix: str = "") -> list[str]:
    """Return files whose name begins so and that the manifest does not list: parts that a merge replaced, or that a killed
    writer or a lost attempt left behind. Only who holds the run's lock may delete them."""
    folder = run_folder(manifest.run.run_id)
    listed = {f"{folder}/{file}" for part in manifest.parts for file in (part.file, part.index_file) if file}
    folders = (*SCHEMAS, INDICES_FOLDER, PAGES_FOLDER)
    found = [(f"{folder}/{table}/{name}", name) for table in folders for name in filesystem.list(f"{folder}/{table}")]
    return [path for path, name in found if path not in listed and name.lstrip(".").startswith(prefix)]
