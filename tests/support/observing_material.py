"""Loops to be run twice, plain and recorded: datasets of every shape that draw from every generator there is."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchvision import datasets, transforms
from torchvision.transforms import v2

import audit

Pair = namedtuple("Pair", ["x", "y"])
WIDTH = 12
CLASSES = 3


class Augment:
    """Draws from every generator: the global ones and one of each kind of its own."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(5)
        self.legacy = np.random.RandomState(6)
        self.torch = torch.Generator().manual_seed(7)
        self.python = random.Random(8)

    def __getstate__(self) -> dict[str, Any]:
        # torch cannot hand a generator to a spawned process: the memory of its state is gone before it arrives.
        return self.__dict__ | {"torch": self.torch.get_state().numpy().tobytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.torch = torch.Generator()
        self.torch.set_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        held = float(self.numpy.random()) + self.legacy.rand() + self.python.random()
        drawn = torch.rand(1) + float(np.random.rand()) + random.random() + random.gauss(0, 1)
        return x * 0.9 + torch.rand(1, generator=self.torch) * 0.01 + drawn * 0.01 + held * 0.01


def shift(x: torch.Tensor) -> torch.Tensor:
    return x + 0.25


class ShapedItems(Dataset):  # type: ignore[type-arg]
    """Items in one of the forms that people return."""

    def __init__(self, form: str, count: int = 22, fails: str | None = None) -> None:
        self.form = form
        self.count = count
        self.fails = fails
        self.transform = transforms.Compose([Augment(), shift])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.fails == "dataset" and index == 13:
            raise LookupError(f"no sample {index}")
        generator = torch.Generator().manual_seed(int(index))
        x = self.transform(torch.randn(WIDTH, generator=generator))
        y = int(index) % CLASSES
        return {
            "tuple": (x, y),
            "list": [x, torch.tensor(y)],
            "dict": {"x": x, "label": y, "name": f"n{index}"},
            "named": Pair(x, y),
            "single": x,
            "text": f"sample {index} {float(x[0]):.6f}",
            "array": (x.numpy(), np.int64(y)),
            "nested": ((x, x * 2), {"label": y}),
        }[self.form]


class BatchedItems(ShapedItems):
    """Makes whole batches by a code of its own."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        noise = torch.rand(1)
        return [(self[index][0] + noise, self[index][1]) for index in indices]


class Stream(IterableDataset):  # type: ignore[type-arg]
    """An iterable that shards itself, as the documentation of torch shows."""

    def __init__(self, count: int = 22, fails: bool = False) -> None:
        self.count = count
        self.fails = fails
        self.start = 0
        self.transform = Augment()

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        step = worker.num_workers if worker else 1
        for number in range(self.start + (worker.id if worker else 0), self.count, step):
            if self.fails and number == 13:
                raise LookupError("the stream broke")
            generator = torch.Generator().manual_seed(number)
            yield self.transform(torch.randn(WIDTH, generator=generator)), number % CLASSES


def mean_collate(items: list[Any]) -> Any:
    """A custom collate function that draws, too."""
    data = torch.utils.data.default_collate(items)
    return data, torch.rand(2), random.random()


def set_start(worker: int) -> None:
    """A worker_init_fn that reads and sets attributes of the worker's dataset."""
    info = get_worker_info()
    assert info is not None
    info.dataset.start = info.dataset.start + 0  # type: ignore[attr-defined]
    info.dataset.seen_worker = worker  # type: ignore[attr-defined]


DATASETS = (
    *("tuple", "list", "dict", "named", "single", "text", "array", "nested"),
    *("batched", "tensor", "subset", "concat", "folder", "v2", "hf", "stream"),
)
SAMPLERS = ("sequential", "shuffle", "generator", "weighted", "batch_sampler", "none")


@dataclass(frozen=True)
class Case:
    """One loop."""

    dataset: str = "tuple"
    sampler: str = "shuffle"
    batch_size: int = 5
    drop_last: bool = False
    collate: bool = False
    workers: int = 0
    method: str | None = None
    persistent: bool = False
    prefetch: int | None = None
    pin_memory: bool = False
    init: bool = False
    seed: int = 0
    capture: str = "full"
    layers: bool = True
    wrap: str = "loader"

    def build_dataset(self, root: Path) -> Any:
        if self.dataset == "tensor":
            generator = torch.Generator().manual_seed(1)
            return TensorDataset(torch.randn(22, WIDTH, generator=generator), torch.arange(22) % CLASSES)
        if self.dataset == "batched":
            return BatchedItems("tuple")
        if self.dataset == "subset":
            return Subset(Subset(ShapedItems("tuple"), range(1, 21)), [5, 3, 3, 11, 0, 7, 19])
        if self.dataset == "concat":
            return ConcatDataset(
                [ShapedItems("tuple", 9), Subset(ShapedItems("tuple"), [4, 2, 8]), ShapedItems("tuple", 5)]
            )
        if self.dataset in ("folder", "v2"):
            return datasets.ImageFolder(str(root), _pictures_v1() if self.dataset == "folder" else _pictures_v2())
        if self.dataset == "hf":
            return _hugging_face()
        if self.dataset == "stream":
            return Stream()
        return ShapedItems(self.dataset)

    def build_loader(self, dataset: Any) -> tuple[DataLoader[Any], torch.Generator]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        chosen: dict[str, Any] = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        if self.dataset != "stream":
            chosen |= self._loader_options(dataset, generator)
        elif self.sampler == "none":
            chosen = {"batch_size": None}
        if self.collate and chosen.get("batch_size") is not None:
            chosen["collate_fn"] = mean_collate
        if self.workers:
            chosen |= {"multiprocessing_context": self.method, "persistent_workers": self.persistent}
            chosen |= {"prefetch_factor": self.prefetch}
            chosen |= {"worker_init_fn": set_start if self.init and self.dataset == "stream" else None}
        loader = DataLoader(dataset, num_workers=self.workers, pin_memory=self.pin_memory, **chosen)
        return loader, generator

    def _loader_options(self, dataset: Any, generator: torch.Generator) -> dict[str, Any]:
        common = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        if self.sampler == "shuffle":
            return common | {"shuffle": True}
        if self.sampler == "generator":
            return common | {"shuffle": True, "generator": generator}
        if self.sampler == "weighted":
            weights = torch.arange(1, len(dataset) + 1).double().tolist()
            return common | {"sampler": WeightedRandomSampler(weights, 17, replacement=True, generator=generator)}
        if self.sampler == "batch_sampler":
            inner = RandomSampler(dataset, replacement=True, num_samples=13, generator=generator)
            return {
                "batch_sampler": BatchSampler(inner, self.batch_size, self.drop_last),
                "batch_size": 1,
                "drop_last": False,
            }
        if self.sampler == "none":
            return {"batch_size": None, "drop_last": False, "sampler": SequentialSampler(dataset)}
        return common


def _pictures_v1() -> Any:
    choice = transforms.RandomChoice([transforms.RandomHorizontalFlip(0.5), transforms.ColorJitter(0.4, 0.3)])
    return transforms.Compose(
        [
            transforms.RandomApply([transforms.RandomRotation(20)], p=0.5),
            transforms.RandomResizedCrop(2, scale=(0.5, 1.0)),
            choice,
            transforms.ToTensor(),
            transforms.RandomErasing(0.5),
            nn.Flatten(0),
        ]
    )


def _pictures_v2() -> Any:
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomApply([v2.RandomAffine(10, translate=(0.1, 0.1))], p=0.5),
            v2.RandomOrder([v2.RandomHorizontalFlip(), v2.ColorJitter(0.3)]),
            v2.RandomResizedCrop(2, antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.ToPureTensor(),
            nn.Flatten(0),
        ]
    )


