"""Every prediction is traceable: one row where there must be one, and each sample's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_material import WIDTH, Numbers, Questions, halve, linear, negate
from torch.utils.data import DataLoader, IterableDataset
from torchvision import transforms

import audit
from audit.recorders.loop.numbering import EpochClock, VisitCounter
from audit.recorders.problems import RecordingWarning


class Drawn:
    """A sampler that draws what it is reported."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Any:
        return iter(self.indices)


LINEAGE = """
    SELECT s.index, s.visit, s.batch, s.position, p.index IS NOT NULL, p.input_digest = o.digest, p.batch, p.position,
           p.label = s.index % 3, p.logits
    FROM samples s LEFT JOIN predictions p USING (run_id, epoch, index, visit)
    LEFT JOIN (SELECT epoch, index, visit, arg_max(digest, stage) AS digest, count(*) AS stages FROM stage_outputs GROUP BY ALL) o
      USING (epoch, index, visit)
    ORDER BY s.epoch, s.batch, s.position
"""


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(
    st.lists(st.integers(0, 11), min_size=1, max_size=30),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(["loader", "dataset", "chunks", "moved"]),
)
def test_rows_follow_the_sampler(
    tmp_path_factory: pytest.TempPathFactory, indices: list[int], size: int, drop: bool, how: str
) -> None:
    path = tmp_path_factory.mktemp("alignment") / "lineage"
    dataset, model = Numbers(transform=transforms.Compose([halve, negate])), linear()
    expected: list[torch.Tensor] = []
    given_indices: list[int] = []
    with audit.record(path, strict=True) as run:
        chosen = run.dataset(dataset) if how == "dataset" else dataset
        loader = DataLoader(chosen, batch_size=size, sampler=Drawn(indices), drop_last=drop)
        loader = loader if how == "dataset" else run.loader(loader)
        run.model(model)
        for x, _ in loader:
            given_indices += [round(float(row[0]) * -2) for row in x]
            parts = [x[:2], x[2:]] if how == "chunks" else [x.clone() if how == "moved" else x]
            for part in parts:
                if len(part):
                    expected += list(model(part).detach())
    found = Questions(path)(LINEAGE)
    batches = [row for row in found if row[2] is not None]
    assert [row[0] for row in batches] == given_indices
    counts: dict[int, int] = {}
    for row, logits in zip(batches, expected, strict=True):
        index, visit, batch, position, predicted, same_input, p_batch, p_position, label, own = row
        if how != "dataset":
            assert visit == counts.get(index, 0)
            counts[index] = visit + 1
        assert (predicted, same_input, label, p_batch, p_position) == (True, True, True, batch, position)
        assert torch.equal(torch.tensor(own), logits)
    if how != "dataset":
        assert len(found) == len(batches), "every sample that the loop was given is in a batch"
    # Stages: each visit has one row for each of the three.
    each = Questions(path)("SELECT count(*) FROM stage_outputs GROUP BY epoch, index, visit, stage")
    assert {row[0] for row in each} <= {1}
    assert len(each) == 3 * len(found)


def test_a_failure_in_the_middle_is_a_row_and_the_loop_sees_it(tmp_path: Path) -> None:
    def loop() -> None:
        with audit.record(tmp_path / "lineage") as run:
            model = run.model(linear())
            for x, _ in run.loader(DataLoader(Numbers(fails=frozenset([5])), batch_size=4)):
                model(x)

    with pytest.raises(LookupError, match="no sample 5"):
        loop()
    ask = Questions(tmp_path / "lineage")
    assert ask.status == "failed"
    rows = ask("SELECT index, status, failed_stage, error FROM samples ORDER BY index")
    assert rows == [(n, "ok", None, None) for n in range(5)] + [(5, "failed", "load", "LookupError: no sample 5")]
    assert ask("SELECT count(*) FROM predictions") == [(4,)]


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("wrap", ["loader", "dataset"])
def test_a_loop_goes_on_after_a_failure_as_it_would(tmp_path: Path, workers: int, wrap: str) -> None:
    def collect(loader: Any) -> list[Any]:
        iterator, found = iter(loader), []
        while True:
            try:
                found.append(next(iterator)[1].tolist())
            except StopIteration:
                return found
            except LookupError as error:
                found.append((type(error), str(error)[:30] if workers == 0 else None))

    def build(dataset: Any) -> Any:
        return DataLoader(dataset, batch_size=4, num_workers=workers)

    plain = collect(build(Numbers(fails=frozenset([5]))))
    with audit.record(tmp_path / "lineage") as run:
        dataset = Numbers(fails=frozenset([5]))
        loader = run.loader(build(dataset)) if wrap == "loader" else build(run.dataset(dataset))
        assert collect(loader) == plain
    rows = Questions(tmp_path / "lineage")("SELECT index FROM samples ORDER BY index")
    assert [n for (n,) in rows] == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]


