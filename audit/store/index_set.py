"""The indices of a commit, in a file of their own: which commit holds a sample is known without opening its parts.

A loader that shuffles spreads indices over all parts, so that the bounds in the manifest exclude none. Then a commit also writes
its distinct indices, sorted, as little-endian integers. The file's name has the SHA-256 of its bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

INDICES_FOLDER = "indices"
#: A commit with fewer distinct indices than this has no such file: reading its parts is quick.
_LEAST = 4_096
#: Nor has one whose indices fill this share of their range: bounds tell as much.
_DENSE = 1 / 8
_NAME = re.compile(rf"{INDICES_FOLDER}/([0-9a-f]{{64}})\.(u4|i8)")

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.uint32]


def index_set_of(tables: Iterable[pa.Table]) -> tuple[str, bytes] | None:
    """Return the name and the bytes of the file for a commit of these tables; None where it needs none."""
    columns = [table["index"].combine_chunks() for table in tables if "index" in table.column_names]
    if not columns or max(map(len, columns)) < _LEAST:
        return None
    bounds = [pc.min_max(column) for column in columns if len(column) > column.null_count]
    span = max(one["max"].as_py() for one in bounds) - min(one["min"].as_py() for one in bounds) + 1 if bounds else 0
    # Some table has one row for each sample: without sorting it is known that a run in order needs no file.
    if min(len(column) for column in columns if len(column)) > _DENSE * span:
        return None
    found = np.unique(np.concatenate([np.asarray(column.drop_null(), dtype=np.int64) for column in columns]))
    if len(found) < _LEAST or len(found) > _DENSE * (int(found[-1]) - int(found[0]) + 1):
        return None
    kind = "u4" if found[0] >= 0 and found[-1] < 2**32 else "i8"
    data = found.astype(f"<{kind}").tobytes()
    return f"{INDICES_FOLDER}/{hashlib.sha256(data).hexdigest()}.{kind}", data


def is_index_set(file: str) -> bool:
    """Return whether it can be the name of a file of indices."""
    return _NAME.fullmatch(file) is not None


def read_index_set(file: str, data: bytes) -> Numbers | None:
    """Return the indices in a file's bytes; None where they do not have the digest in its name."""
    name = _NAME.fullmatch(file)
    if name is None or hashlib.sha256(data).hexdigest() != name[1]:
        return None
    return np.frombuffer(data, f"<{name[2]}")
