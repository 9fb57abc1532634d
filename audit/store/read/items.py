"""Which samples of a run are meant: loaders of one run, such as training and validation, have samples of the same index.

An item is an index with its split and its dataset's folder. A visit's epoch and number do not identify it: they differ
from one visit to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from audit.store.read.reader import Reader
from audit.store.sql_literal import literal


@dataclass(frozen=True, slots=True)
class SampleIdentity:
    """What identifies a sample of a run, in whichever epoch."""

    index: int
    split: str | None
    root: str | None


#: The items of a query's first three parameters, as a table.
LISTED_ITEMS = "SELECT unnest(?::BIGINT[]) AS index, unnest(?::VARCHAR[]) AS split, unnest(?::VARCHAR[]) AS root"


def same_item(ours: str, theirs: str) -> str:
    """Return the SQL condition that the rows of two tables, which have the columns of an item, are about the same sample."""
    alike = [f"{ours}.{name} IS NOT DISTINCT FROM {theirs}.{name}" for name in ("split", "root")]
    return f"{ours}.index = {theirs}.index AND {' AND '.join(alike)}"


def is_tagged(tags: str, samples: str) -> str:
    """Return the SQL condition that a row of `tags` is about a row of a table that has the columns of an item."""
    return f"{tags}.index = {samples}.index AND ({tags}.split IS NULL AND {tags}.root IS NULL OR {same_item(tags, samples)})"


def write_tagged_condition(run_id: str, tag: str) -> str:
    """Return the SQL condition that a row of `lineage` is about a sample of a run that has a tag."""
    rows = f"FROM tags WHERE run_id = {literal(run_id)} AND tag = {literal(tag)}"
    whole = f"index IN (SELECT index {rows} AND split IS NULL AND root IS NULL)"
    item = "(index, coalesce(split, ''), coalesce(root, ''))"
    return f"({item} IN (SELECT {item} {rows}) OR {whole})"


def as_parameters(items: Collection[SampleIdentity]) -> list[list[int] | list[str | None]]:
    """Return the parameters of `LISTED_ITEMS`."""
    return [[item.index for item in items], [item.split for item in items], [item.root for item in items]]


def items_at(reader: Reader, run_id: str, keys: Sequence[tuple[int, int, int]]) -> set[SampleIdentity]:
    """Return the items of visits, given as epoch, index and visit."""
    listed = "SELECT unnest(?::BIGINT[]) AS epoch, unnest(?::BIGINT[]) AS index, unnest(?::BIGINT[]) AS visit"
    found = reader.sql(
        f"SELECT DISTINCT index, split, root FROM samples SEMI JOIN ({listed}) USING (epoch, index, visit) WHERE run_id = ?",
        parameters=[*(list(numbers) for numbers in zip(*keys, strict=True)), run_id] if keys else [[], [], [], run_id],
    )
    return {SampleIdentity(*row) for row in found.fetchall()}


def items_of(reader: Reader, run_id: str, indices: Collection[int]) -> set[SampleIdentity]:
    """Return the items that have these indices."""
    listed = ", ".join(str(int(index)) for index in indices) or "NULL"
    query = f"SELECT DISTINCT index, split, root FROM samples WHERE run_id = ? AND index IN ({listed})"
    return {SampleIdentity(*row) for row in reader.sql(query, parameters=[run_id]).fetchall()}