class Breaks(IterableDataset):  # type: ignore[type-arg]
    """An iterator that fails once and can go on."""

    def __init__(self) -> None:
        self.number = -1

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.number += 1
        if self.number == 3:
            raise ConnectionError("gone for a moment")
        if self.number == 8:
            raise StopIteration
        return torch.full((WIDTH,), float(self.number)), 0


@pytest.mark.parametrize("size", [None, 2])
def test_an_iterator_that_fails_and_goes_on(tmp_path: Path, size: int | None) -> None:
    def collect(loader: Any) -> list[Any]:
        iterator, found = iter(loader), []
        while True:
            try:
                found.append(next(iterator)[0].tolist())
            except StopIteration:
                return found
            except ConnectionError as error:
                found.append(str(error))

    plain = collect(DataLoader(Breaks(), batch_size=size, drop_last=size is not None))
    with audit.record(tmp_path / "lineage") as run:
        assert collect(run.loader(DataLoader(Breaks(), batch_size=size, drop_last=size is not None))) == plain


class Marker(Exception):
    pass


@pytest.mark.workers
@pytest.mark.parametrize("where", ["dataset", "transform", "collate"])
@pytest.mark.parametrize("wrap", ["loader", "dataset"])
def test_the_very_error_reaches_the_loop(tmp_path: Path, where: str, wrap: str) -> None:
    error = Marker("mine")

    def broken(*_: Any) -> Any:
        raise error

    dataset = Numbers(transform=transforms.Compose([halve, broken]) if where == "transform" else None)
    if where == "dataset":
        dataset.fails = type("All", (), {"__contains__": broken})()  # type: ignore[assignment]
    options: dict[str, Any] = {"collate_fn": broken} if where == "collate" else {}
    with audit.record(tmp_path / "lineage") as run:
        if wrap == "loader":
            loader = run.loader(DataLoader(dataset, **options))
        else:
            loader = DataLoader(run.dataset(dataset), **options)
        with pytest.raises(Marker) as caught:
            next(iter(loader))
    assert caught.value is error
    failed = Questions(tmp_path / "lineage")("SELECT failed_stage FROM failures")
    assert failed == {"dataset": [("load",)], "transform": [("broken",)], "collate": []}[where]


@pytest.mark.slow
def test_a_stop_iteration_ends_the_epoch_as_it_always_did(tmp_path: Path) -> None:
    class Stops(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 6:
                raise StopIteration
            return super().__getitem__(index)

    plain = len(list(DataLoader(Stops(), batch_size=2)))
    with audit.record(tmp_path / "lineage") as run:
        assert len(list(run.loader(DataLoader(Stops(), batch_size=2)))) == plain == 3
    assert Questions(tmp_path / "lineage")("SELECT index, status FROM failures") == [(6, "failed")]


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 2])
def test_breaking_out_early(tmp_path: Path, workers: int) -> None:
    with audit.record(tmp_path / "lineage") as run:
        loader = run.loader(DataLoader(Numbers(), batch_size=3, num_workers=workers))
        model = run.model(linear())
        for _ in run.epochs(2):
            for number, (x, _) in enumerate(loader):
                model(x)
                if number == 1:
                    break
    ask = Questions(tmp_path / "lineage")
    assert ask(
        "SELECT epoch, list(index ORDER BY index), count(DISTINCT batch) FROM lineage GROUP BY epoch ORDER BY epoch"
    ) == [
        (0, [0, 1, 2, 3, 4, 5], 2),
        (1, [0, 1, 2, 3, 4, 5], 2),
    ]
    assert ask("SELECT count(*) FROM predictions") == [(12,)]


