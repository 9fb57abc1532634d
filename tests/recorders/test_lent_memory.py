"""Shared memory that a worker uses again: never while somebody still refers to the rows in it."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import multiprocessing
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import audit
from audit.recorders import envelope, lent_memory
from audit.recorders.lent_memory import LentMemory, LentRows


@pytest.fixture(autouse=True)
def nothing_received() -> Iterator[None]:
    lent_memory.forget_received()
    yield
    lent_memory.forget_received()


def receive(rows: LentRows) -> Any:
    """Return the array that the main process would have of rows, without a second process."""
    rebuild, parts = lent_memory._reduce_shared(rows)
    return np.asarray(rebuild(*parts))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 12)), max_size=60))
def test_rows_stay_as_they_are_while_somebody_has_them(steps: list[tuple[int, int]]) -> None:
    memory, held = LentMemory(), []
    for number, (size, dropped) in enumerate(steps):
        lent = memory.lend(size)
        assert lent is not None
        lent.view[:] = content = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
        # Of what arrived, only a part of a part is kept, as Arrow keeps columns.
        held.append((receive(lent)[size // 3 :], content[size // 3 :].copy()))
        del lent
        if dropped < len(held):
            del held[dropped]
        for array, expected in held:
            np.testing.assert_array_equal(array, expected)
    held.clear()
    assert len(memory._blocks) <= lent_memory._MOST_BLOCKS


def test_a_block_is_used_again_and_grows_with_the_batches() -> None:
    memory = LentMemory()
    first = memory.lend(1000)
    assert first is not None
    key, arrived = first._key, receive(first)
    del first
    other = memory.lend(1000)
    assert other is not None
    assert other._key != key
    del arrived
    again, larger = memory.lend(1050), memory.lend(9000)
    assert again is not None
    assert larger is not None
    assert again._key == key
    assert len(larger) == len(larger.view) == 9000


def test_blocks_that_are_too_many_or_too_large_are_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = LentMemory()
    lent = [memory.lend(10) for _ in range(lent_memory._MOST_BLOCKS + 3)]
    keys = [rows._key for rows in lent if rows is not None]
    assert len(keys) == len(lent)
    assert keys.count(None) == 3
    monkeypatch.setattr(lent_memory, "_most_bytes", lambda: 1000)
    small = LentMemory()
    assert [(rows := small.lend(size)) is not None and rows._key is not None for size in (100, 5000, 100)] == [
        True,
        False,
        True,
    ]


def test_rows_that_travel_by_value_give_their_block_back() -> None:
    memory = LentMemory()
    lent = memory.lend(100)
    assert lent is not None
    lent.view[:] = 7
    assert pickle.loads(pickle.dumps(lent)) == b"\7" * 100
    again = memory.lend(100)
    assert again is not None
    assert again._key == lent._key


def _send(queue: Any, answers: Any, count: int) -> None:
    memory = LentMemory()
    for number in range(count):
        lent = memory.lend(200_000 + 1000 * (number % 5))
        assert lent is not None
        lent.view[:] = number
        queue.put(lent)
        answers.get()
    queue.put(len(memory._blocks))
    answers.get()


@pytest.mark.workers
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_another_process_sees_what_was_packed(method: str, strategy: str) -> None:
    before = multiprocessing.get_sharing_strategy()
    multiprocessing.set_sharing_strategy(strategy)
    context: Any = multiprocessing.get_context(method)
    queue, answers = context.Queue(), context.Queue()
    worker = context.Process(target=_send, args=(queue, answers, 40))
    try:
        worker.start()
        held: list[tuple[int, Any]] = []
        for number in range(40):
            held.append((number, np.asarray(queue.get(timeout=60))))
            held = held[-3:]
            for packed, array in held:
                assert len(array) == 200_000 + 1000 * (packed % 5)
                assert (array == packed).all()
            answers.put(None)
        del array
        assert queue.get(timeout=60) < 8
        answers.put(None)
        worker.join(60)
        # What is still held stays readable after its worker's end.
        gc.collect()
        assert [int(array[-1]) for _, array in held] == [37, 38, 39]
    finally:
        worker.join(10)
        multiprocessing.set_sharing_strategy(before)


@pytest.mark.workers
@pytest.mark.parametrize("with_model", [False, True])
def test_payloads_of_many_batches_are_those_of_a_loop_without_workers(
    monkeypatch: pytest.MonkeyPatch, pictures: Callable[..., Path], tmp_path: Path, with_model: bool
) -> None:
    monkeypatch.setattr(envelope, "_LEAST_SHARED", 1)
    monkeypatch.setattr("audit.recorders.model.waiting_batches._MOST_BYTES_WITHOUT_MODEL", 20_000)
    folder = pictures(count=60, size=(24, 20))
    found = []
    for workers in (0, 2):
        dataset = ImageFolder(str(folder), ToTensor())
        loader = DataLoader(dataset, batch_size=2, num_workers=workers, persistent_workers=workers > 0)
        with audit.record(tmp_path / str(workers), capture="full", strict=True) as run:
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1440, 3))
            recorded, called = run.loader(loader), run.model(model) if with_model else model
            for _ in range(2):
                for batch, _ in recorded:
                    called(batch)
        assert not lent_memory._mapped_blocks
        with audit.open(tmp_path / str(workers)) as store:
            columns = "epoch, index, visit, stage, kind, form, encoding, data"
            found.append(store.sql(f"SELECT {columns} FROM payloads ORDER BY ALL").fetchall())
            counts = store.sql("SELECT count(*) FROM samples").fetchone()
            assert store.verify() == []
        assert counts == (120,)
    assert len(found[0]) >= 240
    assert found[0] == found[1]
