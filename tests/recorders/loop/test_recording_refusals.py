"""Bad input, closed recordings and failing disks: a clear error or warning, never a silent gap, never a broken loop."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupting import raised_by_a_signal
from recording_material import Numbers, Questions, linear
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.errors import RecordingError, UsageError
from audit.recorders.loop.fork_safety import DELIVERY_LOCK
from audit.recorders.problems import RecordingWarning


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with audit.record(tmp_path / "lineage") as recording:
        yield recording


def test_what_is_no_loader_dataset_or_model(run: Any) -> None:
    with pytest.raises(UsageError, match=r"run\.dataset for a Dataset"):
        run.loader(Numbers())
    with pytest.raises(UsageError, match=r"run\.loader for a DataLoader"):
        run.dataset(DataLoader(Numbers()))
    for wrong, said in ((3, "not a int"), ("images", "not a str. Open it"), (Numbers, r"not a class \(Numbers\)")):
        with pytest.raises(UsageError, match=said):
            run.dataset(wrong)
    with pytest.raises(UsageError, match="torch module"):
        run.model(lambda x: x)


def test_what_is_no_epoch(run: Any) -> None:
    for wrong in ("3", 1.5, -2, None):
        with pytest.raises(UsageError, match=r"number of epochs cannot be .* Give a whole number"):
            run.epochs(wrong)
        with pytest.raises(UsageError, match=r"epoch cannot be .* Give a whole number"):
            run.epoch(wrong)
    assert list(run.epochs(torch.tensor(2))) == [0, 1]


LOGITS = torch.zeros(2, 3)
WRONG_LOGS: list[tuple[dict[str, Any], str]] = [
    ({"indices": 3, "logits": LOGITS}, "indices=3. Give"),
    ({"indices": ["a", "b"], "logits": LOGITS}, "indices="),
    ({"indices": [], "logits": torch.zeros(0, 3)}, "at least one"),
    ({"indices": [0, 1], "logits": "abc"}, "logits='abc'. Give"),
    ({"indices": [0, 1], "logits": [[1.0, 2.0], [1.0]]}, "logits="),
    ({"indices": [0, 1], "logits": torch.zeros(3, 3)}, r"shape \(3, 3\), float32, for 2 indices"),
    ({"indices": [0, 1], "logits": [[1, 2], [3, 4]]}, "int64, for 2 indices"),
    ({"indices": [0, 1], "logits": LOGITS, "labels": [0]}, r"labels=\[0\] for 2 indices"),
    ({"indices": [0, 1], "logits": LOGITS, "labels": 4}, "labels=4 for 2 indices"),
    ({"indices": [0, 1], "logits": LOGITS, "epoch": "a"}, "epoch given to run.log cannot be 'a'"),
]


def test_what_cannot_be_logged(tmp_path: Path) -> None:
    """It is said what was wrong; the loop goes on, and strictly it stops."""
    with audit.record(tmp_path / "loose") as loose, audit.record(tmp_path / "strict", strict=True) as strict:
        for given, said in WRONG_LOGS:
            with pytest.warns(RecordingWarning, match=said):
                loose.log(**given)
            with pytest.raises(RecordingError, match=said):
                strict.log(**given)
        loose.log(indices=torch.tensor([4.0, 5.0]), logits=[[0.0, 1.0], [1.0, 0.0]], labels=(1, None), epoch=2)
    ask = Questions(tmp_path / "loose")
    assert ask("SELECT epoch, index, label, predicted FROM predictions ORDER BY index") == [
        (2, 4, 1, 1),
        (2, 5, None, 0),
    ]
    assert len([text for text in ask.warnings if text.startswith("Recording failed: ")]) == len(WRONG_LOGS)


def test_an_unclear_output_is_reported_with_what_to_do(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, x

    with audit.record(tmp_path / "lineage") as run:
        model = run.model(Pair())
        for x, _ in run.loader(DataLoader(Numbers(4), 4)):
            with pytest.warns(
                RecordingWarning, match="more than one entry .* Wrap it in a module that returns one"
            ) as reported:
                model(x)
            assert reported[0].filename == __file__


def test_a_warning_points_at_the_users_own_line(tmp_path: Path) -> None:
    run = audit.record(tmp_path / "lineage")
    run.model(linear())
    with pytest.warns(RecordingWarning, match="never called") as reported:
        run.close()
    assert [warning.filename for warning in reported] == [__file__]


@pytest.mark.workers
def test_wrapping_twice(run: Any) -> None:
    plain = DataLoader(Numbers())
    loader, dataset, model = run.loader(plain), run.dataset(Numbers()), run.model(linear())
    for again in (loader, plain):
        with pytest.raises(UsageError, match="recorded already"):
            run.loader(again)
    with pytest.raises(UsageError, match="recorded already"):
        run.dataset(dataset)
    with pytest.raises(UsageError, match="recorded already"):
        run.dataset(torch.utils.data.Subset(dataset, [1]))
    with pytest.raises(UsageError, match="not both"):
        run.loader(DataLoader(torch.utils.data.ConcatDataset([Numbers(), dataset])))
    with pytest.raises(UsageError, match="recorded already"):
        run.model(model)


@pytest.mark.workers
def test_a_loader_that_is_being_iterated(run: Any) -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    with pytest.raises(UsageError, match="before its first epoch"):
        run.loader(loader)
    del iterator
    plain = DataLoader(Numbers(), batch_size=2)
    iterator = iter(plain)
    next(iterator)
    with pytest.warns(RecordingWarning, match="being iterated already"):
        run.loader(plain)


def test_a_fresh_loader_warns_of_nothing(run: Any) -> None:
    loader = DataLoader(Numbers(), batch_size=2)
    list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.loader(loader)


@pytest.mark.workers
def test_closed_then_used(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        loader = run.loader(DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True))
        own = DataLoader(run.dataset(Numbers()), 4, num_workers=1, persistent_workers=True)
        model = run.model(linear())
        first, second = list(loader), list(own)
    for use in (
        lambda: run.loader(DataLoader(Numbers())),
        lambda: run.dataset(Numbers()),
        lambda: run.model(nn.Linear(1, 1)),
        lambda: run.log(indices=[0], logits=torch.zeros(1, 2)),
        lambda: run.parents([]),
    ):
        with pytest.raises(UsageError, match="closed"):
            use()
    with pytest.warns(RecordingWarning, match="this loop is not recorded"):
        after = list(loader)
    # The workers are the same, and so is what they yield.
    for a, b in zip([*first, *second], [*after, *own], strict=True):
        assert torch.equal(a[0], b[0])
        model(b[0])
    assert run.close().status == "complete"
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*) FROM samples") == [(24,)]


@pytest.mark.workers
def test_the_users_own_loader_is_untouched(tmp_path: Path) -> None:
    plain = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        loader = run.loader(plain)
        for _ in range(2):
            recorded, own = list(loader), list(plain)
            assert all(torch.equal(a[0], b[0]) for a, b in zip(recorded, own, strict=True))
        assert isinstance(loader, DataLoader)
        assert (len(loader), loader.batch_size, loader.dataset) == (3, 4, plain.dataset)
        assert loader.sampler is plain.sampler
        copied = copy.copy(loader)
        assert type(copied) is DataLoader
    assert Questions(tmp_path / "lineage")("SELECT count(*) FROM samples") == [(24,)]


class Holds(Numbers):
    """Holds something that does not pickle."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.options = {"lookup": [held]}