def _hugging_face() -> Any:
    import datasets as hf

    x = np.random.RandomState(3).rand(22, WIDTH).astype(np.float32)
    table = hf.Dataset.from_dict({"x": x.tolist(), "label": [n % CLASSES for n in range(22)]})
    return table.with_format("torch")


# -- the loop ------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Everything that a loop leaves behind, but for what a recording is for."""

    batches: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    optimizer: Any = None
    generators: list[Any] = field(default_factory=list)
    error: Any = None


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, CLASSES)
    )


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def run_loop(case: Case, root: Path, store: Path | None, epochs: int = 2) -> Outcome:
    """The loop, plain or recorded; everything in it is made again."""
    seed_everything(case.seed)
    dataset = case.build_dataset(root)
    outcome = Outcome()
    if store is None:
        loader, generator = case.build_loader(dataset)
        model = network()
        _train(loader, model, outcome, range(epochs))
    else:
        with audit.record(store, capture=case.capture, strict=True) as run:
            recorded = run.dataset(dataset) if case.wrap == "dataset" else dataset
            loader, generator = case.build_loader(recorded)
            assert len_or_none(loader) == len_or_none(case.build_loader(dataset)[0])
            if case.wrap == "loader":
                loader = run.loader(loader)
            model = network()
            layers: list[str | type[nn.Module]] | None = ["0", nn.ReLU] if case.layers else None
            _train(loader, run.model(model, layers=layers, backward=case.layers), outcome, run.epochs(epochs))
    # By hand: the loader's workers, and what they hold, end before the next loop begins.
    del loader
    outcome.weights = {name: value.clone() for name, value in model.state_dict().items()}
    outcome.generators = [
        torch.get_rng_state(),
        np.random.get_state(),
        random.getstate(),
        generator.get_state(),
        *held_states(dataset),
    ]
    return outcome


