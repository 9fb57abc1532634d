"""The errors of a run's failed samples, grouped: what a summary shows instead of a thousand rows."""

from __future__ import annotations

from dataclasses import dataclass

from audit.store.read.reader import Reader

#: What differs between two samples that failed for the same reason: addresses, quoted names, numbers.
_VARYING_PARTS = "0x[0-9a-fA-F]+|''[^'']*''|\"[^\"]*\"|[0-9]+"  # inside quotes of SQL
#: SQL that is equal for samples that failed for the same reason.
SAME_ERROR = f"regexp_replace(replace(error, coalesce(source, ''), ''), '{_VARYING_PARTS}', '', 'g')"
_GROUPS = f"""
SELECT count(*) AS count, failed_stage AS stage, arg_min(error, index) AS error, min(index) AS index,
       arg_min(source, index) AS source
FROM samples WHERE run_id = ? AND status = 'failed'
GROUP BY failed_stage, {SAME_ERROR}
ORDER BY count DESC, index LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Samples that failed at the same stage with the same error; `index` and `source` are the first one's."""

    count: int
    stage: str | None
    error: str | None
    index: int
    source: str | None
    #: What the first one was loaded as, such as image or text, and the mode of a picture, such as L for a grey one.
    kind: str | None = None
    mode: str | None = None


def failure_groups(reader: Reader, run_id: str, most: int = 10) -> list[FailureGroup]:
    """Group a run's failed samples by stage and error, the largest group first."""
    rows = reader.sql(_GROUPS, parameters=[run_id, most]).fetchall()
    return [
        FailureGroup(count, stage, error, index, source, *_find_loaded_kind(reader, run_id, index))
        for count, stage, error, index, source in rows
    ]


def _find_loaded_kind(reader: Reader, run_id: str, index: int) -> tuple[str | None, str | None]:
    query = "SELECT kind, mode FROM stage_outputs WHERE run_id = ? AND index = ? AND stage = 0 LIMIT 1"
    for kind, mode in reader.sql(query, parameters=[run_id, index]).fetchall():
        return kind, mode
    return None, None