@pytest.mark.workers
def test_an_unpicklable_dataset_under_spawn(run: Any) -> None:
    dataset = Holds(threading.Lock())
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(Exception, match="pickle"):
        iter(loader)
    with pytest.raises(UsageError, match=r"loader\.dataset\.options\['lookup'\]\[0\] does not pickle") as caught:
        iter(run.loader(loader))
    assert isinstance(caught.value.__cause__, (TypeError, pickle.PicklingError))
    lambdas = DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn", collate_fn=lambda items: items)
    with pytest.raises(UsageError, match=r"loader\.collate_fn does not pickle"):
        iter(run.loader(lambdas))


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.workers
def test_what_only_the_recording_cannot_pickle_leaves_the_loop_alone(tmp_path: Path) -> None:
    dataset = TensorDataset(torch.arange(9.0), torch.arange(9))
    torch.manual_seed(1)
    expected = [int(label) for _, label in DataLoader(dataset, shuffle=True)], torch.get_rng_state().tolist()
    with audit.record(tmp_path / "lineage") as run:
        loader = run.loader(
            DataLoader(dataset, shuffle=True, num_workers=1, multiprocessing_context="spawn"),
            label=lambda item: item[1],
        )
        torch.manual_seed(1)
        with pytest.warns(RecordingWarning, match="could not be started with the recording"):
            batches = [int(label) for _, label in loader]
        assert (batches, torch.get_rng_state().tolist()) == expected
    assert any("could not be started" in text for text in Questions(tmp_path / "lineage").warnings)