def test_two_loaders_with_pipelines_of_their_own(tmp_path: Path) -> None:
    train = Numbers(8, transforms.Compose([halve, negate]))
    test = Numbers(4, transforms.Compose([negate]))
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(linear())
        first, second = run.loader(DataLoader(train, 4), split="train"), run.loader(DataLoader(test, 4), split="test")
        for _ in range(2):
            for loader in (first, second):
                for x, _ in loader:
                    model(x)
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT epoch, split, count(*) FROM lineage WHERE predicted IS NOT NULL GROUP BY ALL ORDER BY ALL") == [
        (0, "test", 4), (0, "train", 8), (1, "test", 4), (1, "train", 8),
    ]  # fmt: skip
    names = "SELECT split, list(o.name ORDER BY o.stage) FROM samples s JOIN stage_outputs o USING (run_id, epoch, index, visit) WHERE index = 0 AND epoch = 1 GROUP BY ALL ORDER BY ALL"
    assert ask(names) == [("test", ["load", "negate"]), ("train", ["load", "halve", "negate"])]
    last = "SELECT count(*) FROM predictions p JOIN (SELECT epoch, index, visit, arg_max(digest, stage) AS d FROM stage_outputs GROUP BY ALL) USING (epoch, index, visit) WHERE d = input_digest"
    assert ask(last) == [(24,)]


def test_two_forms_of_the_same_pipeline_keep_their_stages_in_order(tmp_path: Path) -> None:
    pipelines = [[halve, negate], [negate, negate], [negate, halve, negate]]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        for stages in pipelines:
            list(run.loader(DataLoader(Numbers(1, transforms.Compose(list(stages))))))
    names = Questions(tmp_path / "lineage")(
        "SELECT list(name ORDER BY stage) FROM stage_outputs GROUP BY visit ORDER BY visit"
    )
    assert [row[0][1:] for row in names] == [[stage.__name__ for stage in stages] for stages in pipelines]