def len_or_none(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def held_states(dataset: Any) -> list[Any]:
    """The states of the generators that transforms hold in this process."""
    if isinstance(dataset, Subset):
        return held_states(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [state for part in dataset.datasets for state in held_states(part)]
    found = []
    for augment in getattr(getattr(dataset, "transform", None), "transforms", [getattr(dataset, "transform", None)]):
        if isinstance(augment, Augment):
            found += [augment.numpy.bit_generator.state, augment.legacy.get_state(), augment.torch.get_state()]
            found.append(augment.python.getstate())
    return found


def _train(loader: Any, model: nn.Module, outcome: Outcome, epochs: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in epochs:
        for batch in loader:
            outcome.batches.append(batch)
            x, y = _inputs(batch)
            if x is None or x.dim() != 2 or len(x) < 2:
                continue
            output = model(x)
            if y is None or y.shape != x.shape[:1]:
                y = torch.zeros(len(x), dtype=torch.long)
            loss = nn.functional.cross_entropy(output, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            outcome.gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            optimizer.step()
            outcome.losses.append(loss.detach().clone())
    outcome.optimizer = optimizer.state_dict()


def _inputs(batch: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if isinstance(batch, dict):
        return batch["x"], batch["label"]
    if isinstance(batch, (tuple, list)) and len(batch) == 3 and isinstance(batch[2], float):
        return _inputs(batch[0])
    if isinstance(batch, (tuple, list)) and isinstance(batch[0], torch.Tensor) and batch[0].dim() == 2:
        return batch[0], batch[1]
    if isinstance(batch, torch.Tensor) and batch.dim() == 2 and batch.is_floating_point():
        return batch, None
    return None, None


def difference(a: Any, b: Any, path: str = "") -> str | None:
    """Where two values differ, in type or in any bit; None when nowhere."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} against {type(b)}"
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        same = same and a.is_pinned() == b.is_pinned() and a.requires_grad == b.requires_grad
        return None if same and a.numpy().tobytes() == b.numpy().tobytes() else f"{path}: {a} against {b}"
    if isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return None if same else f"{path}: {a} against {b}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{path}: keys {list(a)} against {list(b)}"
        return next((d for key in a if (d := difference(a[key], b[key], f"{path}.{key}"))), None)
    if isinstance(a, (tuple, list)):
        if len(a) != len(b):
            return f"{path}: {len(a)} against {len(b)} entries"
        pairs = enumerate(zip(a, b, strict=True))
        return next((d for n, (x, y) in pairs if (d := difference(x, y, f"{path}[{n}]"))), None)
    return None if a == b or (a != a and b != b) else f"{path}: {a!r} against {b!r}"
