"""What Hugging Face's datasets do to rows where no stage is seen: `map` before the recording, `set_transform` to whole batches."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from audit.recorders.stages.describe import name_of

_MODULE = "datasets.arrow_dataset"
#: Columns whose rows may name a file.
_MEDIA = ("Image", "Audio", "Video")
#: The folder that all files of a dataset have in common, for each dataset that names files.
_folders: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def describe_batches(dataset: Any) -> str:
    """Return the name of a dataset that makes whole batches, with the function that `set_transform` was given."""
    kind = type(dataset).__name__
    if not _is_hugging_face(dataset) or (transform := _transform_of(dataset)) is None:
        return kind
    code = getattr(transform, "__code__", None)
    where = f" ({os.path.relpath(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
    return f"{kind} with the transform {name_of(transform)}{where}"


def is_mapped(dataset: Any) -> bool:
    """Return whether the rows were made by `Dataset.map`, which writes its fingerprint beside them, in a file or in memory.

    Renaming a column of a table in memory removes the fingerprint: then it is not known.
    """
    if not _is_hugging_face(dataset):
        return False
    try:
        from datasets.table import list_table_cache_files

        if any(os.path.basename(file).startswith("cache-") for file in list_table_cache_files(dataset._data)):
            return True
        noted = json.loads((dataset._data.schema.metadata or {}).get(b"huggingface", b"{}"))
    except Exception:
        # Another version of the library: nothing is known.
        return False
    return "fingerprint" in noted


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table that a dataset was loaded from: what `filter`, `select`, `shuffle` and splits choose from."""

    number: int
    #: The file of the table, and the row's number there; None for a table in memory.
    file: str | None = None
    row: int = 0


def table_row(dataset: Any, index: int) -> TableRow | None:
    """Return the row that a sample of a Hugging Face dataset is; None for other datasets."""
    if not _is_hugging_face(dataset):
        return None
    try:
        chosen = dataset._indices
        number = int(chosen.column(0)[index].as_py()) if chosen is not None else index
        return _locate(dataset._data, number)
    except Exception:
        # Another version of the library: nothing is known.
        return None


def row_values(dataset: Any, index: int) -> dict[str, Any]:
    """Return what a row holds, without decoding pictures or sounds."""
    chosen = dataset._indices
    number = int(chosen.column(0)[index].as_py()) if chosen is not None else index
    values: dict[str, Any] = dataset._data.fast_slice(number, 1).to_pylist()[0]
    return values


def row_files(dataset: Any, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the files on this machine that a row with these values names for pictures, sounds and videos, by column."""
    named = {name: _path_in(values[name]) for name in media_columns(dataset)}
    return {name: path for name, path in named.items() if path is not None and os.path.isfile(path)}


def folder_of_files(dataset: Any) -> str:
    """Return the folder that the files of a dataset have in common: files in two folders may have one name."""
    if (known := _folders.get(dataset)) is None:
        chunks = [chunk for name in media_columns(dataset) for chunk in dataset._data.column(name).chunks]
        paths = [path for chunk in chunks for path in _paths_beside(chunk)]
        known = _folders[dataset] = os.path.commonpath({os.path.dirname(os.path.abspath(path)) for path in paths})
    return known


def media_columns(dataset: Any) -> list[str]:
    """Return the names of the columns whose rows may name a file."""
    return [name for name, feature in dataset.features.items() if type(feature).__name__ in _MEDIA]


def _paths_beside(cells: Any) -> list[str]:
    """Return the paths of cells whose content lies in files beside the table, without reading any content."""
    paths, beside = cells.field("path").to_pylist(), cells.field("bytes").is_null().to_pylist()
    return [path for path, is_beside in zip(paths, beside, strict=True) if is_beside and path is not None]


def _path_in(cell: Any) -> str | None:
    """Return the path in a cell whose content lies in a file beside the table."""
    path = cell.get("path") if isinstance(cell, dict) and cell.get("bytes", b"") is None else None
    return path if isinstance(path, str) else None


def has_columns_of_file(dataset: Any) -> bool:
    """Return whether a row has exactly what its file holds: no column was removed, renamed, cast or added since."""
    blocks = [block for row in getattr(dataset._data, "blocks", None) or [[dataset._data]] for block in row]
    beside = any(len(row) > 1 for row in getattr(dataset._data, "blocks", None) or ())
    steps = {name for block in blocks for name, *_ in getattr(block, "replays", None) or ()}
    return not beside and steps <= {"slice", "fast_slice"}


def _locate(table: Any, number: int) -> TableRow:
    rows_of_blocks = getattr(table, "blocks", None) or []
    for blocks in rows_of_blocks:
        # Columns that were added later lie beside the first block.
        if number < len(blocks[0]):
            found = _locate(blocks[0], number)
            return found if len(rows_of_blocks) == 1 else replace(found, number=number + _rows_before(table, blocks))
        number -= len(blocks[0])
    path, replays = getattr(table, "path", None), getattr(table, "replays", None)
    if path is not None and replays is not None:
        row = number + sum(int(args[0]) for name, args, _ in replays if name in ("slice", "fast_slice"))
        return TableRow(row, os.path.abspath(path), row)
    chunks = table.table.column(0).chunks
    return TableRow(number + (chunks[0].offset if chunks else 0))


def _rows_before(table: Any, blocks: Any) -> int:
    """Return how many rows lie before some blocks of a joined table."""
    count = 0
    for others in table.blocks:
        if others is blocks:
            break
        count += len(others[0])
    return count


def _is_hugging_face(dataset: Any) -> bool:
    home = sys.modules.get(_MODULE)
    return home is not None and isinstance(dataset, home.Dataset)


def _transform_of(dataset: Any) -> Any:
    chosen = getattr(dataset, "format", None) or {}
    return (chosen.get("format_kwargs") or {}).get("transform")
