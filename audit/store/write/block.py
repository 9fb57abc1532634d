"""Parts that a process writes for a run whose writer is elsewhere, perhaps on another machine.

Nothing is committed here: the parts exist once the run's writer adopts them. Their names carry an attempt of their
own, so that two attempts at the same work never meet, and the one that lost leaves nothing but files that no manifest lists.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from audit.records import Part
from audit.store.commits import run_folder
from audit.store.filesystem import filesystem_for
from audit.store.part_buffer import PartBuffer
from audit.store.part_file import part_of
from audit.store.stamped_rows import StampedRows
from audit.store.tally import COUNTED_COLUMNS, Tally
from audit.store.write.pending_rows import PendingRows
from audit.store.write.writer import BLOCK


@dataclass(frozen=True, slots=True)
class Block:
    """What was written: adopted by the run's writer as a whole, or not at all."""

    parts: tuple[Part, ...]
    tally: Tally


class BlockWriter:
    """Appends rows to parts of its own; memory stays bounded however many rows there are."""

    def __init__(self, location: str, run_id: str, number: int) -> None:
        self._filesystem = filesystem_for(location)
        self._folder = run_folder(run_id)
        self._prefix = f"{BLOCK}-{number:07d}-{secrets.token_hex(4)}"
        self._pending = PendingRows()
        self._buffer = PartBuffer()
        self._parts: list[Part] = []
        self._tally = Tally()

    @property
    def losses(self) -> list[str]:
        """What could not be written, in sentences."""
        return self._pending.losses

    def append(self, tables: Mapping[str, pa.Table], stamped: StampedRows | None = None, size: int = 0) -> None:
        """Take rows that belong together; `size` is about how many bytes `stamped` takes."""
        self._pending.add(tables, stamped, size)
        if self._pending.is_enough:
            self._flush()

    def finish(self) -> Block:
        """Write what is left; gives what the run's writer is to adopt."""
        self._flush()
        return Block(tuple(self._parts), self._tally)

    def _flush(self) -> None:
        self._tally += Tally.of(self._pending.select(COUNTED_COLUMNS))
        with self._filesystem.open_writer() as files:
            for name in self._pending.names():
                part, data = part_of(name, self._pending.table(name), len(self._parts), self._prefix, self._buffer)
                files.create(f"{self._folder}/{part.file}", data)
                self._parts.append(part)
        self._pending.clear()
