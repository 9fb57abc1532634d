"""The label that a collated batch has for each sample is recorded where the inputs show which row the sample is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import audit

COUNT, BATCH = 12, 4
LABELS = [0, 1, 1, 2, 0, 0, 2, 1, 0, 2, 1, 0]
REVERSED = [LABELS[index - index % BATCH + BATCH - 1 - index % BATCH] for index in range(COUNT)]
Items = list[Any]


class Sequences(Dataset[Any]):
    """Sequences of numbers of different lengths; the first two of them begin alike."""

    def __init__(self, *, length: int | None = None) -> None:
        self.values = torch.rand(COUNT, 20, generator=torch.Generator().manual_seed(3))
        self.values[1, :4] = self.values[0, :4]
        self.length = length

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.values[index][: self.length or 5 + (index * 7) % 11], LABELS[index]


class Named(Sequences):
    """The same as mappings."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "label": y}


def recorded(place: Path, dataset: Any, collate: Callable[[Items], Any] | None, **options: Any) -> list[int | None]:
    with audit.record(place, capture="digest") as run:
        for _ in run.loader(DataLoader(dataset, BATCH, collate_fn=collate), **options):
            pass
    with audit.open(place) as store:
        rows = store.sql("SELECT label, batch_label FROM samples ORDER BY index").fetchall()
    assert [label for label, _ in rows] == LABELS
    return [label for _, label in rows]


def pad(items: Items) -> torch.Tensor:
    return pad_sequence([x for x, _ in items], batch_first=True)


def labels(items: Items) -> torch.Tensor:
    return torch.tensor([y for _, y in items])


def one_hot(items: Items) -> torch.Tensor:
    return functional.one_hot(labels(items), 3)


KNOWN: dict[str, tuple[Callable[[Items], Any], list[int]]] = {
    "kept": (lambda items: (pad(items), labels(items)), LABELS),
    "sorted together": (lambda items: (pad(items[::-1]), labels(items[::-1])), LABELS),
    "inputs sorted alone": (lambda items: (pad(items[::-1]), labels(items)), REVERSED),
    "labels sorted alone": (lambda items: (pad(items), labels(items).flip(0)), REVERSED),
    "one-hot": (lambda items: (pad(items), one_hot(items)), LABELS),
    "smoothed": (lambda items: (pad(items), one_hot(items) * 0.9 + 0.1 / 3), LABELS),
    "as fractions": (lambda items: (pad(items), labels(items).float()[:, None]), LABELS),
    "as a list": (lambda items: ([x for x, _ in items], [y for _, y in items]), LABELS),
    "ignored": (lambda items: (pad(items), torch.full((BATCH,), -100)), [-100] * COUNT),
    "renumbered": (lambda items: (pad(items), labels(items) + 1), [label + 1 for label in LABELS]),
    "named": (lambda items: {"x": pad(items[::-1]), "labels": labels(items)}, REVERSED),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_label_in_the_batch_is_recorded(tmp_path: Path, name: str) -> None:
    collate, expected = KNOWN[name]
    assert recorded(tmp_path, Sequences(), collate) == expected


def cut_off(items: Items) -> Any:
    return torch.stack([x[:4] for x, _ in items]), labels(items).flip(0)


mix = v2.MixUp(num_classes=3)


def mix_alone(items: Items) -> Any:
    """Pictures that are mixed, with the labels as they were."""
    x, _ = mix(torch.stack([x for x, _ in items])[:, None, None, :], labels(items))
    return x, labels(items).flip(0)


UNKNOWN: dict[str, tuple[Any, Callable[[Items], Any] | None]] = {
    "torch's own": (Sequences(length=6), None),
    "mixed": (Sequences(length=16), mix_alone),
    "changed at random": (Sequences(), lambda items: ((x := pad(items)) + torch.rand_like(x), labels(items).flip(0))),
    "soft": (Sequences(), lambda items: (pad(items), one_hot(items) * 0.6 + one_hot(items).roll(1, 1) * 0.3)),
    "several numbers": (Sequences(), lambda items: (pad(items), torch.arange(BATCH), labels(items))),
    "two views": (
        Sequences(length=6),
        lambda items: (torch.cat([pad(items), pad(items)]), torch.cat([labels(items), labels(items).flip(0)])),
    ),
    "vouched for": (
        Sequences(),
        audit.stage(lambda items: ((x := pad(items)) + torch.rand_like(x), labels(items).flip(0))),
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_certain_is_not_recorded(tmp_path: Path, name: str) -> None:
    dataset, collate = UNKNOWN[name]
    assert recorded(tmp_path, dataset, collate) == [None] * COUNT


def test_rows_that_look_alike_are_not_compared(tmp_path: Path) -> None:
    found = recorded(tmp_path, Sequences(), cut_off)
    assert found == [None, None, *REVERSED[2:]]


@pytest.mark.parametrize(("finder", "is_known"), [("label", True), (lambda item: item["label"], False)])
def test_labels_that_the_user_names_are_found_by_their_key(tmp_path: Path, finder: Any, is_known: bool) -> None:
    def collate(items: Items) -> Any:
        x = pad_sequence([item["x"] for item in items[::-1]], batch_first=True)
        return {"x": x, "class": torch.arange(BATCH), "label": torch.tensor([item["label"] for item in items])}

    assert recorded(tmp_path, Named(), collate, label=finder) == (REVERSED if is_known else [None] * COUNT)


@pytest.mark.workers
def test_workers_send_the_labels_of_their_batches(tmp_path: Path) -> None:
    loader = DataLoader(
        Sequences(), BATCH, collate_fn=KNOWN["inputs sorted alone"][0], num_workers=2, multiprocessing_context="fork"
    )
    with audit.record(tmp_path) as run:
        for _ in run.loader(loader):
            pass
    with audit.open(tmp_path) as store:
        assert store.sql("SELECT list(batch_label ORDER BY index) FROM samples").fetchall() == [(REVERSED,)]


@given(data=st.data())
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_arrangement_of_inputs_and_labels_is_recorded_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = data.draw(st.permutations(range(BATCH)))
    order = data.draw(st.permutations(range(BATCH)))

    def collate(items: Items) -> Any:
        return pad([items[row] for row in rows]), labels([items[row] for row in order])

    found = recorded(tmp_path_factory.mktemp("store"), Sequences(), collate)
    for first in range(0, COUNT, BATCH):
        given_labels = [LABELS[first + row] for row in order]
        assert [found[first + row] for row in rows] == given_labels


def test_a_trace_shows_a_label_that_is_another_in_the_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, Sequences(), KNOWN["inputs sorted alone"][0])
    with audit.open(tmp_path) as store:
        changed, kept = store.trace(index=0), store.trace(index=1)
        assert [trace.as_json()["batch_label"] for trace in (changed, kept)] == [2, 1]
        changed.show()
        assert "label   0  2 in the batch" in capsys.readouterr().out
        kept.show()
        assert "in the batch" not in capsys.readouterr().out
