"""Collate functions: a prediction is stored for the sample that its row was made of, or it is not stored and the run says so."""

from __future__ import annotations

import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

import audit

COUNT, BATCH = 12, 4
LABELS = [0, 1, 1, 2, 0, 0, 2, 1, 0, 2, 1, 0]


class Pictures(Dataset[Any]):
    """Pictures of noise, each another."""

    def __init__(self) -> None:
        self.pictures = torch.rand(COUNT, 3, 6, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.pictures[index], LABELS[index]


class Sequences(Pictures):
    """Sequences of numbers, of different lengths."""

    def __getitem__(self, index: int) -> Any:
        return self.pictures[index].flatten()[: 5 + (index * 7) % 11], LABELS[index]


class Words(Pictures):
    """Texts as numbers."""

    def __getitem__(self, index: int) -> Any:
        return torch.arange(8) + 300 * (index + 1), LABELS[index]


class Flat(Sequences):
    """Pictures that are grey all over, so that one is a scaled form of any other."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 6, 6), index + 1.0), LABELS[index]


class RowNumbers(nn.Module):
    """Answers with the number of each row: what is stored of it shows which row a sample was taken for."""

    axis = 0

    def forward(self, x: Any, *_: Any) -> torch.Tensor:
        count = x.shape[self.axis] if isinstance(x, torch.Tensor) else len(x)
        return torch.stack([torch.arange(float(count)), torch.zeros(count)], dim=1)


def record(
    folder: Path, dataset: Any, collate: Any, *, axis: int = 0, call: Callable[[Any, Any], Any] | None = None
) -> tuple[list[tuple[int, int]], list[Any], list[str]]:
    """Record a pass; return predictions as (index, row), the calls, and the warnings."""
    model: Any = RowNumbers()
    model.axis = axis
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with audit.record(folder, capture="digest") as run:
            run.model(model)
            for batch in run.loader(DataLoader(dataset, BATCH, collate_fn=collate)):
                if call is not None:
                    call(model, batch)
                else:
                    model(batch[0])
    with audit.open(folder) as store:
        rows = store.sql("SELECT index, logits[1]::INTEGER, label FROM predictions ORDER BY index, call").fetchall()
        calls = store.sql("SELECT samples, reason FROM calls ORDER BY number").fetchall()
    assert all(label in (None, LABELS[index]) for index, _, label in rows)
    return [(index, row) for index, row, _ in rows], calls, [str(one.message) for one in warned]


IN_ORDER = [(index, index % BATCH) for index in range(COUNT)]
REVERSED = [(index, BATCH - 1 - index % BATCH) for index in range(COUNT)]


def labels(items: list[Any]) -> torch.Tensor:
    return torch.tensor([y for _, y in items])


def stack(items: list[Any]) -> Any:
    return torch.stack([x for x, _ in items]), labels(items)


def pad(items: list[Any]) -> Any:
    return pad_sequence([x for x, _ in items], batch_first=True), labels(items)


def pad_time_first(items: list[Any]) -> Any:
    return pad_sequence([x for x, _ in items]), labels(items)


def pad_left(items: list[Any]) -> Any:
    longest = max(len(x) for x, _ in items)
    return torch.stack([functional.pad(x, (longest - len(x), 0)) for x, _ in items]), labels(items)


def cut_off(items: list[Any]) -> Any:
    return torch.stack([x[:4] for x, _ in items]), labels(items)


def reverse_in_place(items: list[Any]) -> Any:
    items.reverse()
    return pad(items)


def scale(items: list[Any]) -> Any:
    x, y = stack(items[::-1])
    return (x - torch.rand(3, 1, 1)) / 0.25, y


def standardise(items: list[Any]) -> Any:
    x, y = stack(items[::-1])
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), y


def quantise(items: list[Any]) -> Any:
    x, y = stack(items)
    return (x * 255).round().byte(), y


def flatten(items: list[Any]) -> Any:
    x, y = stack(items[::-1])
    return x.flatten(1).double(), y


def named(items: list[Any]) -> Any:
    x, y = stack(items[::-1])
    return {"pixel_values": x.half(), "labels": y}


def zipped(items: list[Any]) -> Any:
    return tuple(zip(*items[::-1], strict=True))


def two_views(items: list[Any]) -> Any:
    x, y = stack(items)
    return torch.cat([x, x.flip(1)]), y


@pytest.mark.parametrize(
    ("collate", "dataset", "expected"),
    [
        (stack, Pictures, IN_ORDER),
        (stack, Flat, IN_ORDER),
        (pad, Sequences, IN_ORDER),
        (pad_time_first, Sequences, IN_ORDER),
        (pad_left, Sequences, IN_ORDER),
        (cut_off, Sequences, IN_ORDER),
        (reverse_in_place, Sequences, REVERSED),
        (scale, Pictures, REVERSED),
        (standardise, Pictures, REVERSED),
        (quantise, Pictures, IN_ORDER),
        (flatten, Pictures, REVERSED),
        (named, Pictures, REVERSED),
        (zipped, Pictures, REVERSED),
        (lambda items: default_collate(items[::-1]), Flat, REVERSED),
    ],
)
def test_rows_that_are_proved_are_their_own_samples(tmp_path: Path, collate: Any, dataset: Any, expected: Any) -> None:
    def call(model: Any, batch: Any) -> None:
        model(list(batch[0]) if collate is zipped else batch["pixel_values"] if collate is named else batch[0])

    rows, calls, _ = record(tmp_path, dataset(), collate, axis=int(collate is pad_time_first), call=call)
    assert rows == expected
    assert calls == [(BATCH, None)] * 3


def square(items: list[Any]) -> Any:
    x, y = stack(items)
    return x.square(), y


def pool(items: list[Any]) -> Any:
    return torch.stack([x.mean((1, 2)) for x, _ in items[::-1]]), labels(items[::-1])


def mix(items: list[Any]) -> Any:
    x, y = stack(items)
    return 0.6 * x + 0.4 * x.flip(0), y


def mix_little(items: list[Any]) -> Any:
    x, y = stack(items)
    return 0.9996 * x + 0.0004 * x.flip(0), y


def mix_least(items: list[Any]) -> Any:
    x, y = stack(items)
    return 2 * (x + 1e-5 * x.flip(0)) - 1, y


def mix_in_bytes(items: list[Any]) -> Any:
    x, y = stack(items)
    return (255 * (0.996 * x + 0.004 * x.flip(0))).byte(), y


def mix_coarsely(items: list[Any]) -> Any:
    x, y = stack(items)
    return (2 * (0.9996 * x + 0.0004 * x.flip(0)) - 1).bfloat16(), y


def paint_one_value(items: list[Any]) -> Any:
    x, y = stack(items)
    x = x * 2
    x[:, 1, 3, 3] = x.flip(0)[:, 1, 3, 3]
    return x, y


def are_set(items: list[Any]) -> Any:
    return torch.stack([x > 0 for x, _ in items[::-1]]), labels(items[::-1])


def as_bytes(items: list[Any]) -> Any:
    return torch.stack([x.byte() for x, _ in items]), labels(items)


def fade(items: list[Any]) -> Any:
    x, y = stack(items)
    return x * torch.tensor([0.5, 0.6, 0.7, 0.8]).reshape(4, 1, 1, 1), y


def negatives(items: list[Any]) -> Any:
    return torch.rand(len(items), 3, 6, 6), labels(items)


@pytest.mark.parametrize(
    ("collate", "dataset"),
    [
        *(
            (square, Pictures),
            (pool, Pictures),
            (mix, Pictures),
            (negatives, Pictures),
            (scale, Flat),
            (standardise, Flat),
        ),
        *((mix_little, Pictures), (mix_least, Pictures), (mix_in_bytes, Pictures), (mix_coarsely, Pictures)),
        *((paint_one_value, Pictures), (are_set, Pictures), (are_set, Words), (as_bytes, Words), (fade, Pictures)),
    ],
)
def test_rows_that_cannot_be_proved_are_not_matched(tmp_path: Path, collate: Any, dataset: Any) -> None:
    rows, calls, warned = record(tmp_path, dataset(), collate)
    assert rows == []
    assert [samples for samples, _ in calls] == [0, 0, 0]
    assert all(f"The collate function {collate.__name__}" in reason for _, reason in calls)
    (said,) = [text for text in warned if "Predictions were not stored" in text]
    assert collate.__name__ in said
    assert "@audit.stage" in said


def test_the_users_word_matches_rows_that_cannot_be_proved(tmp_path: Path) -> None:
    rows, _, warned = record(tmp_path, Pictures(), audit.stage(square))
    assert rows == IN_ORDER
    assert not [text for text in warned if "Predictions" in text]


def test_samples_that_are_left_out_have_no_prediction(tmp_path: Path) -> None:
    class Broken(Pictures):
        def __getitem__(self, index: int) -> Any:
            return None if index % 5 == 0 else super().__getitem__(index)

    def kept(items: list[Any]) -> Any:
        return default_collate([item for item in items if item is not None])

    rows, _, _ = record(tmp_path, Broken(), kept)
    left = [[n for n in range(first, first + BATCH) if n % 5] for first in range(0, COUNT, BATCH)]
    assert rows == [(index, row) for batch in left for row, index in enumerate(batch)]


def test_views_of_one_sample_are_all_its_own(tmp_path: Path) -> None:
    class Twice(Pictures):
        def __getitem__(self, index: int) -> Any:
            return (self.pictures[index], self.pictures[index].flip(1)), LABELS[index]

    def joined(items: list[Any]) -> Any:
        return torch.cat([torch.stack([views[n] for views, _ in items]) for n in range(2)]), labels(items)

    rows, _, _ = record(tmp_path, Twice(), joined)
    assert rows == [(index, index % BATCH + times * BATCH) for index in range(COUNT) for times in range(2)]


def test_another_tensor_of_the_batch_is_not_taken_for_the_samples(tmp_path: Path) -> None:
    def with_negatives(items: list[Any]) -> Any:
        x, y = stack(items)
        return x, x.roll(1, 0).square(), y

    def call(model: Any, batch: Any) -> None:
        x, other, _ = batch
        model(x, other)
        model(other)

    rows, calls, _ = record(tmp_path, Pictures(), with_negatives, call=call)
    assert rows == IN_ORDER
    assert [samples for samples, _ in calls] == [BATCH, 0] * 3


class Graph:
    def __init__(self, nodes: torch.Tensor, label: Any) -> None:
        self.nodes, self.label = nodes, label

    def __len__(self) -> int:
        return len(self.label) if isinstance(self.label, list) else 1


@pytest.mark.parametrize("order", [1, -1])
def test_an_object_that_holds_the_samples_one_behind_the_other(tmp_path: Path, order: int) -> None:
    class Graphs(Pictures):
        def __getitem__(self, index: int) -> Any:
            return Graph(self.pictures[index].reshape(-1, 4)[: 5 + index], LABELS[index])

    def join(items: list[Any]) -> Any:
        return Graph(torch.cat([one.nodes for one in items[::order]]), [one.label for one in items])

    folder = tmp_path
    model: Any = RowNumbers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(folder, capture="digest") as run:
            run.model(model)
            for batch in run.loader(DataLoader(Graphs(), BATCH, collate_fn=join), label=lambda graph: graph.label):
                model(batch)
    with audit.open(folder) as store:
        rows = store.sql("SELECT index, logits[1]::INTEGER FROM predictions ORDER BY index").fetchall()
    assert rows == (IN_ORDER if order == 1 else [])


@pytest.mark.parametrize("mixer", [v2.MixUp, v2.CutMix])
def test_mixes_of_samples_that_changed_their_places_are_not_assigned(tmp_path: Path, mixer: Any) -> None:
    torch.manual_seed(0)  # a cut of no pixels leaves every sample as it is
    chosen = mixer(num_classes=3)
    for name, order in (("kept", 1), ("sorted", -1)):
        rows, _, _ = record(tmp_path / name, Pictures(), lambda items, order=order: chosen(*stack(items[::order])))
        with audit.open(tmp_path / name) as store:
            parents = store.sql("SELECT count(*) FROM parents").fetchall()[0][0]
        assert (rows, parents > 0) == ((IN_ORDER, True) if order == 1 else ([], False))


class Collate:
    """A collate function of random steps, which notes the sample of each row."""

    def __init__(self, dataset: Dataset[Any], steps: list[str], seed: int) -> None:
        self.dataset = dataset
        self.steps = steps
        self.random = torch.Generator().manual_seed(seed)
        self.truth: list[list[int]] = []

    def __call__(self, items: list[Any]) -> Any:
        known = [self.dataset[n][0] for n in range(COUNT)]
        order = [next(n for n, x in enumerate(known) if torch.equal(x, item[0])) for item in items]
        values, targets = [x for x, _ in items], [y for _, y in items]
        places = list(range(len(items)))
        for step in self.steps:
            if step in ORDERS:
                places = ORDERS[step](places, self.random)
        x = torch.stack([functional.pad(values[n], (0, 16 - values[n].shape[-1])) for n in places])
        for step in self.steps:
            if step in CHANGES:
                x = CHANGES[step](x, self.random)
        self.truth.append([order[n] for n in places])
        return x, torch.tensor([targets[n] for n in places])


ORDERS: dict[str, Callable[[list[int], torch.Generator], list[int]]] = {
    "shuffled": lambda places, random: [places[n] for n in torch.randperm(len(places), generator=random).tolist()],
    "reversed": lambda places, _: places[::-1],
    "one dropped": lambda places, _: places[1:] if len(places) > 1 else places,
    "one twice": lambda places, _: [*places, places[0]],
}
CHANGES: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "scaled": lambda x, _: x * 3 - 1,
    "negative": lambda x, _: -x,
    "half": lambda x, _: x.half(),
    "bytes": lambda x, _: (x * 255).byte(),
    "sign": lambda x, _: x.sign(),
    "squared": lambda x, _: x.square(),
    "shifted": lambda x, _: x.roll(1, -1),
    "noise": lambda x, random: x + 0.001 * torch.rand(x.shape, generator=random),
    "mixed": lambda x, _: 0.7 * x + 0.3 * x.roll(1, 0),
    "mirrored": lambda x, _: x.flip(-1),
    "cropped": lambda x, _: x[..., :4],
    "first row": lambda x, _: x[:1].expand_as(x).clone(),
    "ranked": lambda x, _: x.argsort(-1).float(),
    "standardised": lambda x, _: (x.float() - x.float().mean()) / (x.float().std() + 1e-6),
    "each standardised": lambda x, _: torch.stack([(row.float() - row.float().mean()) for row in x]),
}


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.sampled_from(sorted([*ORDERS, *CHANGES])), max_size=4),
    dataset=st.sampled_from([Pictures(), Sequences(), Flat()]),
    seed=st.integers(0, 1000),
)
def test_no_collate_function_gives_a_sample_another_samples_prediction(
    steps: list[str], dataset: Pictures, seed: int
) -> None:
    collate = Collate(dataset, steps, seed)
    with tempfile.TemporaryDirectory() as folder:
        model: Any = RowNumbers()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with audit.record(folder, capture="digest") as run:
                run.model(model)
                for x, _ in run.loader(DataLoader(dataset, BATCH, collate_fn=collate)):
                    model(x)
        with audit.open(folder) as store:
            found = store.sql(
                "SELECT c.number, p.index, p.logits[1]::INTEGER FROM predictions p JOIN calls c USING (run_id, number)"
            ).fetchall()
    copied = "first row" in steps
    for number, index, row in found:
        assert index == collate.truth[number][0 if copied else row], (steps, collate.truth[number])
    if set(steps) <= {"shuffled", "reversed", "one dropped"}:
        assert len(found) == sum(map(len, collate.truth)), steps


class Mappings(Pictures):
    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((3,), float(index)), "label": index % 2}


def with_noise(items: list[Any]) -> Any:
    return torch.utils.data.default_collate(items), torch.rand(2)


def test_the_input_in_a_mapping_with_something_beside_it(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        recorded = run.model(model)
        for batch, _ in run.loader(DataLoader(Mappings(), batch_size=2, collate_fn=with_noise)):
            recorded(batch["x"])
    with audit.open(tmp_path / "lineage") as lineage:
        last = "SELECT index, arg_max(digest, stage) FROM stage_outputs GROUP BY index ORDER BY index"
        given = lineage.sql("SELECT index, input_digest FROM predictions ORDER BY index").fetchall()
        assert given
        assert lineage.sql(last).fetchall() == given


class NestedMappings(Dataset):  # type: ignore[type-arg]
    """The input is a mapping."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return {"x": OrderedDict(a=torch.full((2, 3), float(index))), "n": torch.ones(2)}


def join(items: list[Any]) -> Any:
    return {"a": torch.cat([item["x"]["a"] for item in items])}


@pytest.mark.filterwarnings("ignore:audit")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("collate", [list, join])
def test_items_that_are_mappings(size: int, collate: Any, tmp_path: Path) -> None:
    """No stage has an output that is in no batch."""
    with audit.record(tmp_path / "lineage", capture="full") as run:
        list(run.loader(DataLoader(NestedMappings(), batch_size=size, collate_fn=collate)))
    with audit.open(tmp_path / "lineage") as store:
        traces = [store.trace(index=index) for index in range(4)]
        found = [[trace.value(stage["stage"]) for stage in trace.stages][1:] for trace in traces]
    if collate is list:
        assert found == [[]] * 4
    for index, values in enumerate(found):
        assert [sorted(value) for value in values] in ([], [["a"]])
        assert all(torch.equal(value["a"], torch.full((2, 3), float(index))) for value in values)
