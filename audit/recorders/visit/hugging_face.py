"""What Hugging Face's datasets do to rows where no stage is seen: `map` before the recording, `set_transform` to whole batches."""

from __future__ import annotations

import os
import sys
from typing import Any

from audit.recorders.stages.describe import name_of

_MODULE = "datasets.arrow_dataset"


def describe_batches(dataset: Any) -> str:
    """Return the name of a dataset that makes whole batches, with the function that `set_transform` was given."""
    kind = type(dataset).__name__
    if not _is_hugging_face(dataset) or (transform := _transform_of(dataset)) is None:
        return kind
    code = getattr(transform, "__code__", None)
    where = f" ({os.path.relpath(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
    return f"{kind} with the transform {name_of(transform)}{where}"


def is_mapped(dataset: Any) -> bool:
    """Return whether the rows come from a file that `Dataset.map` wrote; a table in memory does not show it."""
    if not _is_hugging_face(dataset):
        return False
    try:
        from datasets.table import list_table_cache_files

        files = list_table_cache_files(dataset._data)
    except Exception:
        # Another version of the library: nothing is known.
        return False
    return any(os.path.basename(file).startswith("cache-") for file in files)


def _is_hugging_face(dataset: Any) -> bool:
    home = sys.modules.get(_MODULE)
    return home is not None and isinstance(dataset, home.Dataset)


def _transform_of(dataset: Any) -> Any:
    chosen = getattr(dataset, "format", None) or {}
    return (chosen.get("format_kwargs") or {}).get("transform")
