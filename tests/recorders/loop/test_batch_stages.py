"""Collate functions, and transforms that a loop applies to whole batches, are stages with an output for each sample."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from observing_material import difference
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import audit
from audit import values
from audit.errors import NotFound

COUNT = 6
LONGEST = 7


class Sequences(Dataset[Any]):
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.arange(1.0, 2.0 + (index * 5) % 7) * (index + 1), index % 2


class Pictures(Sequences):
    def __init__(self) -> None:
        self.pictures = torch.arange(COUNT * 48.0).reshape(COUNT, 3, 4, 4)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pictures[index], index % 2


def pad(batch: list[Any]) -> Any:
    return pad_sequence([x for x, _ in batch], batch_first=True), torch.tensor([y for _, y in batch])


def pad_time_first(batch: list[Any]) -> Any:
    return pad_sequence([x for x, _ in batch]), torch.tensor([y for _, y in batch])


def sort_and_pad(batch: list[Any]) -> Any:
    return pad(sorted(batch, key=lambda item: -len(item[0])))


def drop_and_pad(batch: list[Any]) -> Any:
    return pad([item for item in batch if len(item[0]) > 2])


def standardise(batch: list[Any]) -> Any:
    x, y = pad(batch)
    return (x - x.mean()) / x.std(), y


def outputs(store: Path) -> dict[int, list[tuple[str, str, str]]]:
    query = """SELECT index, list((path, o.name, digest) ORDER BY o.stage)
               FROM stage_outputs o JOIN stages USING (run_id, stage) GROUP BY index ORDER BY index"""
    with audit.open(store) as lineage:
        return dict(lineage.sql(query).fetchall())


def record(store: Path, collate: Any, workers: int = 0) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, strict=True) as run:
            batches = list(run.loader(DataLoader(Sequences(), 3, collate_fn=collate, num_workers=workers)))
    return batches, run.run


@pytest.mark.parametrize("collate", [pad, pad_time_first, sort_and_pad, drop_and_pad])
def test_a_collate_function_is_a_stage_of_the_samples_it_pads(collate: Any, tmp_path: Path) -> None:
    plain = list(DataLoader(Sequences(), 3, collate_fn=collate))
    batches, run = record(tmp_path, collate)
    assert difference(plain, batches) is None
    assert run.unrecorded == []
    rows = [row for x, _ in batches for row in x.unbind(1 if collate is pad_time_first else 0)]
    expected = {values.digest(row) for row in rows}
    for index, found in outputs(tmp_path).items():
        item = Sequences()[index][0]
        own = [row for row in rows if torch.equal(row[: len(item)], item) and not row[len(item) :].any()]
        stages = [("0", "load", values.digest(item))]
        if own:
            stages.append(("batch.collate", collate.__name__, values.digest(own[0])))
        assert found == stages
        expected -= {digest for *_, digest in found}
    assert not expected


@pytest.mark.workers
def test_the_same_rows_with_workers(tmp_path: Path) -> None:
    record(tmp_path / "none", pad)
    record(tmp_path / "two", pad, workers=2)
    assert outputs(tmp_path / "none") == outputs(tmp_path / "two")


def test_a_prediction_of_a_sorted_batch_is_its_own_samples(tmp_path: Path) -> None:
    model = nn.Linear(LONGEST, 2)

    def widen(batch: list[Any]) -> Any:
        x, y = sort_and_pad(batch)
        return nn.functional.pad(x, (0, LONGEST - x.shape[1])), y

    with audit.record(tmp_path, strict=True) as run:
        run.model(model)
        for x, _ in run.loader(DataLoader(Sequences(), COUNT, collate_fn=widen)):
            model(x)
    with audit.open(tmp_path) as store:
        query = "SELECT index, logits, label FROM predictions ORDER BY index"
        for index, logits, label in store.sql(query).fetchall():
            item, own = Sequences()[index]
            padded = nn.functional.pad(item, (0, LONGEST - len(item)))
            assert torch.allclose(torch.tensor(logits), model(padded[None])[0], atol=1e-5)
            assert label == own


def test_what_cannot_be_assigned_is_said_and_not_stored(tmp_path: Path) -> None:
    _, run = record(tmp_path / "not", standardise)
    (text,) = run.unrecorded
    assert "standardise" in text
    assert "@audit.stage" in text
    assert {len(found) for found in outputs(tmp_path / "not").values()} == {1}
    batches, run = record(tmp_path / "named", audit.stage(standardise))
    assert run.unrecorded == []
    named = outputs(tmp_path / "named")
    assert [named[index][1] for index in range(3)] == [
        ("batch.collate", "standardise", values.digest(row)) for row in batches[0][0]
    ]


@pytest.mark.parametrize("collate", [list, lambda batch: tuple(zip(*batch, strict=True)), lambda batch: batch])
def test_a_collate_function_that_hands_items_on_is_not_a_stage(collate: Any, tmp_path: Path) -> None:
    _, run = record(tmp_path, collate)
    assert run.unrecorded == []
    assert {len(found) for found in outputs(tmp_path).values()} == {1}


def test_replay_says_what_it_does_not_compare(tmp_path: Path) -> None:
    record(tmp_path, pad)
    with audit.open(tmp_path) as store:
        replayed = store.replay(dataset=Sequences())
        assert (replayed.checked, replayed.identical) == (COUNT, COUNT)
        assert replayed.not_compared == {"batch.collate (pad)": COUNT}
        trace = store.trace(index=1)
        assert torch.equal(trace.value(1)[:6], Sequences()[1][0])
        assert {one.status for one in store.check(only=["stage_coverage"]).outcomes} == {"pass"}


def loop(stage: Any, store: Path | None, model: nn.Module) -> list[torch.Tensor]:
    """Train nothing: two passes with a random transform of whole batches."""
    torch.manual_seed(0)
    loader = DataLoader(Pictures(), 4)
    if store is None:
        return [model(stage(x / 255)) for _ in range(2) for x, _ in loader]
    with audit.record(store, strict=True, capture="digest") as run:
        recorded, transform = run.loader(loader), run.stage(stage)
        run.model(model)
        return [model(transform(x / 255)) for _ in range(2) for x, _ in recorded]


def test_a_transform_of_whole_batches(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).requires_grad_(False)
    augment = v2.Compose([v2.RandomHorizontalFlip(0.5), v2.Normalize([0.5] * 3, [0.5] * 3)])
    assert difference(loop(augment, None, model), loop(augment, tmp_path, model)) is None
    with audit.open(tmp_path) as store:
        query = """SELECT s.path, o.digest = p.input_digest, p.operations, o.changed, o.microseconds
                   FROM predictions p JOIN stage_outputs o USING (run_id, epoch, index, visit) JOIN stages s USING (run_id, stage)
                   WHERE s.path LIKE 'batch.%'"""
        assert store.sql(query).fetchall() == [("batch.Compose", True, None, True, None)] * (2 * COUNT)
        assert {one.status for one in store.check(only=["alignment", "stage_coverage"]).outcomes} == {"pass"}
        with pytest.raises(NotFound, match="whole batch"):
            store.trace(index=0).value(1)


def test_several_stages_and_two_calls_of_one(tmp_path: Path) -> None:
    double, shift = (lambda x: x * 2), (lambda x: x + 1)
    with audit.record(tmp_path, strict=True) as run:
        first, second = run.stage(double, name="double"), run.stage(shift, name="shift")
        for x, _ in run.loader(DataLoader(Pictures(), 3)):
            first(second(first(x)))
    for index, found in outputs(tmp_path).items():
        item = Pictures()[index][0]
        expected = [item, item * 2, item * 2 + 1, (item * 2 + 1) * 2]
        paths = ["0", "batch.double", "batch.shift", "batch.double#2"]
        assert [(path, digest) for path, _, digest in found] == list(
            zip(paths, map(values.digest, expected), strict=True)
        )


def test_a_batch_that_is_not_recorded_is_not_stored_as_one(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with audit.record(tmp_path) as run:
            stage = run.stage(lambda x: x + 1, name="add")
            list(run.loader(DataLoader(Pictures(), 3)))
            assert torch.equal(stage(torch.zeros(3, 3, 4, 4)), torch.ones(3, 3, 4, 4))
    assert any("did not see" in str(one.message) for one in warned)
    (text,) = run.run.unrecorded or []
    assert "run.stage(add)" in text
    assert {len(found) for found in outputs(tmp_path).values()} == {1}
