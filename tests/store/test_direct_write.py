"""Large files are written whole, from any memory and to any file system."""

import mmap
import os
from pathlib import Path

import pytest

from audit.store.direct_write import write_whole

_SIZES = (0, 1, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 20) + 4096, 3 * (1 << 20) + 777)


def _write(path: Path, data: bytes | memoryview) -> bytes:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_whole(descriptor, data)
    finally:
        os.close(descriptor)
    return path.read_bytes()


@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("begin", [0, 1])
def test_every_size_is_written_from_a_page_and_from_elsewhere(tmp_path: Path, size: int, begin: int) -> None:
    memory = mmap.mmap(-1, size + 4096)
    memory.write(os.urandom(size + 4096))
    data = memoryview(memory)[begin : begin + size]
    assert _write(tmp_path / "file", data) == bytes(data)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no file system in memory")
def test_a_file_system_in_memory_is_written_too() -> None:
    path = Path(f"/dev/shm/audit-direct-write-{os.getpid()}")
    data = os.urandom((1 << 20) + 5)
    try:
        assert _write(path, data) == data
    finally:
        path.unlink(missing_ok=True)


def test_the_file_is_written_as_usual_afterwards(tmp_path: Path) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    try:
        write_whole(descriptor, memoryview(memory))
        assert os.write(descriptor, b"odd") == 3
    finally:
        os.close(descriptor)
    assert (tmp_path / "file").stat().st_size == (1 << 20) + 3