class Dies(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.workers
@pytest.mark.parametrize("wrap", ["loader", "dataset"])
def test_a_worker_that_dies(tmp_path: Path, wrap: str) -> None:
    def loop() -> None:
        with audit.record(tmp_path / "lineage") as run:
            dataset = run.dataset(Dies()) if wrap == "dataset" else Dies()
            loader = DataLoader(dataset, batch_size=4, num_workers=1)
            list(run.loader(loader) if wrap == "loader" else loader)

    # Killed while it hands over a batch, it leaves a broken connection: that is then what any loop sees.
    with pytest.raises((RuntimeError, ConnectionError, EOFError)) as caught:
        loop()
    ask = Questions(tmp_path / "lineage")
    assert ask.status == "failed"
    assert any(type(caught.value).__name__ in text for text in ask.warnings)
    rows = [n for (n,) in ask("SELECT index FROM samples ORDER BY index")]
    # The batch before may have died on its way with the worker that had made it: then the loop was not given it either.
    assert rows == [0, 1, 2, 3] or (wrap == "loader" and not rows)


@pytest.mark.workers
def test_a_worker_that_dies_while_the_recording_ends(tmp_path: Path) -> None:
    """torch tells of it by an error in the main thread, wherever that is: the run is ended all the same."""
    held, reported = threading.Event(), threading.Event()

    def hold() -> None:
        with DELIVERY_LOCK:
            held.set()
            reported.wait(30)

    run = audit.record(tmp_path / "lineage")
    # So few that their rows fit into the pipe: the worker waits for nobody who reads it.
    batches = iter(DataLoader(run.dataset(Numbers(24)), 4, num_workers=1))
    next(batches)
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    # Their rows have been sent, and wait to be taken in.
    list(batches)
    killed = "DataLoader worker (pid 1) is killed by signal: Killed."
    with raised_by_a_signal(killed, reported, after=0.5), pytest.warns(RecordingWarning, match="killed by signal"):
        run.close("failed")
    holder.join()
    ask = Questions(tmp_path / "lineage")
    assert ask.status == "failed"
    assert any("killed by signal" in mark for mark in ask.warnings)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_a_store_that_can_no_longer_be_written(tmp_path: Path, strict: bool) -> None:
    """A file where the parts should go; the loop goes on, loudly, and strictly it stops."""
    run = audit.record(tmp_path / "lineage", strict=strict)
    folder = tmp_path / "lineage" / "runs" / run.run_id
    shutil.rmtree(folder)
    folder.write_text("in the way")
    loader, model = run.loader(DataLoader(Numbers(200), batch_size=2)), run.model(linear())

    def loop() -> int:
        run._state._writer._interval = 0
        return sum(len(model(x)) for x, _ in loader)

    if strict:
        with pytest.raises(RecordingError), run:
            loop()
    else:
        with pytest.warns(RecordingWarning), run:
            assert loop() == 200
    assert run.run.status == "interrupted"
    assert run.run.warnings


@pytest.mark.parametrize("strict", [False, True])
def test_a_value_that_cannot_be_recorded(tmp_path: Path, strict: bool) -> None:
    class Nasty:
        def __reduce_ex__(self, _: Any) -> Any:
            raise ZeroDivisionError("not to be described")

        def __repr__(self) -> str:
            raise ZeroDivisionError("not even shown")

        __getattr__ = property(lambda self: 1 / 0)  # type: ignore[misc]

    class Odd(Numbers):
        def __getitem__(self, index: int) -> Any:
            return Nasty(), 1

    with audit.record(tmp_path / "lineage", strict=strict) as run:
        loader = run.loader(DataLoader(Odd(3), batch_size=None))
        if strict:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordingWarning)
            assert len(list(loader)) == 3


