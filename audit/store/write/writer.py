"""Rows to parts to commit: the one writer of one run.

Rows of all tables that belong together are appended together and flushed together, so that every
commit holds whole visits: what a reader sees after a crash has no sample without its stages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime

import pyarrow as pa

from audit.errors import NotFound, StoreError, plainly
from audit.identity import new_run_id
from audit.records import Part, Run, Status
from audit.store.commits import close_after_failure, commit_parts, create_run, manifest_path, run_folder
from audit.store.filesystem import Filesystem, filesystem_for
from audit.store.leftovers import Cleaned, clean_interrupted, remove_leftovers
from audit.store.local_filesystem import LocalFilesystem
from audit.store.manifest import (
    Manifest,
    check_run_id,
    check_store,
    create_store,
    lock_path,
    read_manifest,
    read_manifests,
    unlisted,
    withdraw,
)
from audit.store.part_file import part_of
from audit.store.tally import Tally

#: A part is written when this much has gathered, or when enough time has passed.
FLUSH_BYTES = 32 * 2**20
FLUSH_ROWS = 200_000
FIRST_INTERVAL = 2.0
LONGEST_INTERVAL = 60.0

ALL_FAILED = "Every sample failed, so the run counts as failed."
#: How the names of parts begin that other processes wrote for this run's writer to adopt.
BLOCK = "block"


class RunWriter:
    """Appends rows to one run and commits them. Used by one thread at a time."""

    def __init__(self, filesystem: Filesystem, manifest: Manifest, held: ExitStack) -> None:
        self._filesystem = filesystem
        self._manifest = manifest
        self._held = held
        self._pending: dict[str, list[pa.Table]] = {}
        self._pending_bytes = 0
        self._pending_rows = 0
        #: What the pending rows add to the counts.
        self._gathered = Tally()
        self._interval = FIRST_INTERVAL
        self._longest = LONGEST_INTERVAL
        self._last_flush = time.monotonic()
        self._begun = time.monotonic()
        self._seconds_before = manifest.run.seconds or 0.0
        run = manifest.run
        # A run that goes on where it was interrupted is one of `audit run`, which has one epoch.
        right = run.graded - run.wrong
        self._tally = Tally(run.samples, run.failed, run.graded, right, {0: (run.graded, right)} if run.samples else {})
        #: Of the rows that a part in the manifest holds.
        self._listed = self._tally
        #: Parts in the manifest that no commit holds yet, and how many parts each table has.
        self._uncommitted: list[Part] = []
        self._numbers = Counter(part.table for part in manifest.parts)

    @classmethod
    def create(cls, location: str, run: Run | None = None) -> RunWriter:
        """Begin a new run in the store at `location`, which is made if it is missing."""
        filesystem = filesystem_for(location)
        create_store(filesystem)
        now = datetime.now(UTC)
        run = run or Run("")
        # A sequence that is given is kept: who writes many runs at once need not read them all for each.
        manifests = [] if run.sequence else read_manifests(filesystem)[0]
        run.run_id = check_run_id(run.run_id or new_run_id(now))
        run.started_at = now.isoformat()
        run.sequence = run.sequence or 1 + max((m.run.sequence for m in manifests), default=0)
        held = ExitStack()
        held.enter_context(filesystem.lock(lock_path(run.run_id)))
        writer = cls(filesystem, Manifest(run), held)
        try:
            create_run(filesystem, writer._manifest)
        except BaseException:
            held.close()
            raise
        clean_interrupted(filesystem, [m.run.run_id for m in manifests if m.run.status == "running"])
        return writer

    @classmethod
    def resume(cls, location: str, run_id: str) -> RunWriter:
        """Continue a run that was interrupted; what it committed stays."""
        filesystem = filesystem_for(location)
        check_store(filesystem)
        missing = NotFound(f"There is no run {run_id} in the store {location}.", hint="See them with: audit runs")
        # Asked before the lock, which would make the run's folder.
        if not filesystem.exists(manifest_path(run_id)):
            raise missing
        held = ExitStack()
        held.enter_context(filesystem.lock(lock_path(run_id)))
        try:
            # Read under the lock: another writer may have committed until just now.
            manifest = read_manifest(filesystem, run_id)
            if isinstance(filesystem, LocalFilesystem):
                remove_leftovers(filesystem, run_id, Cleaned(), keep_replaced=True)
        except FileNotFoundError:
            held.close()
            raise missing from None
        except BaseException:
            held.close()
            raise
        manifest.run.status = "running"
        manifest.run.finished_at = None
        return cls(filesystem, manifest, held)

    @property
    def run(self) -> Run:
        """The run's row as it stands; change it, and the next commit keeps the change."""
        return self._manifest.run

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._filesystem.location

    def commit_every(self, seconds: float) -> None:
        """Commit at least this often from now on, instead of ever more rarely."""
        self._interval = seconds
        self._longest = seconds

    def append(self, tables: Mapping[str, pa.Table]) -> None:
        """Take rows that belong together; they are committed together."""
        for name, table in tables.items():
            if table.num_rows:
                self._pending.setdefault(name, []).append(table)
                self._pending_bytes += table.nbytes
                self._pending_rows += table.num_rows
        tally = Tally.of(tables)
        self._gathered += tally
        self._count(tally)
        if self._pending_bytes >= FLUSH_BYTES or self._pending_rows >= FLUSH_ROWS or self._is_overdue():
            self.flush()

    def adopt(self, parts: Sequence[Part], tally: Tally) -> None:
        """Take parts that another process wrote for this run (see store.block); the next commit lists them."""
        for part in parts:
            path = f"{run_folder(self.run.run_id)}/{part.file}"
            if _size(self._filesystem, path) != part.bytes:
                raise StoreError(
                    f"{path}, which another process wrote, is not to be found in {self.location}.",
                    hint="The store must be one place for all machines: a shared folder, or s3://bucket/prefix.",
                )
        self._list(parts, tally)
        self._count(tally)
        if self._is_overdue():
            self.flush()

    def is_due(self) -> bool:
        """Return whether rows or parts wait for a commit, and the time for it has come."""
        return bool(self._pending or self._uncommitted) and self._is_overdue()

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._last_flush >= self._interval

    def flush(self) -> None:
        """Write what has gathered as parts and commit them."""
        parts: list[Part] = []
        try:
            for name, tables in self._pending.items():
                parts.append(self._write_part(name, pa.concat_tables(tables)))
        except (StoreError, OSError):
            withdraw(self._filesystem, self.run.run_id, parts)
            raise
        self._list(parts, self._gathered)
        self._forget()
        self._commit()
        self._last_flush = time.monotonic()
        # Long runs commit more rarely, so that the manifest stays small against the data.
        self._interval = min(self._interval * 1.5, self._longest)

    def finish(self, status: Status, *, sweep: bool = False) -> Run:
        """Commit what is left, say how the run ended, and let go of it.

        `sweep` deletes blocks that no commit lists: what lost attempts of other processes left behind.
        """
        try:
            self.run.status = self._outcome(status)
            self._show()
            self.run.finished_at = datetime.now(UTC).isoformat()
            try:
                self.flush()
            except Exception as error:
                self._give_up(error)
                raise
            if sweep:
                for path in unlisted(self._filesystem, self._manifest, BLOCK):
                    self._filesystem.remove(path)
        finally:
            self._held.close()
        return self.run

    def _outcome(self, status: Status) -> Status:
        """Return how the run ended: one without a single good sample has failed, however it was recorded."""
        if status != "complete" or not self._tally.samples or self._tally.failed < self._tally.samples:
            return status
        if ALL_FAILED not in self.run.warnings:
            self.run.warnings.append(ALL_FAILED)
        return "failed"

    def abandon(self, error: Exception | None = None) -> None:
        """Let go of the run without another commit of rows; `error` is why, and the run says so if it can still be written."""
        try:
            if error is not None:
                self._give_up(error)
        finally:
            self._held.close()

    def _give_up(self, error: Exception) -> None:
        """Say on the run that it was interrupted, and by what; rows that no part holds are not counted any more."""
        self._forget()
        self._tally = self._listed
        run = self.run
        run.status, run.finished_at = "interrupted", datetime.now(UTC).isoformat()
        self._show()
        reason = f"The run stopped: {plainly(error)}"
        if reason not in run.warnings:
            run.warnings.append(reason)
        # Whatever keeps it from being written: what stopped the run is the error to report.
        with suppress(Exception):
            self._note_seconds()
            close_after_failure(self._filesystem, self._manifest)

    def _list(self, parts: Sequence[Part], tally: Tally) -> None:
        self._manifest.parts.extend(parts)
        self._uncommitted.extend(parts)
        self._numbers.update(part.table for part in parts)
        self._listed += tally

    def _forget(self) -> None:
        self._pending.clear()
        self._pending_bytes = self._pending_rows = 0
        self._gathered = Tally()

    def _count(self, tally: Tally) -> None:
        self._tally += tally
        self._show()

    def _show(self) -> None:
        run, tally = self.run, self._tally
        run.samples, run.failed, run.graded = tally.samples, tally.failed, tally.graded
        run.wrong = tally.graded - tally.correct
        run.last_epoch = tally.last_epoch(ended=run.status == "complete")
        run.accuracy = tally.accuracy(run.last_epoch)

    def _write_part(self, name: str, table: pa.Table) -> Part:
        part, data = part_of(name, table, self._numbers[name])
        path = f"{run_folder(self.run.run_id)}/{part.file}"
        try:
            self._filesystem.create(path, data)
        except FileExistsError:
            # Left behind by a process that died between this part and its commit; the name holds its digest.
            self._filesystem.replace(path, data)
        return part

    def _commit(self) -> None:
        self._note_seconds()
        commit_parts(self._filesystem, self._manifest, self._uncommitted)
        self._uncommitted = []

    def _note_seconds(self) -> None:
        self.run.seconds = round(self._seconds_before + time.monotonic() - self._begun, 3)


def _size(filesystem: Filesystem, path: str) -> int | None:
    try:
        return filesystem.size(path)
    except FileNotFoundError:
        return None
