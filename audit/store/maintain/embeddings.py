"""Write the map of a run's samples: the table `embeddings`, one part, in place of an earlier one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from audit.store.maintain.amend import replace_table
from audit.store.read.reader import Reader
from audit.store.schema import SCHEMAS


def write_embeddings(
    reader: Reader,
    run_id: str,
    layer: str,
    method: str,
    keys: npt.NDArray[np.int64],
    places: npt.NDArray[np.float32],
    vectors: npt.NDArray[np.float32],
) -> None:
    """Store a place and a vector for each key (epoch, index, visit)."""
    count, width = vectors.shape
    schema = SCHEMAS["embeddings"]
    offsets = pa.array(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id), count),
        "epoch": keys[:, 0],
        "index": keys[:, 1],
        "visit": keys[:, 2],
        "layer": pa.repeat(pa.scalar(layer), count),
        "method": pa.repeat(pa.scalar(method), count),
        "x": places[:, 0],
        "y": places[:, 1],
        "vector": pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(vectors).ravel())),
    }
    made = pa.table(
        {name: pa.array(column) if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    )
    replace_table(reader, run_id, "embeddings", lambda: made.cast(schema))
