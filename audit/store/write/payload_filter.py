"""Which visits keep their payloads: an SQL condition over predictions, decided batch by batch."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from audit.errors import UsageError
from audit.store.schema import SCHEMAS


class Selection:
    """`--capture-where`: payloads stay only for the visits whose prediction meets the condition."""

    def __init__(self, condition: str) -> None:
        self.condition = condition
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("SET enable_external_access = false; SET lock_configuration = true")
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
        payloads, outputs = tables.get("payloads"), tables.get("stage_outputs")
        if payloads is None or outputs is None:
            return tables
        predictions = tables.get("predictions", SCHEMAS["predictions"].empty_table())
        chosen = self._choose(predictions)
        keys = _keys(payloads)
        kept = pc.is_in(_keys(outputs), value_set=chosen)
        level = pc.if_else(kept, outputs["payload"], pa.scalar("none", pa.string()))
        column = outputs.schema.get_field_index("payload")
        return {
            **tables,
            "payloads": payloads.filter(pc.is_in(keys, value_set=chosen)),
            "stage_outputs": outputs.set_column(column, outputs.schema.field(column), level),
        }

    def places(self, predictions: pa.Table) -> set[int]:
        """Return the places in a table of predictions whose row meets the condition."""
        numbered = predictions.append_column("_place", pa.array(range(predictions.num_rows), pa.int64()))
        cursor = self._connection.cursor()
        cursor.register("predictions", numbered)
        found = cursor.sql(f"SELECT _place FROM predictions WHERE ({self.condition}\n)").fetchall()
        return {place for (place,) in found}

    def _choose(self, predictions: pa.Table) -> pa.Array:
        cursor = self._connection.cursor()
        cursor.register("predictions", predictions)
        query = (
            f"SELECT index || '/' || visit AS key FROM predictions WHERE coalesce(call, 0) = 0 AND ({self.condition}\n)"
        )
        return cursor.sql(query).to_arrow_table()["key"].combine_chunks().cast(pa.string())


def _keys(table: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(table["index"].cast(pa.string()), table["visit"].cast(pa.string()), "/")
