"""Open a store and ask it anything, without being able to change it.

A store is seen as it was committed when it was opened. What a query can reach is decided in `parts` and `session`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

from audit.config import allows_damaged, verifies_reads
from audit.errors import StoreError
from audit.identity import resolve_run
from audit.records import Part, Run, Stage
from audit.store.commits import run_folder
from audit.store.filesystem import Filesystem, filesystem_for
from audit.store.manifest import Manifest, lock_path, read_manifests
from audit.store.marker import check_store
from audit.store.read.connection import Session, connect, scan, union
from audit.store.read.duckdb_files import empty_part, older_version
from audit.store.read.relation import Relation
from audit.store.read.rows import Row, field_names
from audit.tables import TABLE_NAMES

__all__ = ["HasReader", "Reader", "Relation", "reader_of"]


class Reader:
    """A store as it was committed when it was opened; `refresh` looks again.

    A manifest that cannot be read, or does not add up, is an error: fewer rows would be a wrong answer. With
    `allow_damaged` the other runs are read, and `damaged` says what was left aside. `verify_reads` decides whether parts
    are checked against their digests before they are read; None for parts on this machine only.
    """

    def __init__(self, location: str, *, allow_damaged: bool | None = None, verify_reads: bool | None = None) -> None:
        self._allow_damaged = allows_damaged(allow_damaged)
        #: Whether parts are checked before they are read; None for those on this machine.
        self.verify_reads = verifies_reads(verify_reads)
        self._filesystem: Filesystem = filesystem_for(location)
        check_store(self._filesystem)
        self._sessions: dict[tuple[tuple[str, ...] | None, int | None], Session] = {}
        self._stages: dict[str, tuple[Stage, ...]] = {}
        self._manifests: list[Manifest] = []
        self.damaged: list[Exception] = []
        self.refresh()

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._filesystem.location

    @property
    def filesystem(self) -> Filesystem:
        """The place the store lives in."""
        return self._filesystem

    def refresh(self) -> None:
        """Read all manifests again, so that later queries see what was committed since."""
        self.close()
        manifests, damaged = read_manifests(self._filesystem)
        if damaged and not self._allow_damaged:
            raise _with_number(damaged)
        self.damaged = list(damaged)
        self._manifests = manifests
        for manifest in manifests:
            run = manifest.run
            if run.status == "running" and not self._filesystem.is_locked(lock_path(run.run_id)):
                # Its writer is gone without a word: killed, or the machine went down.
                run.status = "interrupted"

    def take(self, manifest: Manifest) -> None:
        """Use this manifest of one run from now on, without reading the others again."""
        self.close()
        if manifest.run.status == "running":
            manifest.run.status = "interrupted"
        self._manifests = [manifest if m.run.run_id == manifest.run.run_id else m for m in self._manifests]

    def runs(self) -> list[Run]:
        """Return every run, in the order they were begun."""
        return [manifest.run for manifest in self._manifests]

    def run(self, reference: str | None = None) -> Run:
        """Return the run that an id, a prefix, a name, `latest` or `latest~N` means."""
        return self.manifest(reference).run

    def manifest(self, reference: str | None = None) -> Manifest:
        """Return the manifest of the run that a reference means: its row and its parts."""
        run_id = resolve_run(reference, self.runs())
        return next(m for m in self._manifests if m.run.run_id == run_id)

    def sql(
        self,
        query: str,
        *,
        run: str | Iterable[str] | None = None,
        parameters: Sequence[Any] = (),
        timeout: float | None = None,
        memory_limit: int | None = None,
    ) -> Relation:
        """Return the answer to an SQL query over every run, or only over those named by `run`.

        A fetch that takes longer than `timeout` seconds is stopped. `memory_limit` are the bytes that DuckDB may use.
        """
        chosen: tuple[str, ...] | None = None
        if run is not None:
            references = [run] if isinstance(run, str) else list(run)
            chosen = tuple(sorted({self.run(reference).run_id for reference in references}))
        session = self.session(chosen, query, memory_limit)
        found = Relation(session, query, list(parameters))
        found.timeout = timeout
        found.run_ids = chosen if chosen is not None else tuple(run.run_id for run in self.runs())
        return found

    def rows(
        self, row: type[Row], run_id: str, *, index: int | None = None, where: str = "", order: str = ""
    ) -> list[Row]:
        """Return the rows of one run's table, given as its row class, opening only the parts that can hold `index`."""
        table = TABLE_NAMES[row]
        session = self.session(None, where)
        found = [
            (name, part)
            for name, owner, part in session.parts_of(table)
            if owner == run_id and (index is None or may_hold(part, index, index))
        ]
        if index is not None and len(found) > 1:
            found = [
                (name, part) for name, part in found if session.lookup.holds(name, index, _index_file(run_id, part))
            ]
        if not found:
            return []
        conditions = [f"index = {int(index)}"] if index is not None else []
        if where:
            conditions.append(f"({where})")
        # A column whose name is a word of Python has an underscore behind it there.
        columns = ", ".join(f'"{name.rstrip("_")}" AS "{name}"' for name in field_names(row))
        query = f"SELECT {columns} FROM {read_parts(table, found)}" + (
            f" WHERE {' AND '.join(conditions)}" if conditions else ""
        )
        query += f" ORDER BY {order}" if order else ""
        return Relation(session, query, []).rows(row)

    def stages(self, run_id: str) -> tuple[Stage, ...]:
        """Return the stages of one run in their order; they are read once, as every trace needs them."""
        if run_id not in self._stages:
            self._stages[run_id] = tuple(self.rows(Stage, run_id, order="stage"))
        return self._stages[run_id]

    def bytes_read(self) -> int:
        """Return how many bytes of parts have been read so far."""
        return sum(session.files.bytes_read for session in self._sessions.values())

    def close(self) -> None:
        """Close every connection; relations that were returned before end with them."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        self._stages.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def session(
        self, chosen: tuple[str, ...] | None, query: str | None = None, memory_limit: int | None = None
    ) -> Session:
        """Return the connection over a choice of runs, ready for a query; all runs where `chosen` is None."""
        key = chosen, memory_limit
        if key not in self._sessions:
            manifests = [m for m in self._manifests if chosen is None or m.run.run_id in chosen]
            self._sessions[key] = connect(
                self._filesystem, manifests, memory_limit=memory_limit, verify=self.verify_reads
            )
        session = self._sessions[key]
        session.serve(query)
        return session


def _with_number(damaged: Sequence[StoreError]) -> StoreError:
    """Return the first error, with how many more there are."""
    first = damaged[0]
    if len(damaged) > 1:
        first.message = f"{first.message} {len(damaged) - 1} more manifests are damaged."
    return first


class HasReader(Protocol):
    """What `audit.open` gives: a store that holds its reader."""

    @property
    def reader(self) -> Reader: ...


def reader_of(store: object) -> Reader | None:
    """Return the reader of an open store; None for a place that has yet to be opened."""
    found = getattr(store, "reader", store)
    return found if isinstance(found, Reader) else None


def read_parts(table: str, found: list[tuple[str, Part]]) -> str:
    """Return the SQL that reads these parts, given by name, with every column that the table has now."""
    groups: dict[int | None, list[str]] = {}
    for name, part in found:
        groups.setdefault(older_version(part), []).append(name)
    if [*groups] == [None]:
        return scan(groups[None])
    # The empty file brings the columns that older parts lack.
    current = [empty_part(table), *groups.pop(None, [])]
    return union([current, *groups.values()])


def _index_file(run_id: str, part: Part) -> str | None:
    return f"{run_folder(run_id)}/{part.index_file}" if part.index_file is not None else None


def may_hold(part: Part, first: int, last: int) -> bool:
    """Return whether a part may have rows of indices from `first` to `last`, by its bounds."""
    return (
        part.first_index is None or part.last_index is None or (part.first_index <= last and first <= part.last_index)
    )
