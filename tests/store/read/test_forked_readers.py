"""A process that is forked while a store is open, as DataLoader workers are, goes on and ends well."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import audit
from audit.store.write.writer import RunWriter

#: DuckDB starts its threads for a query that is worth them.
_QUERY = "SELECT count(*) FROM range(3000000) GROUP BY range % 7"
_GARBAGE = {
    "a store": "held = audit.open(store); held.sql(query).fetchall()",
    "an answer": "held = audit.open(store).sql(query); held.fetchall()",
    "a condition for payloads": "held = Selection('loss > 1'); held.connection.execute(query).fetchall()",
}


@pytest.mark.workers
@pytest.mark.parametrize("is_garbage", [True, False])
def test_a_forked_process_leaves_the_connections_of_its_parent_alone(tmp_path: Path, is_garbage: bool) -> None:
    RunWriter.create(str(tmp_path / "lineage")).finish("complete")
    store = audit.open(tmp_path / "lineage")
    assert store.sql(_QUERY).fetchall()
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


@pytest.mark.workers
@pytest.mark.parametrize("made", _GARBAGE.values(), ids=_GARBAGE)
def test_a_forked_process_may_collect_garbage_in_its_first_instruction(tmp_path: Path, made: str) -> None:
    RunWriter.create(str(tmp_path / "lineage")).finish("complete")
    program = f"""
import gc, os
os.register_at_fork(after_in_child=gc.collect)  # functions that are registered later are called later
import audit
from audit.store.write.payload_filter import Selection

gc.disable()
store, query = {str(tmp_path / "lineage")!r}, {_QUERY!r}
{made}
cycle = [held]
cycle.append(cycle)
del cycle, held
if os.fork() == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("0", "")
