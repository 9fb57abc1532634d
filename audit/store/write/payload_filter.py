"""Which visits keep their payloads: an SQL condition over predictions, decided batch by batch."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from audit.errors import UsageError
from audit.store.forked_connections import keep_when_forked
from audit.store.schema import SCHEMAS

#: Tables of predictions that keep values, and the columns that hold them.
_VALUES = {"outputs": ("form", "encoding", "data"), "masks": ("form", "data")}


class Selection:
    """`--capture-where`: payloads stay only for the visits whose prediction meets the condition."""

    def __init__(self, condition: str) -> None:
        self.condition = condition
        self.connection = duckdb.connect(":memory:")
        keep_when_forked(self)
        self.connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        try:
            self._choose(SCHEMAS["predictions"].empty_table())
        except duckdb.Error as error:
            columns = ", ".join(SCHEMAS["predictions"].names)
            raise UsageError(
                f"--capture-where {condition!r} is not a condition over predictions: {str(error).splitlines()[0]}",
                hint=f"Its columns are {columns}.",
            ) from error

    def apply(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """Return the same rows, with the payloads of visits that were not chosen left out."""
        if not tables.keys() & {"payloads", *_VALUES}:
            return tables
        chosen, numbers = self._choose(tables.get("predictions", SCHEMAS["predictions"].empty_table()))
        kept = dict(tables)
        payloads, outputs = tables.get("payloads"), tables.get("stage_outputs")
        if payloads is not None and outputs is not None:
            level = pc.if_else(_is_chosen(outputs, chosen), outputs["payload"], pa.scalar("none", pa.string()))
            column = outputs.schema.get_field_index("payload")
            kept["payloads"] = payloads.filter(_is_chosen(payloads, chosen))
            kept["stage_outputs"] = outputs.set_column(column, outputs.schema.field(column), level)
        for name in tables.keys() & _VALUES.keys():
            kept[name] = _without_values(tables[name], _VALUES[name], chosen, numbers)
        return kept

    def places(self, predictions: pa.Table) -> set[int]:
        """Return the places in a table of predictions whose row meets the condition."""
        numbered = predictions.append_column("_place", pa.array(range(predictions.num_rows), pa.int64()))
        cursor = self.connection.cursor()
        cursor.register("predictions", numbered)
        found = cursor.sql(f"SELECT _place FROM predictions WHERE ({self.condition}\n)").fetchall()
        return {place for (place,) in found}

    def _choose(self, predictions: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Return the keys of the chosen visits, and the numbers of the calls that are about any of them."""
        cursor = self.connection.cursor()
        cursor.register("predictions", predictions)
        query = (
            "SELECT index || '/' || visit AS key, number FROM predictions "
            f"WHERE coalesce(call, 0) = 0 AND ({self.condition}\n)"
        )
        found = cursor.sql(query).to_arrow_table()
        return found["key"].combine_chunks().cast(pa.string()), found["number"].combine_chunks()


def _without_values(table: pa.Table, columns: tuple[str, ...], chosen: pa.Array, numbers: pa.Array) -> pa.Table:
    """Return the rows with these columns NULL, but for chosen visits. A value of a whole call is kept if any of its are."""
    is_kept = _is_chosen(table, chosen)
    if "number" in table.column_names:
        is_whole = pc.is_null(table["index"])
        is_kept = pc.if_else(is_whole, pc.is_in(table["number"], value_set=numbers), is_kept)
    for name in columns:
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        table = table.set_column(at, field, pc.if_else(is_kept, table[name], pa.scalar(None, field.type)))
    return table


def _is_chosen(table: pa.Table, chosen: pa.Array) -> pa.Array:
    return pc.is_in(_keys(table), value_set=chosen)


def _keys(table: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(table["index"].cast(pa.string()), table["visit"].cast(pa.string()), "/")