def test_a_model_that_is_called_twice_is_graded_once(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        loader, model = run.loader(DataLoader(Numbers(), batch_size=6)), run.model(linear())
        for x, _ in loader:
            model(x)
            model(x * 0)
            model(x)
    ask = Questions(tmp_path / "lineage")
    calls = "SELECT call, operations, count(*), count(DISTINCT step) FROM predictions GROUP BY ALL ORDER BY ALL"
    assert ask(calls) == [(0, None, 12, 2), (1, ["mul"], 12, 2), (2, None, 12, 2)]
    assert ask("SELECT count(*) FROM lineage") == [(12,)]
    assert ask("SELECT number, rows, samples, evidence FROM calls WHERE number < 3 ORDER BY ALL") == [
        (0, 6, 6, "batch"), (1, 6, 6, "operations"), (2, 6, 6, "batch"),
    ]  # fmt: skip
    assert ask.warnings == []


def test_a_loop_that_fetches_ahead(tmp_path: Path) -> None:
    model = linear()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        iterator, recorded = iter(run.loader(DataLoader(Numbers(), batch_size=3))), run.model(model)
        ahead = next(iterator)
        while ahead is not None:
            current, ahead = ahead, next(iterator, None)
            # Not the same tensor, the same content: moved to a device, say.
            recorded(current[0].clone())
    ask = Questions(tmp_path / "lineage")
    found = ask("SELECT index, logits FROM predictions ORDER BY index")
    assert [index for index, _ in found] == list(range(12))
    for index, logits in found:
        assert torch.allclose(torch.tensor(logits), model(Numbers()[index][0]))


def test_log(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        for epoch in range(2):
            run.log(indices=[4, 4, 7], logits=torch.eye(3), labels=[0, 1, 1], epoch=epoch)
    found = Questions(tmp_path / "lineage")("SELECT epoch, index, visit, predicted, correct FROM lineage ORDER BY ALL")
    assert found == [(e, *row) for e in range(2) for row in [(4, 0, 0, True), (4, 1, 1, True), (7, 0, 2, False)]]


@pytest.mark.slow
def test_a_sampler_of_lists_and_odd_keys(tmp_path: Path) -> None:
    class Keyed(Numbers):
        def __getitem__(self, key: Any) -> Any:
            assert isinstance(key, (int, tuple, str)), key
            number = key if isinstance(key, int) else int(key[0])
            return super().__getitem__(number)

    with audit.record(tmp_path / "lineage", strict=True) as run:
        plain = list(DataLoader(Keyed(), batch_size=2, sampler=Drawn([(3, "wide"), "5", 7])))  # type: ignore[list-item]
        loader = run.loader(DataLoader(Keyed(), batch_size=2, sampler=Drawn([(3, "wide"), "5", 7])))  # type: ignore[list-item]
        for a, b in zip(plain, loader, strict=True):
            assert torch.equal(a[0], b[0])
    # "5" is a name, not the number of a sample.
    assert Questions(tmp_path / "lineage")("SELECT index FROM samples ORDER BY index") == [(-1,), (3,), (7,)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=200))
def test_no_visit_is_numbered_twice(drawn: list[tuple[int, int]]) -> None:
    counter = VisitCounter()
    keys = [(epoch, index, counter.next(epoch, index)) for epoch, index in drawn]
    assert len(set(keys)) == len(keys)
    first: dict[tuple[int, int], int] = {}
    if [epoch for epoch, _ in drawn] == sorted(epoch for epoch, _ in drawn):
        for epoch, index, number in keys:
            assert number == first.get((epoch, index), 0)
            first[epoch, index] = number + 1


def test_visits_take_no_memory_over_epochs() -> None:
    counter = VisitCounter()
    for epoch in range(50):
        for index in range(100):
            counter.next(epoch, index)
    assert counter.entries <= 300


def test_epochs_that_nobody_declared() -> None:
    clock = EpochClock()
    train, test = 1, 2
    assert [clock.begin(loader) for loader in (train, test, train, test, train, train, test)] == [0, 0, 1, 1, 2, 3, 3]
    clock.set(9)
    assert [clock.begin(train), clock.begin(train)] == [9, 9]


@pytest.mark.workers
def test_iterating_a_recorded_dataset_by_index_has_no_sample_too_many(tmp_path: Path) -> None:
    class Sequence(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index >= self.count:
                raise IndexError(index)
            return super().__getitem__(index)

    with audit.record(tmp_path / "lineage") as run:
        assert len(list(run.dataset(Sequence(4)))) == 4
    assert Questions(tmp_path / "lineage")("SELECT index, status, batch FROM samples ORDER BY index") == [
        (n, "ok", None) for n in range(4)
    ]


@pytest.mark.slow
def test_labels_in_an_unknown_place_are_reported(tmp_path: Path) -> None:
    class Odd(Numbers):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return {"signal": x, "species": y}

    with audit.record(tmp_path / "a") as run, pytest.warns(RecordingWarning, match="label="):
        list(run.loader(DataLoader(Odd(), 4)))
    for label in ("species", lambda item: item["species"]):
        with audit.record(tmp_path / "b", strict=True) as run:
            list(run.loader(DataLoader(Odd(), 4), label=label))
    assert Questions(tmp_path / "b")("SELECT count(*) FROM samples WHERE label <> index % 3 OR label IS NULL") == [(0,)]
    with audit.record(tmp_path / "c") as run, pytest.warns(RecordingWarning, match="finds no label"):
        assert len(list(run.loader(DataLoader(Odd(), 4), label="nowhere"))) == 3
    # One mark, however many samples there are: it must leave room for others.
    (mark,) = Questions(tmp_path / "c").warnings
    assert "'signal', 'species'" in mark
    with (
        audit.record(tmp_path / "d") as run,
        pytest.warns(RecordingWarning, match="a Tensor, which is not a class number"),
    ):
        list(run.loader(DataLoader(Odd(), 4), label="signal"))


def test_calls_that_are_of_no_batch_are_reported(tmp_path: Path) -> None:
    run = audit.record(tmp_path / "a")
    model = run.model(linear())
    for x, _ in run.loader(DataLoader(Numbers(), 4)):
        for part in x.chunk(2):
            model(torch.rand_like(part))
    with pytest.warns(
        RecordingWarning, match=r"^audit: 6 model calls could not be matched to a recorded batch and were"
    ):
        run.close()
    assert Questions(tmp_path / "a")("SELECT count(*) FROM predictions") == [(0,)]


@settings(max_examples=examples(15))
@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.sampled_from(["held", "moved", "changed", "copied"]),
    st.sets(st.integers(0, 11)),
)
@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_a_prediction_is_never_another_samples(
    tmp_path_factory: pytest.TempPathFactory, size: int, ahead: int, how: str, skipped: set[int]
) -> None:
    """Batches that are fetched ahead, skipped, and changed on their way: each prediction is its sample's, or there is none."""
    path, model, number = tmp_path_factory.mktemp("ahead") / "lineage", linear(), 0
    expected: dict[int, torch.Tensor] = {}
    with audit.record(path, strict=True) as run:
        loader = run.loader(DataLoader(Numbers(), batch_size=size))
        run.model(model)
        waiting: list[Any] = []

        def take() -> None:
            nonlocal number
            x, indices = waiting.pop(0)
            number += 1
            if number not in skipped:
                expected.update(zip(indices, model(x * 3 if how == "changed" else x).detach(), strict=True))

        for x, _ in loader:
            waiting.append((x if how == "held" else x.double().float(), [round(float(row[0])) for row in x]))
            del x
            if how == "copied":
                waiting[-1] = (waiting[-1][0] * 5, waiting[-1][1])
            if len(waiting) > ahead:
                take()
        while waiting:
            take()
    found = dict(Questions(path)("SELECT index, logits FROM predictions"))
    assert all(torch.equal(torch.tensor(found[index]), expected[index]) for index in found)
    assert len(found) == len(expected)


@pytest.mark.slow
def test_many_batches_that_are_held_wait_for_the_model(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(linear())
        held = list(run.loader(DataLoader(Numbers(200), batch_size=2)))
        for x, _ in reversed(held):
            model(x)
    assert Questions(tmp_path / "lineage")("SELECT count(*), count(DISTINCT index) FROM predictions") == [(200, 200)]


@pytest.mark.parametrize("closure", [False, True])
def test_each_step_has_its_own_learning_rate(tmp_path: Path, closure: bool) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        loader = run.loader(DataLoader(Numbers(6), batch_size=2))
        run.model(model)
        for number, (x, y) in enumerate(loader):
            optimizer.param_groups[0]["lr"] = 0.01 * (number + 1)

            def compute(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            if closure:
                optimizer.step(compute)
            else:
                compute()
                optimizer.step()
    rows = Questions(tmp_path / "lineage")("SELECT learning_rate, gradient_norm > 0 FROM steps ORDER BY step")
    assert rows == [(pytest.approx(rate), True) for rate in (0.01, 0.02, 0.03)]


class Untouched:
    """Stands for something else, as Flask's `request` does: each question to it becomes a question to the asker."""

    __slots__ = ("__inner", "__weakref__")

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"nobody may ask for {name}")


REQUEST = Untouched()


def test_objects_that_must_not_be_asked(tmp_path: Path) -> None:
    class Asking(Numbers):
        request = Untouched()

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) if id(REQUEST) else None

    dataset = Asking()
    dataset.held = [Untouched()]  # type: ignore[attr-defined]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        assert len(list(run.loader(DataLoader(dataset, batch_size=4)))) == 3
    assert Questions(tmp_path / "lineage")("SELECT count(*) FROM samples WHERE status = 'ok'") == [(12,)]
