"""A model call gets the samples that its input was made of, or none: never those of another batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Questions
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import audit

COUNT, BATCH = 12, 4


class Pictures(Dataset):  # type: ignore[type-arg]
    """Sample n is a picture of random numbers of its own."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        noise = torch.Generator().manual_seed(self.first + index)
        return torch.rand(3, 6, 6, generator=noise), index % 3


class Mean(nn.Module):
    """Answers with numbers that tell its inputs apart, whatever their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return x.to(torch.float64).flatten(1).mean(1, keepdim=True).float() * self.weight


def recorded(path: Path, loop: Callable[[Any, nn.Module], Any], dataset: bool = False, **options: Any) -> Questions:
    with audit.record(path / "lineage", strict=True) as run:
        model = run.model(Mean())
        if dataset:
            loader = DataLoader(run.dataset(Pictures()), batch_size=BATCH, **options)
        else:
            loader = run.loader(DataLoader(Pictures(), batch_size=BATCH, **options))
        loop(loader, model)
    return Questions(path / "lineage")


def predictions(ask: Questions) -> dict[int, list[float]]:
    return dict(ask("SELECT index, logits FROM graded_predictions ORDER BY epoch, index"))


# -- what a loop does to a batch, for a whole batch and for each sample alone ------------------------

MEAN = torch.tensor([0.5, 0.4, 0.3])[:, None, None]
STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "to a device": lambda x: x.to("cpu", non_blocking=True),
    "copied to a device": lambda x: x.to("cpu", copy=True),
    "cast": lambda x: x.to(torch.float64),
    "half": lambda x: x.half(),
    "bytes and back": lambda x: (x * 255).to(torch.uint8).float() / 255,
    "scaled": lambda x: x / 255,
    "scaled in place": lambda x: x.div_(255),
    "normalised": lambda x: (x - MEAN) / 0.25,
    "normalised in place": lambda x: x.clone().sub_(MEAN).div_(0.25),
    "a channel in place": lambda x: _channel_scaled(x),
    "turned": lambda x: torch.rot90(x, 1, (2, 3)),
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(0, 2, 3, 1),
    "transposed": lambda x: x.transpose(2, 3),
    "flattened": lambda x: x.flatten(1),
    "viewed": lambda x: x.view(len(x), -1),
    "one axis more": lambda x: x[:, None],
    "unsqueezed": lambda x: x.unsqueeze(1),
    "interpolated": lambda x: functional.interpolate(x, scale_factor=2),
    "padded": lambda x: functional.pad(x, (1, 1, 2, 2)),
    "cropped": lambda x: x[:, :, 1:5, 1:5],
    "flipped": lambda x: x.flip(-1),
    "channels swapped": lambda x: x[:, [2, 1, 0]],
    "one channel": lambda x: x[:, 0],
    "clamped": lambda x: x.clamp(0.2, 0.8),
    "erased": lambda x: _erased(x),
    "masked": lambda x: x.masked_fill(x > 0.5, 0.0),
    "blurred": lambda x: functional.conv2d(x, torch.ones(3, 1, 3, 3) / 9, groups=3, padding=1),
    "needs gradients": lambda x: x.requires_grad_(),
    "detached": lambda x: x.clone().requires_grad_().detach(),
    "data": lambda x: x.data,
    "a numpy array and back": lambda x: torch.from_numpy(x.numpy().copy()),
    "a list and back": lambda x: torch.stack(list(x)),
    "many of them": lambda x: functional.pad((x.to(torch.float64).clone() - MEAN).flip(-1) * 2, (1, 1)).float(),
}


def _channel_scaled(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 0] -= 0.5
    x[:, 1] /= 0.2
    return x


def _erased(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, :, 1:3, 1:3] = 0
    return x


@pytest.mark.parametrize("how", ["loader", "dataset"])
@pytest.mark.parametrize("name", STEPS)
def test_a_batch_that_is_changed_on_its_way(tmp_path: Path, name: str, how: str) -> None:
    if how == "dataset" and name == "scaled in place":
        pytest.skip("what a recorded dataset's batch was is gone")
    step = STEPS[name]

    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            model(step(x))

    found = predictions(recorded(tmp_path, loop, dataset=how == "dataset"))
    assert sorted(found) == list(range(COUNT))
    for index, logits in found.items():
        expected = Mean()(step(Pictures()[index][0][None])).detach()[0]
        assert torch.allclose(torch.tensor(logits), expected, rtol=1e-5), index


def _chunks(x: torch.Tensor) -> list[torch.Tensor]:
    return list(x.chunk(2))


PARTS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "chunks": _chunks,
    "chunks, scaled": lambda x: [part / 255 for part in x.chunk(2)],
    "scaled, then sliced": lambda x: [(x / 2)[n : n + 1] for n in range(len(x))],
    "split": lambda x: list((x * 2).split([1, 3])),
    "shuffled": lambda x: [(x * 2)[torch.tensor([2, 0, 3, 1])]],
    "in reverse": lambda x: [x.flip(0) * 2],
    "rolled": lambda x: [x.roll(1, 0) * 2],
    "a mask": lambda x: [x[torch.tensor([True, False, True, False])] * 2, (x * 2)[[1, 3]]],
    "index_select": lambda x: [torch.index_select(x * 2, 0, torch.tensor([3, 2, 1, 0]))],
    "samples one by one": lambda x: [(row * 2)[None] for row in x],
    "stacked again": lambda x: [torch.stack([x[2] * 2, x[0] * 2, x[1] * 2, x[3] * 2])],
    "joined again": lambda x: [torch.cat(_chunks(x * 2)[::-1])],
    "a transposed view": lambda x: [x.transpose(0, 1).transpose(0, 1) * 2],
}


@pytest.mark.parametrize("how", ["loader", "dataset"])
@pytest.mark.parametrize("name", PARTS)
def test_a_batch_that_is_taken_apart(tmp_path: Path, name: str, how: str) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            for part in PARTS[name](x):
                model(part)

    found = predictions(recorded(tmp_path, loop, dataset=how == "dataset"))
    scale = {"chunks": 1.0, "chunks, scaled": 1 / 255, "scaled, then sliced": 0.5}.get(name, 2.0)
    assert sorted(found) == list(range(COUNT))
    for index, logits in found.items():
        mean = float(Pictures()[index][0].double().mean()) * scale
        assert logits == pytest.approx([mean, 2 * mean, -mean], rel=1e-5)


def test_a_batch_beside_its_mirror_image(tmp_path: Path) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            model(torch.cat([x, x.flip(-1) * 3]))

    found = predictions(recorded(tmp_path, loop))
    for index, logits in found.items():
        assert torch.allclose(torch.tensor(logits), Mean()(Pictures()[index][0][None])[0])
    assert len(found) == COUNT


def test_crops_of_one_sample_are_its_rows(tmp_path: Path) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            crops = torch.stack([x[:, :, :4, :4], x[:, :, 2:, 2:]], 1)
            model(crops.view(-1, 3, 4, 4))

    found = predictions(recorded(tmp_path, loop))
    for index, logits in found.items():
        assert torch.allclose(torch.tensor(logits), Mean()(Pictures()[index][0][None, :, :4, :4])[0])
    assert len(found) == COUNT


# -- inputs that are not recorded samples -------------------------------------------------------------


def reports_unmatched(ask: Questions, count: int) -> bool:
    return any(w.startswith(f"{count} model call") and "could not be matched" in w for w in ask.warnings)


class Generator(nn.Module):
    """Makes pictures of noise, or of other pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1, 3, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


