"""Parts that are made in the same memory, one after the other, are those that are made each in its own."""

import mmap
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.store import part_buffer
from audit.store.part_buffer import PartBuffer
from audit.store.part_file import part_of
from audit.store.wire import table_of


def _payloads(count: int, size: int) -> pa.Table:
    data = [bytes([n % 256]) * size for n in range(count)]
    columns = {"run_id": ["r"] * count, "index": list(range(count)), "stage": [0] * count, "form": ["full"] * count}
    return table_of("payloads", {**columns, "data": data})


def test_parts_in_one_buffer_are_those_in_their_own() -> None:
    buffer = PartBuffer()
    for count, size in ((3, 10), (40, 100_000), (1, 0), (2000, 50)):
        shared, data = part_of("payloads", _payloads(count, size), 0, buffer=buffer)
        alone, other = part_of("payloads", _payloads(count, size), 0)
        assert (shared, bytes(data)) == (alone, bytes(other))


def test_a_part_larger_than_its_buffer_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_buffer, "_EXTRA", 1)
    part, data = part_of("payloads", _payloads(2, 10), 0, buffer=PartBuffer())
    assert part.bytes == len(data) > 100
    assert pq.read_table(pa.BufferReader(data))["data"].to_pylist() == [bytes(10), bytes([1]) * 10]


@pytest.mark.workers
def test_a_forked_process_that_drops_a_buffer_unmaps_no_memory_of_its_own() -> None:
    buffer, size = PartBuffer(), 64 << 20
    buffer.reserve(size)[:4] = b"here"
    child = os.fork()
    if not child:
        # The kernel puts these where it finds room; a buffer that is not there any more would leave room for them.
        later = [mmap.mmap(-1, size >> shift) for shift in (0, 1, 2)]
        del buffer
        os._exit(0 if [block[:4] for block in later] == [bytes(4)] * 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
