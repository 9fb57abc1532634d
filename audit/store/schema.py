"""The tables of the store: column names and types are the public contract (docs/FORMAT.md).

Every table that belongs to a run begins with `run_id`, so that a file read alone still says
whose rows it holds.
"""

from __future__ import annotations

import pyarrow as pa

#: Raised only when a reader of an older version could misread a newer store.
FORMAT_VERSION = 2
FORMAT_NAME = "audit-lineage"
#: Version of the columns below. Each part says which version it was written with.
SCHEMA_VERSION = 3

_KEY = [("run_id", pa.string()), ("epoch", pa.int32()), ("index", pa.int64()), ("visit", pa.int32())]


def _table(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns])


SCHEMAS: dict[str, pa.Schema] = {
    "samples": _table(
        *_KEY,
        ("split", pa.string()),
        ("source", pa.string()),
        ("root", pa.string()),
        ("source_raw", pa.binary()),
        ("source_digest", pa.string()),
        ("source_bytes", pa.int64()),
        ("label", pa.int64()),
        ("label_name", pa.string()),
        ("status", pa.string()),
        ("failed_stage", pa.string()),
        ("error", pa.string()),
        ("worker", pa.int32()),
        ("rank", pa.int32()),
        ("batch", pa.int64()),
        ("position", pa.int32()),
    ),
    "stages": _table(
        ("run_id", pa.string()),
        ("stage", pa.int32()),
        ("path", pa.string()),
        ("name", pa.string()),
        ("qualname", pa.string()),
        ("parameters", pa.string()),
        ("random", pa.bool_()),
        ("source_code_digest", pa.string()),
    ),
    "stage_outputs": _table(
        *_KEY,
        ("stage", pa.int32()),
        ("name", pa.string()),
        ("kind", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("mode", pa.string()),
        ("digest", pa.string()),
        ("changed", pa.bool_()),
        ("params", pa.string()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("mean", pa.float64()),
        ("std", pa.float64()),
        ("zeros", pa.int64()),
        ("nonfinite", pa.int64()),
        ("bytes", pa.int64()),
        ("microseconds", pa.float32()),
        ("payload", pa.string()),
    ),
    "payloads": _table(
        *_KEY,
        ("stage", pa.int32()),
        ("form", pa.string()),
        ("kind", pa.string()),
        ("encoding", pa.string()),
        ("data", pa.binary()),
    ),
    "predictions": _table(
        *_KEY,
        ("label", pa.int64()),
        ("label_name", pa.string()),
        ("predicted", pa.int64()),
        ("predicted_name", pa.string()),
        ("confidence", pa.float32()),
        ("correct", pa.bool_()),
        ("loss", pa.float32()),
        ("margin", pa.float32()),
        ("entropy", pa.float32()),
        ("label_rank", pa.int32()),
        ("logits", pa.list_(pa.float32())),
        ("probabilities", pa.list_(pa.float32())),
        ("input_digest", pa.string()),
        ("batch", pa.int64()),
        ("position", pa.int32()),
        ("step", pa.int64()),
        ("model", pa.string()),
        ("call", pa.int32()),
        ("number", pa.int64()),
        ("operations", pa.list_(pa.string())),
        ("target", pa.list_(pa.float32())),
        ("output", pa.list_(pa.float32())),
    ),
    "calls": _table(
        ("run_id", pa.string()),
        ("number", pa.int64()),
        ("model", pa.string()),
        ("epoch", pa.int32()),
        ("step", pa.int64()),
        ("phase", pa.string()),
        ("rows", pa.int64()),
        ("samples", pa.int64()),
        ("evidence", pa.string()),
        ("operations", pa.list_(pa.string())),
        ("reason", pa.string()),
        ("rank", pa.int32()),
    ),
    "activations": _table(
        ("run_id", pa.string()),
        ("epoch", pa.int32()),
        ("step", pa.int64()),
        ("index", pa.int64()),
        ("visit", pa.int32()),
        ("layer", pa.string()),
        ("layer_type", pa.string()),
        ("direction", pa.string()),
        ("port", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("dtype", pa.string()),
        ("mean", pa.float64()),
        ("std", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("p01", pa.float64()),
        ("p25", pa.float64()),
        ("p50", pa.float64()),
        ("p75", pa.float64()),
        ("p99", pa.float64()),
        ("zero_fraction", pa.float64()),
        ("nonfinite", pa.int64()),
        ("norm", pa.float64()),
        ("digest", pa.string()),
        ("payload", pa.binary()),
    ),
    "steps": _table(
        ("run_id", pa.string()),
        ("epoch", pa.int32()),
        ("step", pa.int64()),
        ("batch", pa.int64()),
        ("phase", pa.string()),
        ("loss", pa.float64()),
        ("learning_rate", pa.float64()),
        ("gradient_norm", pa.float64()),
        ("samples", pa.int64()),
        ("rank", pa.int32()),
    ),
    "parents": _table(
        ("run_id", pa.string()),
        ("epoch", pa.int32()),
        ("batch", pa.int64()),
        ("position", pa.int32()),
        ("parent_index", pa.int64()),
        ("weight", pa.float64()),
    ),
    "findings": _table(
        ("run_id", pa.string()),
        ("check_name", pa.string()),
        ("severity", pa.string()),
        ("status", pa.string()),
        ("message", pa.string()),
        ("index", pa.int64()),
        ("source", pa.string()),
        ("stage", pa.int32()),
        ("value", pa.float64()),
        ("threshold", pa.float64()),
        ("evidence", pa.string()),
    ),
    "rng": _table(
        *_KEY,
        ("generator", pa.string()),
        ("state", pa.binary()),
        ("block_digest", pa.string()),
        ("block", pa.binary()),
    ),
}

#: Columns that were added after version 1: table, column, and the version that added it. Older parts read as NULL there.
#: A new column goes to the end of its table, and here.
ADDED: dict[str, dict[str, int]] = {
    "predictions": dict.fromkeys(("model", "call", "number", "operations", "target", "output"), 3),
}

#: The `runs` table is made from the manifests, not from parts.
RUNS = _table(
    ("run_id", pa.string()),
    ("name", pa.string()),
    ("status", pa.string()),
    ("started_at", pa.timestamp("us", tz="UTC")),
    ("finished_at", pa.timestamp("us", tz="UTC")),
    ("seconds", pa.float64()),
    ("command", pa.string()),
    ("seed", pa.int64()),
    ("capture", pa.string()),
    ("dataset", pa.string()),
    ("dataset_digest", pa.string()),
    ("model", pa.string()),
    ("model_digest", pa.string()),
    ("arch", pa.string()),
    ("classes", pa.list_(pa.string())),
    ("pipeline_digest", pa.string()),
    ("samples", pa.int64()),
    ("failed", pa.int64()),
    ("wrong", pa.int64()),
    ("last_epoch", pa.int64()),
    ("accuracy", pa.float64()),
    ("versions", pa.string()),
    ("git_commit", pa.string()),
    ("host", pa.string()),
    ("tags", pa.map_(pa.string(), pa.string())),
    ("recipe", pa.string()),
    ("warnings", pa.list_(pa.string())),
    ("sequence", pa.int64()),
    ("output", pa.string()),
    ("task", pa.string()),
    ("output_evidence", pa.string()),
    ("unrecorded", pa.list_(pa.string())),
)


def schema_at(table: str, version: int) -> pa.Schema:
    """Return the columns that a table had at a version of the schema."""
    added = ADDED.get(table, {})
    return pa.schema([field for field in SCHEMAS[table] if added.get(field.name, 1) <= version])


def is_older(table: str, version: int) -> bool:
    """Tell whether parts of this version lack columns that the table has now."""
    return any(since > version for since in ADDED.get(table, {}).values())


def add_missing_columns(name: str, rows: pa.Table) -> pa.Table:
    """Return the rows with every column that the table has now; those that are missing are NULL."""
    for number, field in enumerate(SCHEMAS[name]):
        if field.name not in rows.column_names:
            rows = rows.add_column(min(number, rows.num_columns), field, pa.nulls(rows.num_rows, field.type))
    return rows