FOREIGN: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "noise": lambda model, x, y: model(torch.rand_like(x)),
    "dummy": lambda model, x, y: model(torch.zeros(len(x), 3, 6, 6)),
    "ones like": lambda model, x, y: model(torch.ones_like(x)),
    "generated": lambda model, x, y: model(Generator()(torch.rand_like(x)).detach()),
    "translated": lambda model, x, y: model(Generator()(x)),
    "translated, detached": lambda model, x, y: model(Generator()(x).detach()),
    "translated without gradients": lambda model, x, y: _without_gradients(model, x),
    "perturbed": lambda model, x, y: model(x + 0.1 * torch.rand_like(x).sign()),
    "adversarial": lambda model, x, y: _attack(model, x, y),
    "overwritten": lambda model, x, y: model(x.clone().copy_(torch.rand_like(x))),
    "overwritten itself": lambda model, x, y: model(x.copy_(torch.rand_like(x))),
    "overwritten data": lambda model, x, y: _overwritten_data(model, x),
    "assigned": lambda model, x, y: _assigned(model, x),
    "filled": lambda model, x, y: model(x.normal_()),
    "beside a generated one": lambda model, x, y: model(x, torch.rand_like(x)),
    "channels beside": lambda model, x, y: model(torch.cat([x, torch.rand_like(x)], 1)),
    "with labels": lambda model, x, y: model(torch.rand_like(x), y),
    "made of labels": lambda model, x, y: model(y[:, None].expand(-1, 3).float()),
}


