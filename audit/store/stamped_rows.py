"""Rows of a batch on their way to the writer, with what only the main process knows of the batch, and its predictions.

They become Arrow tables when they are written, those of many batches at once: to make a table takes longer than to put the
few rows of one batch into it. Nor does the loop's own thread then keep memory that it allocated between the loop's tensors: each
such block leaves a hole in the heap that the next batch does not fit into, and the heap would grow by a batch with every batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from audit.records import Columns
from audit.store import wire


@dataclass(frozen=True, slots=True)
class StampedRows:
    """The rows of one batch by table: as this process gathered them, or as another one packed them."""

    stamp: wire.BatchStamp
    gathered: Mapping[str, Columns] | None = None
    packed: Any = b""

    @property
    def count(self) -> int:
        """How many rows there are."""
        if self.gathered is None:
            return wire.count_rows(self.packed)
        return sum(rows.rows for rows in self.gathered.values())

    def tables(self) -> dict[str, pa.Table]:
        """Return the rows as tables of the store."""
        return tables_of([self])

    def read_lists(self) -> Mapping[str, Columns]:
        """Return the rows as they were gathered."""
        return self.gathered if self.gathered is not None else wire.unpack_lists(self.packed)

    def unstamped_tables(self) -> dict[str, pa.Table]:
        """Return the rows without what only the main process knows."""
        return wire.to_tables(self.read_lists())


def tables_of(batches: Sequence[StampedRows]) -> dict[str, pa.Table]:
    """Return the rows of several batches as tables of the store, in the order of the batches."""
    if len({batch.stamp.indices is None for batch in batches}) > 1:
        return join_stamped_tables([batch.tables() for batch in batches])
    each = [batch.read_lists() for batch in batches]
    names = dict.fromkeys(name for rows in each for name in rows)
    counts = {name: [rows[name].rows if name in rows else 0 for rows in each] for name in names}
    tables = wire.to_tables({name: Columns.join([rows[name] for rows in each if name in rows]) for name in names})
    stamps = [batch.stamp for batch in batches]
    return {name: wire.stamp_rows(name, table, stamps, counts[name]) for name, table in tables.items()}


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """Rows of one table of the store, column by column: lists or arrays, which nobody changes any more."""

    name: str
    columns: Mapping[str, Any]

    def table(self) -> pa.Table:
        """Return the rows as a table of the store."""
        return wire.table_of(self.name, self.columns)

    @property
    def form(self) -> tuple[Any, ...]:
        """What rows must have in common to become one table: the columns, and what each consists of."""
        return tuple(
            (name, column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else (name,)
            for name, column in self.columns.items()
        )


#: Rows that may be in a table already.
Rows: TypeAlias = pa.Table | ColumnRows


def join_stamped_tables(each: Sequence[Mapping[str, Rows]]) -> dict[str, pa.Table]:
    """Return the rows of several batches as tables, one behind the other by name."""
    names = dict.fromkeys(name for tables in each for name in tables)
    return {name: _join([tables[name] for tables in each if name in tables]) for name in names}


def _join(several: Sequence[Rows]) -> pa.Table:
    made: list[pa.Table] = []
    for form, group in itertools.groupby(several, lambda rows: rows.form if isinstance(rows, ColumnRows) else None):
        rows = list(group)
        made += rows if form is None else [_join_columns(rows).table()]
    return made[0] if len(made) == 1 else wire.join_tables(made)


def _join_columns(several: Sequence[ColumnRows]) -> ColumnRows:
    """Return rows of one form as one."""
    first = several[0]
    if len(several) == 1:
        return first
    columns: dict[str, Any] = {}
    for name, column in first.columns.items():
        parts = [rows.columns[name] for rows in several]
        is_array = isinstance(column, np.ndarray)
        columns[name] = np.concatenate(parts) if is_array else list(itertools.chain.from_iterable(parts))
    return ColumnRows(first.name, columns)
