"""Writes a run: gathers rows, writes them as parts, and commits the parts. A run has one writer at a time.

The rows of a visit in all tables are appended and flushed together, so that every commit holds whole visits: even after a
crash, a reader sees no sample without its stages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime

from audit.errors import NotFound, StoreError, message_without_hint
from audit.identity import new_run_id
from audit.records import Part, Run, Status, add_warning
from audit.store.commits import close_after_failure, commit_parts, create_run, manifest_path, run_folder
from audit.store.filesystem import Filesystem, FileWriter, filesystem_for
from audit.store.index_set import INDEXED_COLUMNS, index_set_of
from audit.store.leftovers import CleanupResult, clean_interrupted, remove_leftovers
from audit.store.local_filesystem import LocalFilesystem
from audit.store.manifest import (
    Manifest,
    check_run_id,
    find_unlisted,
    lock_path,
    read_manifest,
    read_manifests,
    withdraw,
)
from audit.store.marker import check_store, create_store
from audit.store.part_buffer import PartBuffer
from audit.store.part_file import part_of
from audit.store.split_accuracy import EvaluationAccuracy, read_splits
from audit.store.stamped_rows import Rows, StampedRows
from audit.store.tally import COUNTED_COLUMNS, Tally
from audit.store.write.pending_rows import PendingRows

#: A part is written when enough has gathered (see pending_rows.py), or when the interval below has passed. A commit takes about
#: 15 ms of processor time: after 4 s, that is less than half a percent.
FIRST_INTERVAL = 4.0
LONGEST_INTERVAL = 60.0

ALL_FAILED = "Every sample failed, so the run counts as failed."
#: The names of parts that other processes write, and that `adopt` adds to the run, begin with this.
BLOCK = "block"


class RunWriter:
    """Appends rows to one run and commits them. Used by one thread at a time."""

    def __init__(self, filesystem: Filesystem, manifest: Manifest, locks: ExitStack) -> None:
        self._filesystem = filesystem
        self._manifest = manifest
        self._locks = locks
        self._pending = PendingRows()
        self._buffer = PartBuffer()
        #: The counts of the pending rows alone; None until they are counted.
        self._tally_of_pending: Tally | None = None
        self._interval = FIRST_INTERVAL
        self._longest = LONGEST_INTERVAL
        self._last_flush = time.monotonic()
        self._begun = time.monotonic()
        self._seconds_before = manifest.run.seconds or 0.0
        run = manifest.run
        # Counts that are not 0 come from a resumed run. Only runs of `audit run` are resumed, and these have one epoch, 0.
        right = run.graded - run.wrong
        epochs = {0: (run.graded, right)} if run.samples else {}
        splits = {0: read_splits(filesystem, run.run_id, manifest.parts)} if run.samples else {}
        self._tally = Tally(run.samples, run.failed, run.graded, right, epochs, splits)
        self._evaluation = EvaluationAccuracy(filesystem, run.run_id, manifest.parts, self._tally)
        #: The counts of rows in the parts of the manifest. `_tally` has pending rows that were counted, too.
        self._tally_of_parts = self._tally
        #: Parts that are not committed yet, and how many parts each table has.
        self._uncommitted: list[Part] = []
        self._numbers = Counter(part.table for part in manifest.parts)
        #: Called with a message about rows that could not be written. The other rows are still written.
        self.on_loss: Callable[[str], None] = self.add_warning

    def add_warning(self, message: str) -> None:
        """Add a warning to the run's row, unless it is there already."""
        add_warning(self.run, message)

    @classmethod
    def create(cls, location: str, run: Run | None = None) -> RunWriter:
        """Begin a new run in the store at `location`, which is made if it is missing."""
        filesystem = filesystem_for(location)
        create_store(filesystem)
        now = datetime.now(UTC)
        run = run or Run("")
        # If the caller gives the sequence number (the place in the order of runs), the manifests of all other runs need not be read to find it.
        manifests = [] if run.sequence else read_manifests(filesystem)[0]
        run.run_id = check_run_id(run.run_id or new_run_id(now))
        run.started_at = now.isoformat()
        run.sequence = run.sequence or 1 + max((m.run.sequence for m in manifests), default=0)
        locks = ExitStack()
        locks.enter_context(filesystem.lock(lock_path(run.run_id)))
        writer = cls(filesystem, Manifest(run), locks)
        try:
            create_run(filesystem, writer._manifest)
        except BaseException:
            locks.close()
            raise
        clean_interrupted(filesystem, [m.run.run_id for m in manifests if m.run.status == "running"])
        return writer

    @classmethod
    def resume(cls, location: str, run_id: str) -> RunWriter:
        """Continue a run that was interrupted; what it committed stays."""
        filesystem = filesystem_for(location)
        check_store(filesystem)
        missing = NotFound(f"There is no run {run_id} in the store {location}.", hint="See them with: audit runs")
        # Checked before the lock is taken, because that would create the run's folder.
        if not filesystem.exists(manifest_path(run_id)):
            raise missing
        locks = ExitStack()
        locks.enter_context(filesystem.lock(lock_path(run_id)))
        try:
            # Read under the lock: another writer may have committed a moment ago.
            manifest = read_manifest(filesystem, run_id)
            if isinstance(filesystem, LocalFilesystem):
                remove_leftovers(filesystem, run_id, CleanupResult(), keep_replaced=True)
        except FileNotFoundError:
            locks.close()
            raise missing from None
        except BaseException:
            locks.close()
            raise
        manifest.run.status = "running"
        manifest.run.finished_at = None
        return cls(filesystem, manifest, locks)

    @property
    def run(self) -> Run:
        """The run's row in its current state. The next commit stores what the caller changes in it."""
        return self._manifest.run

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._filesystem.location

    def commit_every(self, seconds: float) -> None:
        """Commit at least every so many seconds from now on, instead of at growing intervals."""
        self._interval = seconds
        self._longest = seconds

    def append(self, tables: Mapping[str, Rows], stamped: StampedRows | None = None, size: int = 0) -> None:
        """Add rows that belong together; one commit will hold all of them. `size` is the approximate number of bytes of `stamped`."""
        self._pending.add(tables, stamped, size)
        if self._pending.is_enough or self._is_overdue():
            self.flush()

    def adopt(self, parts: Sequence[Part], tally: Tally) -> None:
        """Add parts that another process wrote for this run (see block.py); the next commit lists them.

        In a local folder, the last part must exist: if it does not, the machines do not share the folder. In a bucket
        nothing is checked: one request for every block would be too many for one driver.
        """
        for part in parts[-1:] if isinstance(self._filesystem, LocalFilesystem) else ():
            path = f"{run_folder(self.run.run_id)}/{part.file}"
            if _size(self._filesystem, path) != part.bytes:
                raise StoreError(
                    f"{path}, which another process wrote, cannot be found in {self.location}.",
                    hint="The store must be one place for all machines: a shared folder, or s3://bucket/prefix.",
                )
        self._add_parts(parts, tally)
        self._count(tally)
        if self._is_overdue():
            self.flush()

    def is_due(self) -> bool:
        """Return whether rows or parts wait for a commit, and the interval since the last one has passed."""
        return bool(self._pending or self._uncommitted) and self._is_overdue()

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._last_flush >= self._interval

    def flush(self) -> None:
        """Write what has gathered as parts and commit them."""
        parts: list[Part] = []
        tally = self._count_pending()
        try:
            folder = run_folder(self.run.run_id)
            with self._filesystem.open_writer() as files:
                indices = self._write_indices(files)
                for name in self._pending.names():
                    part, data = part_of(name, self._pending.table(name), self._numbers[name], buffer=self._buffer)
                    parts.append(replace(part, index_pages=indices) if part.first_index is not None else part)
                    # It may be there already, if a process died after it wrote this part and before it committed it.
                    files.put(f"{folder}/{part.file}", data)
        except (StoreError, OSError):
            withdraw(self._filesystem, self.run.run_id, parts)
            raise
        self._add_parts(parts, tally)
        self._clear_pending()
        self._judge_by_evaluation_split()
        self._commit()
        self._last_flush = time.monotonic()
        # Long runs commit less often, so that the manifest stays small compared with the data.
        self._interval = min(self._interval * 1.5, self._longest)

    def finish(self, status: Status, *, sweep: bool = False) -> Run:
        """Commit the rows that are left with the run's final status, and release the run's lock.

        `sweep` deletes blocks that no commit lists: other processes wrote them in attempts that failed or were repeated.
        """
        try:
            try:
                self._count_pending()
                self.run.status = self._outcome(status)
                self._update_counts()
                self.run.finished_at = datetime.now(UTC).isoformat()
                self.flush()
            except Exception as error:
                self._give_up(error)
                raise
            if sweep:
                for path in find_unlisted(self._filesystem, self._manifest, BLOCK):
                    self._filesystem.remove(path)
        finally:
            self._locks.close()
            self._buffer = PartBuffer()  # the memory of the last one is given back
        return self.run

    def _outcome(self, status: Status) -> Status:
        """Return the final status: a run in which every sample failed has failed, whatever the caller says."""
        if status != "complete" or not self._tally.samples or self._tally.failed < self._tally.samples:
            return status
        self.add_warning(ALL_FAILED)
        return "failed"

    def abandon(self, error: Exception | None = None) -> None:
        """Release the run's lock without committing the pending rows. `error`, the reason, is stored in the run if possible."""
        try:
            if error is not None:
                self._give_up(error)
        finally:
            self._locks.close()

    def _give_up(self, error: Exception) -> None:
        """Mark the run as interrupted, with the reason. The pending rows are lost, so the counts leave them out."""
        self._clear_pending()
        self._tally = self._tally_of_parts
        run = self.run
        run.status, run.finished_at = "interrupted", datetime.now(UTC).isoformat()
        self._update_counts()
        self.add_warning(f"The run stopped: {message_without_hint(error)}")
        # If this cannot be written either, the error to report is still the one that stopped the run.
        with suppress(Exception):
            self._note_seconds()
            close_after_failure(self._filesystem, self._manifest)

    def _add_parts(self, parts: Sequence[Part], tally: Tally) -> None:
        self._manifest.parts.extend(parts)
        self._uncommitted.extend(parts)
        self._numbers.update(part.table for part in parts)
        self._tally_of_parts += tally
        self._evaluation.add(parts, tally)

    def _clear_pending(self) -> None:
        self._pending.clear()
        self._tally_of_pending = None

    def _count_pending(self) -> Tally:
        """Count the pending rows, all at once, unless they were counted already."""
        if self._tally_of_pending is None:
            self._tally_of_pending = Tally.of(self._pending.select(COUNTED_COLUMNS))
            losses, self._pending.losses = self._pending.losses, []
            for loss in losses:
                self.on_loss(loss)
            self._count(self._tally_of_pending)
        return self._tally_of_pending

    def _count(self, tally: Tally) -> None:
        self._tally += tally
        self._update_counts()

    def _update_counts(self) -> None:
        run, tally = self.run, self._tally
        run.samples, run.failed, run.graded = tally.samples, tally.failed, tally.graded
        run.wrong = tally.graded - tally.correct
        run.last_epoch = tally.last_epoch(ended=run.status == "complete")
        run.accuracy, run.accuracy_split = tally.accuracy(run.last_epoch), None

    def _judge_by_evaluation_split(self) -> None:
        """Set the accuracy to that of the split that models are evaluated on, if the last epoch has several."""
        found = self._evaluation.find(self.run.last_epoch, self._tally.splits.get(self.run.last_epoch or 0, ()))
        if found is not None:
            self.run.accuracy, self.run.accuracy_split = found

    def _write_indices(self, files: FileWriter) -> str | None:
        """Write the indices of this commit's samples to a file, if it needs one (see index_set.py); return the file's name."""
        found = index_set_of(self._pending.select(INDEXED_COLUMNS).values())
        if found is None:
            return None
        file, data = found
        files.put(f"{run_folder(self.run.run_id)}/{file}", data)
        return file

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