def _without_gradients(model: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        fake = Generator()(x)
    model(fake)


def _attack(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    leaf = x.clone().requires_grad_()
    gradient = torch.autograd.grad((leaf**2).sum(), leaf)[0]
    model((leaf + 0.1 * gradient.sign()).clamp(0, 1).detach())


def _overwritten_data(model: Any, x: torch.Tensor) -> None:
    x.data.copy_(torch.rand_like(x))
    model(x)


def _assigned(model: Any, x: torch.Tensor) -> None:
    x[:] = torch.rand_like(x)
    model(x)


@pytest.mark.parametrize("when", ["before", "after", "alone", "never used"])
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_an_input_that_is_no_sample_gets_no_sample(tmp_path: Path, name: str, when: str) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for number, (x, y) in enumerate(loader):
            if when == "never used" and number % 2:
                continue
            if when == "after":
                model(x)
            FOREIGN[name](model, x.clone() if when == "before" else x, y)
            if when == "before":
                model(x)

    ask = recorded(tmp_path, loop)
    found = predictions(ask)
    assert sorted(found) == (list(range(COUNT)) if when in ("before", "after") else [])
    for index, logits in found.items():
        assert torch.allclose(torch.tensor(logits), Mean()(Pictures()[index][0][None])[0]), index
    assert reports_unmatched(ask, 2 if when == "never used" else 3)
    assert ask("SELECT count(*) FROM predictions") == [(len(found),)]
    unmatched = ask("SELECT samples, evidence, reason FROM calls WHERE reason IS NOT NULL")
    assert [row[:2] for row in unmatched] == [(0, None)] * (2 if when == "never used" else 3)


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_real_and_generated_in_one_batch(tmp_path: Path) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            model(torch.cat([torch.rand_like(x), x * 2]))

    found = predictions(recorded(tmp_path, loop))
    for index, logits in found.items():
        assert torch.allclose(torch.tensor(logits), Mean()(Pictures()[index][0][None] * 2)[0])
    assert len(found) == COUNT


@pytest.mark.parametrize("change", ["none", "scaled", "numpy"])
@pytest.mark.parametrize("how", ["loader", "dataset"])
def test_a_batch_that_is_fetched_and_never_used(tmp_path: Path, how: str, change: str) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        next(iter(loader))
        for x, _ in loader:
            model(x / 2 if change == "scaled" else torch.from_numpy(x.numpy() + 0) if change == "numpy" else x)

    ask = recorded(tmp_path, loop, dataset=how == "dataset")
    rows = ask("SELECT epoch, index, visit, logits FROM predictions ORDER BY ALL")
    assert len(rows) == COUNT
    if how == "loader":
        assert {epoch for epoch, *_ in rows} == {1}
    for _, index, _, logits in rows:
        x = Pictures()[index][0][None]
        assert torch.allclose(torch.tensor(logits), Mean()(x / 2 if change == "scaled" else x)[0])


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x / 2, lambda x: x.permute(0, 2, 3, 1)])
def test_zipped_loaders(tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(Mean())
        labelled = run.loader(DataLoader(Pictures(), batch_size=BATCH), split="labelled")
        other = run.loader(DataLoader(Pictures(100), batch_size=BATCH), split="other")
        for (_, _), (x, _) in zip(labelled, other, strict=True):
            model(change(x))
    rows = Questions(tmp_path / "lineage")("SELECT split, index, logits FROM lineage WHERE logits IS NOT NULL")
    assert len(rows) == COUNT
    for split, index, logits in rows:
        assert split == "other"
        assert torch.allclose(torch.tensor(logits), Mean()(change(Pictures(100)[index][0][None]))[0])


class Sorted:
    """A collate function that puts its items in another order."""

    def __call__(self, items: list[Any]) -> Any:
        items = sorted(items, key=lambda item: -float(item[0].mean()))
        return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


def test_a_collate_function_that_sorts(tmp_path: Path) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            model(x)

    found = predictions(recorded(tmp_path, loop, collate_fn=Sorted()))
    for index, logits in found.items():
        assert torch.allclose(torch.tensor(logits), Mean()(Pictures()[index][0][None])[0])
    assert len(found) == COUNT


def test_rows_that_change_their_places_are_known_by_their_content(tmp_path: Path) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            x[torch.tensor([1, 0, 3, 2])] = x.clone()
            model(x)

    found = predictions(recorded(tmp_path, loop))
    for index, logits in found.items():
        assert torch.allclose(torch.tensor(logits), Mean()(Pictures()[index][0][None])[0])
    assert len(found) == COUNT


def test_a_default_device(tmp_path: Path) -> None:
    def loop(loader: Any, model: nn.Module) -> None:
        for x, _ in loader:
            torch.set_default_device("meta")
            y = x / 2
            assert torch.ones(1).is_meta
            torch.set_default_device(None)
            model(y)
            assert not torch.ones(1).is_meta
            with torch.device("meta"):
                assert torch.ones(1).is_meta
                model(x)
            assert not torch.ones(1).is_meta

    assert len(predictions(recorded(tmp_path, loop))) == COUNT


def test_modes_of_the_user_are_left_as_they_are(tmp_path: Path) -> None:
    from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    def loop(loader: Any, model: nn.Module) -> None:
        iterator = iter(loader)
        with Counting(), torch.device("cpu"):
            for _ in range(3):
                model(next(iterator)[0] / 2)
            stack = _get_current_function_mode_stack()
            assert [type(mode).__name__ for mode in stack] == ["BatchTracker", "Counting", "DeviceContext"]
            before = Counting.calls
        torch.ones(2) + 1
        assert Counting.calls == before

    assert len(predictions(recorded(tmp_path, loop))) == COUNT
    assert _get_current_function_mode_stack() == []


def test_a_nested_tensor_is_matched_by_its_content_or_not_at_all(tmp_path: Path) -> None:
    class Nested(Mean):
        def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
            return torch.cat([super(Nested, self).forward(one[None]) for one in x.unbind()])

    def record(path: Path, make: Callable[[torch.Tensor], torch.Tensor]) -> Questions:
        with audit.record(path, strict=True) as run:
            model = run.model(Nested())
            for x, _ in run.loader(DataLoader(Pictures(), batch_size=BATCH)):
                model(torch.nested.nested_tensor([make(one) for one in x]))
        return Questions(path)

    whole = predictions(record(tmp_path / "whole", lambda one: one))
    assert whole.keys() == set(range(COUNT))
    assert all(torch.allclose(torch.tensor(o), Mean()(Pictures()[n][0][None])[0]) for n, o in whole.items())
    ask = record(tmp_path / "cut", lambda one: one[:, :2])
    assert ask("SELECT count(*), max(samples), bool_and(reason LIKE '%nested%') FROM calls") == [(3, 0, True)]


class Pair(Mean):
    def forward(self, x: torch.Tensor, *others: Any) -> torch.Tensor:
        return super().forward(x - others[0])


@pytest.mark.parametrize(
    ("second", "graded"),
    [
        (lambda x: x.roll(1, 0), 0),
        (lambda x: x * 2, COUNT),
        (lambda x: torch.rand_like(x), 0),
        (lambda x: x[torch.tensor([0, 2, 1, 3])], COUNT // 2),
    ],
    ids=["other samples", "itself", "noise", "some others"],
)
@pytest.mark.parametrize("first", ["batch", "content"])
def test_a_pair_of_samples_is_neither_of_them(tmp_path: Path, second: Any, graded: int, first: str) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(Pair())
        for x, _ in run.loader(DataLoader(Pictures(), batch_size=BATCH)):
            model(x if first == "batch" else torch.tensor(x.tolist()), second(x))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*) FROM graded_predictions") == [(graded,)]
    assert ask("SELECT count(*) FROM mixed_predictions WHERE len(parents) <> 2") == [(0,)]


ITEMS = ("anchor, positive, label", "list of views", "dict of views", "dict of other names")


class Views(Pictures):
    """Each item has a second tensor, which is not a sample."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        if self.name == "anchor, positive, label":
            return x, 1 - x, y
        if self.name == "list of views":
            return [x, 1 - x], y
        names = ("image", "other") if self.name == "dict of views" else ("left", "right")
        return {names[0]: x, names[1]: 1 - x, "label": y}


@pytest.mark.parametrize("name", ITEMS)
def test_another_tensor_of_an_item_is_reported(tmp_path: Path, name: str) -> None:
    """The input is what the last stage returned, or the row says what lies between."""

    def parts(batch: Any) -> list[torch.Tensor]:
        values = batch.values() if isinstance(batch, dict) else batch
        flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
        return [one for one in flat if one.dim() == 4]

    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(Mean())
        for batch in run.loader(DataLoader(Views(name), batch_size=BATCH)):
            first, second = parts(batch)
            model(first)
            model(second)
            model(second * 2)
    ask = Questions(tmp_path / "lineage")
    rows = ask(
        "SELECT p.call, p.operations, bool_and(p.input_digest = o.digest), count(*) FROM predictions p JOIN stage_outputs o "
        "USING (epoch, index, visit) WHERE o.stage = (SELECT max(stage) FROM stages) GROUP BY ALL ORDER BY ALL"
    )
    is_value = name in ("anchor, positive, label", "dict of views")
    assert rows == [
        (0, None, True, COUNT) if is_value else (0, ["part"], False, COUNT),
        (1, ["part"], False, COUNT),
        (2, ["part", "mul"], False, COUNT),
    ]
    with audit.open(tmp_path / "lineage") as store:
        assert store.check().outcome("alignment").status == "pass"


def test_a_call_inside_a_function_transform_is_not_matched(tmp_path: Path) -> None:
    from torch.func import functional_call, vmap

    def loop(loader: Any, model: nn.Module) -> None:
        weights = dict(model.named_parameters())
        for x, _ in loader:
            vmap(lambda one: functional_call(model, weights, (one[None],)))(x)

    ask = recorded(tmp_path, loop)
    assert ask("SELECT count(*) FROM predictions") == [(0,)]
    assert ask("SELECT DISTINCT samples, reason FROM calls") == [
        (0, "The model was called inside a function transform, such as torch.func.vmap or grad.")
    ]