def test_bad_settings(tmp_path: Path) -> None:
    for options in (
        {"capture": "everything"},
        {"capture_where": "los > 1"},
        {"capture_budget": "1GB"},
        {"name": "a/b"},
        {"name": 3},
        {"tags": ["a"]},
    ):
        with pytest.raises(UsageError):
            audit.record(tmp_path / "lineage", **options)  # type: ignore[arg-type]


def test_interrupted_and_failed_loops_say_so(tmp_path: Path) -> None:
    for error, status in ((KeyboardInterrupt(), "interrupted"), (ValueError("mine"), "failed")):
        with pytest.raises(type(error)), audit.record(tmp_path / status):
            raise error
        assert Questions(tmp_path / status).status == status


@pytest.mark.workers
def test_capture_where_keeps_the_payloads_it_means(tmp_path: Path) -> None:
    for wrap in ("loader", "dataset"):
        with audit.record(tmp_path / wrap, capture="full", capture_where="index < 3", strict=True) as run:
            model = run.model(linear())
            if wrap == "loader":
                loader = run.loader(DataLoader(Numbers(), 5))
            else:
                loader = DataLoader(run.dataset(Numbers()), 5)
            for x, _ in loader:
                model(x)
        assert Questions(tmp_path / wrap)("SELECT DISTINCT index FROM payloads ORDER BY 1") == [(0,), (1,), (2,)]


@pytest.mark.workers
def test_the_estimate_knows_datasets_and_epochs(tmp_path: Path) -> None:
    for wrap in ("loader", "dataset"):
        with audit.record(tmp_path / wrap, capture_budget=2**30) as run:
            dataset = Numbers(9)
            loader = run.loader(DataLoader(dataset)) if wrap == "loader" else DataLoader(run.dataset(dataset))
            for _ in run.epochs(4):
                list(loader)
        capture = Questions(tmp_path / wrap)("SELECT capture FROM runs")[0][0]
        assert "for 36 samples" in capture, capture


@pytest.mark.workers
def test_no_thread_or_hook_outlives_the_recording(tmp_path: Path) -> None:
    def ours() -> dict[threading.Thread, str]:
        # Other libraries of this process start threads when they like; every one of ours is named after us.
        return {thread: thread.name for thread in threading.enumerate() if thread.name.startswith("audit-")}

    before = ours()
    model = linear()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        for x, _ in DataLoader(run.dataset(Numbers()), 4, num_workers=1):
            model(x)
        started = {name for thread, name in ours().items() if thread not in before}
    assert started == {"audit-writer", "audit-channel"}
    left = [thread for thread in ours() if thread not in before]
    for thread in left:
        thread.join(60)
    assert [thread.name for thread in left if thread.is_alive()] == []
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
