"""A process that is forked while a store is open, as DataLoader workers are, goes on and ends well."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

import audit
from audit.store.write.writer import RunWriter


@pytest.mark.workers
@pytest.mark.parametrize("is_garbage", [True, False])
def test_a_forked_process_leaves_the_connections_of_its_parent_alone(tmp_path: Path, is_garbage: bool) -> None:
    RunWriter.create(str(tmp_path / "lineage")).finish("complete")
    store = audit.open(tmp_path / "lineage")
    # DuckDB starts its threads for a query that is worth them.
    assert store.sql("SELECT count(*) FROM range(3000000) GROUP BY range % 7").fetchall()
    gc.disable()
    try:
        if is_garbage:
            cycle: list[object] = [store]
            cycle.append(cycle)
            del cycle, store
        child = os.fork()
        if child == 0:
            gc.collect()
            if not is_garbage:
                store.close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(status) == 0
