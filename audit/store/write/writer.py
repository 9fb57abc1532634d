"""Rows to parts to commit: the one writer of one run.

Rows of all tables that belong together are appended together and flushed together, so that every
commit holds whole visits: what a reader sees after a crash has no sample without its stages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from audit.errors import NotFound, StoreError, plainly
from audit.identity import new_run_id
from audit.records import Part, Run, Status
from audit.store.filesystem import Filesystem, filesystem_for
from audit.store.manifest import (
    Manifest,
    check_run_id,
    check_store,
    create_store,
    lock_path,
    manifest_path,
    read_manifest,
    read_manifests,
    run_folder,
    unlisted,
    withdraw,
)
from audit.store.part_file import part_of

#: A part is written when this much has gathered, or when enough time has passed.
FLUSH_BYTES = 32 * 2**20
FLUSH_ROWS = 200_000
FIRST_INTERVAL = 2.0
LONGEST_INTERVAL = 60.0

ALL_FAILED = "Every sample failed, so the run counts as failed."
#: How the names of parts begin that other processes wrote for this run's writer to adopt.
BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Tally:
    """What rows add to their run's counts."""

    samples: int = 0
    failed: int = 0
    graded: int = 0
    correct: int = 0
    #: Of each epoch: how many predictions were graded, and how many of them were correct.
    epochs: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[str, pa.Table]) -> Tally:
        """The tally of rows that belong together."""
        samples, predictions = tables.get("samples"), tables.get("predictions")
        if predictions is not None:
            # Of several predictions of a visit the first counts, as in the view `graded_predictions`.
            predictions = predictions.filter(pc.equal(pc.fill_null(predictions["call"], 0), 0))
        return cls(
            samples.num_rows if samples is not None else 0,
            (pc.sum(pc.equal(samples["status"], "failed")).as_py() or 0) if samples is not None else 0,
            predictions.num_rows - predictions["correct"].null_count if predictions is not None else 0,
            (pc.sum(predictions["correct"]).as_py() or 0) if predictions is not None else 0,
            _by_epoch(samples, predictions),
        )

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.samples + other.samples,
            self.failed + other.failed,
            self.graded + other.graded,
            self.correct + other.correct,
            {epoch: _sum(self.epochs, other.epochs, epoch) for epoch in {*self.epochs, *other.epochs}},
        )

    def last_epoch(self, *, ended: bool) -> int | None:
        """Return the last epoch that is complete: the newest of a run that has ended, else the one before it."""
        known = sorted(self.epochs)
        return next(iter(reversed(known if ended else known[:-1])), None)

    def accuracy(self, epoch: int | None) -> float | None:
        """Return the accuracy of one epoch; without one, that of the newest epoch as far as it has come."""
        graded, correct = self.epochs.get(max(self.epochs, default=0) if epoch is None else epoch, (0, 0))
        return correct / graded if graded else None


def _sum(a: Mapping[int, tuple[int, int]], b: Mapping[int, tuple[int, int]], epoch: int) -> tuple[int, int]:
    (graded, correct), (more, right) = a.get(epoch, (0, 0)), b.get(epoch, (0, 0))
    return graded + more, correct + right


def _by_epoch(samples: pa.Table | None, predictions: pa.Table | None) -> dict[int, tuple[int, int]]:
    found = dict.fromkeys(_distinct_epochs(samples), (0, 0))
    if predictions is None:
        return found
    for epoch in _distinct_epochs(predictions):
        correct = predictions["correct"].filter(pc.equal(predictions["epoch"], epoch))
        found[epoch] = (len(correct) - correct.null_count, pc.sum(correct).as_py() or 0)
    return found


def _distinct_epochs(table: pa.Table | None) -> list[int]:
    return [] if table is None else [epoch for epoch in table["epoch"].unique().to_pylist() if epoch is not None]


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

    @classmethod
    def create(cls, location: str, run: Run | None = None) -> RunWriter:
        """Begin a new run in the store at `location`, which is made if it is missing."""
        filesystem = filesystem_for(location)
        create_store(filesystem)
        now = datetime.now(UTC)
        run = run or Run(run_id="", sequence=0, started_at="")
        # A sequence that is given is kept: who writes many runs at once need not read them all for each.
        manifests = [] if run.sequence else read_manifests(filesystem)[0]
        run.run_id = check_run_id(run.run_id or new_run_id(now))
        run.started_at = now.isoformat()
        run.sequence = run.sequence or 1 + max((m.run.sequence for m in manifests), default=0)
        held = ExitStack()
        held.enter_context(filesystem.lock(lock_path(run.run_id)))
        writer = cls(filesystem, Manifest(run), held)
        try:
            filesystem.create(manifest_path(run.run_id), writer._manifest.dump())
        except BaseException:
            held.close()
            raise
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

    @property
    def committed_tables(self) -> set[str]:
        """The tables that have a part already."""
        return {part.table for part in self._manifest.parts}

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
        if self._pending_bytes >= FLUSH_BYTES or self._pending_rows >= FLUSH_ROWS or self._waited():
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
        if self._waited():
            self.flush()

    def _waited(self) -> bool:
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
        """Return how the run ended: one without a single good sample has failed, whoever recorded it."""
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
        # Whatever keeps it from being written: what stopped the run is the error to be told.
        with suppress(Exception):
            self._commit()

    def _list(self, parts: Sequence[Part], tally: Tally) -> None:
        self._manifest.parts.extend(parts)
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
        number = sum(part.table == name for part in self._manifest.parts)
        part, data = part_of(name, table, number)
        path = f"{run_folder(self.run.run_id)}/{part.file}"
        try:
            self._filesystem.create(path, data)
        except FileExistsError:
            # Left behind by a process that died between this part and its commit; the name holds its digest.
            self._filesystem.replace(path, data)
        return part

    def _commit(self) -> None:
        self.run.seconds = round(self._seconds_before + time.monotonic() - self._begun, 3)
        self._manifest.commit += 1
        self._filesystem.replace(manifest_path(self.run.run_id), self._manifest.dump())


def _size(filesystem: Filesystem, path: str) -> int | None:
    try:
        return filesystem.size(path)
    except FileNotFoundError:
        return None
