"""Rows of a batch on their way to the writer, and what only the main process knows of the batch.

They become Arrow tables when they are written, those of many batches at once: to make a table takes longer than to put the
few rows of one batch into it. Nor does the loop's own thread then keep memory that it allocated between the loop's tensors: each
such block leaves a hole in the heap that the next batch does not fit into, and the heap would grow by a batch with every batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from audit.records import Columns
from audit.store import wire


@dataclass(frozen=True, slots=True)
class StampedRows:
    """The rows of one batch by table: as this process gathered them, or as another one packed them."""

    stamp: wire.Stamp
    gathered: Mapping[str, Columns] | None = None
    packed: Any = b""

    @property
    def count(self) -> int:
        """How many rows there are; of packed ones, how many samples."""
        if self.gathered is None:
            return len(self.stamp.visits)
        return sum(rows.rows for rows in self.gathered.values())

    def tables(self) -> dict[str, pa.Table]:
        """Return the rows as tables of the store."""
        return tables_of([self])

    def unstamped(self) -> dict[str, pa.Table]:
        """Return the rows without what only the main process knows."""
        return wire.unpack(self.packed) if self.gathered is None else wire.to_tables(self.gathered)


def tables_of(batches: Sequence[StampedRows]) -> dict[str, pa.Table]:
    """Return the rows of several batches as tables of the store, in the order of the batches."""
    if len({batch.stamp.indices is None for batch in batches}) > 1:
        return joined_tables([batch.tables() for batch in batches])
    gathered = [batch.gathered for batch in batches if batch.gathered is not None]
    if len(gathered) == len(batches):
        counts = {name: [rows[name].rows for rows in gathered] for name in gathered[0]}
        tables = wire.to_tables({name: Columns.joined([rows[name] for rows in gathered]) for name in gathered[0]})
    else:
        each = [batch.unstamped() for batch in batches]
        tables = joined_tables(each)
        counts = {name: [one[name].num_rows if name in one else 0 for one in each] for name in tables}
    stamps = [batch.stamp for batch in batches]
    return {name: wire.stamp_rows(name, table, stamps, counts[name]) for name, table in tables.items()}


def joined_tables(each: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Return the tables of several batches, one behind the other by name."""
    names = dict.fromkeys(name for tables in each for name in tables)
    return {name: wire.joined([tables[name] for tables in each if name in tables]) for name in names}
