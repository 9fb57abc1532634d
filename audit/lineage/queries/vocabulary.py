"""The names that a query can use, for completion in an editor, and a few queries to begin with."""

from __future__ import annotations

from typing import TypedDict

from audit.store.schema import RUNS, SCHEMAS
from audit.store.views import MACROS, PREDICTED_COLUMNS, VIEWS

_KEYWORDS = (
    "SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN USING LEFT AND OR NOT DISTINCT AS DESC ASC HAVING WITH CASE WHEN THEN "
    "ELSE END IS NULL IN LIKE BETWEEN count avg sum min max median quantile_cont DESCRIBE SUMMARIZE FILTER OVER "
    "PARTITION"
)

#: A title and a query: what people ask first.
EXAMPLES: tuple[tuple[str, str], ...] = (
    (
        "Mistakes with the highest confidence",
        "SELECT run_id, index, source, label_name, predicted_name, confidence FROM wrong_predictions\n"
        "ORDER BY confidence DESC LIMIT 50",
    ),
    ("Accuracy of each class", "SELECT * FROM per_class ORDER BY accuracy"),
    (
        "Slowest stages",
        "SELECT name, count(*) AS outputs, avg(microseconds) AS mean_us FROM stage_outputs\n"
        "GROUP BY name ORDER BY mean_us DESC",
    ),
    ("What failed", "FROM failures LIMIT 50"),
)


class Vocabulary(TypedDict):
    """Tables with their columns, macros, and the words of SQL."""

    tables: dict[str, list[str]]
    macros: list[str]
    keywords: list[str]


def vocabulary() -> Vocabulary:
    """Return every name that a query can use."""
    tables = {name: list(schema.names) for name, schema in {"runs": RUNS, **SCHEMAS}.items()}
    samples = [name for name in tables["samples"] if name != "source_raw"]
    tables |= {name: [*samples, *PREDICTED_COLUMNS] for name in ("lineage", "wrong_predictions", "latest")}
    tables["failures"] = samples
    tables |= {name: [] for name in VIEWS if name not in tables}
    return {
        "tables": tables,
        "macros": [signature.partition("(")[0] for signature in MACROS],
        "keywords": list(dict.fromkeys(_KEYWORDS.split())),
    }
