"""Values of layers that a recording kept (`keep="full"`). Nothing runs again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from audit import values
from audit.errors import AuditError
from audit.records import Run
from audit.store.read.reader import Reader
from audit.values.tensor import ENCODINGS

Array = np.ndarray[Any, Any]
_KEPT_VALUES = """
SELECT epoch, index, visit, payload, digest, shape, min, max FROM activations
WHERE run_id = ? AND epoch = ? AND layer = ? AND direction = 'forward' AND port = 'output.0' AND index IS NOT NULL
  AND payload IS NOT NULL AND axis IS DISTINCT FROM 'other'
QUALIFY row_number() OVER (PARTITION BY index, visit ORDER BY step DESC) = 1 ORDER BY index, visit
"""


def layer_value(run: Run, data: bytes | None, digest: str | None) -> Array | None:
    """Return a layer's value; None if it was not kept, or its bytes do not have its digest."""
    if data is None or digest is None:
        return None
    with values.following_digests(run.digest_version):
        # `activations` does not name the encoding: the digest has to tell.
        for encoding in ENCODINGS:
            encoded = values.EncodedValue(encoding, data)
            try:
                if values.encoded_digest("tensor", encoded) == digest:
                    return np.asarray(values.decode("tensor", encoded, numpy_only=True), np.float32)
            except AuditError:
                continue  # another encoding
    return None


def layer_vectors(
    reader: Reader, run: Run, layer: str, epoch: int
) -> tuple[list[tuple[int, int, int]], npt.NDArray[np.float32]] | None:
    """Return the keys and one vector for each visit whose output of a layer was kept; None if there is none.

    Of a feature map the vector is the mean of each channel. Where a visit was given to the model several times, the last call counts.
    """
    keys: list[tuple[int, int, int]] = []
    vectors: list[npt.NDArray[np.float32]] = []
    rows = reader.sql(_KEPT_VALUES, parameters=[run.run_id, epoch, layer]).fetchall()
    for number, index, visit, data, digest, *described in rows:
        value = layer_value(run, data, digest)
        if value is None or not _is_described(value, *described):
            continue
        keys.append((number, index, visit))
        vectors.append(value.reshape(len(value), -1).mean(axis=1))
    if len({len(vector) for vector in vectors}) != 1:
        return None
    return keys, np.stack(vectors)


def _is_described(value: Array, shape: list[int], least: float | None, greatest: float | None) -> bool:
    """Return whether the value is the output that the row describes: a function given as `keep` may have kept another one."""
    if value.ndim == 0 or list(value.shape) != shape or least is None or greatest is None:
        return False
    finite = value[np.isfinite(value)]
    return len(finite) > 0 and bool(np.allclose([finite.min(), finite.max()], [least, greatest], rtol=1e-5))
