"""Loaders of other libraries: torchdata's can be saved and resumed, timm's and webdataset's hold a DataLoader."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Numbers, Questions, halve
from torch.utils.data import DataLoader, IterableDataset

import audit
from audit.errors import UsageError


class Counting(IterableDataset):  # type: ignore[type-arg]
    """An iterable that is its own iterator, and can say where it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.at >= 14:
            raise StopIteration
        self.at += 1
        return torch.full((3,), float(self.at)), self.at % 3

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Streaming(IterableDataset):  # type: ignore[type-arg]
    """An iterable whose iterator can say where it is."""

    def __iter__(self) -> Iterator[Any]:
        return Counting()


DATASETS: dict[str, Callable[[], Any]] = {
    "map": lambda: Numbers(14, transform=halve),
    "own iterator": Counting,
    "iterator": Streaming,
}


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("kind", DATASETS)
def test_a_loader_that_can_be_saved(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make() -> Any:
        torch.manual_seed(3)
        more = {"shuffle": True} if kind == "map" else {}
        return stateful(DATASETS[kind](), batch_size=2, **more, **options)

    def loop(loader: Any) -> list[Any]:
        found = [loader.state_dict()]
        for number, batch in enumerate(loader):
            found.append([batch, loader.state_dict()])
            if number == 3:
                break
        return [*found, torch.get_rng_state()]

    def resumed(loader: Any, state: Any) -> list[Any]:
        loader.load_state_dict(state)
        return [*loader, loader.state_dict(), torch.get_rng_state()]

    plain = loop(make())
    saved = plain[4][1]
    rest = resumed(make(), saved)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        assert same(loop(run.loader(original := make())), plain)
        # The user's own object says the same.
        assert same(original.state_dict(), saved)
        assert same(resumed(run.loader(make()), saved), rest)
    ask = Questions(tmp_path / "lineage")
    assert ask.warnings == []
    assert ask("SELECT count(*) FROM samples") == [(8 + 6,)]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    return bool(a == b)


class Picture(Numbers):
    """What timm's loader moves to the device: bytes of three channels."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 4, 4), index, dtype=torch.uint8), index % 3


def test_a_loader_that_prefetches(tmp_path: Path) -> None:
    prefetch = pytest.importorskip("timm.data.loader").PrefetchLoader

    def make() -> Any:
        torch.manual_seed(2)
        random.seed(2)
        return prefetch(DataLoader(Picture(), 5, shuffle=True), device=torch.device("cpu"), re_prob=0.5)

    plain = [*make(), torch.get_rng_state()]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        loader: Any = run.loader(make())
        assert len(loader) == 3
        assert same([*loader, torch.get_rng_state()], plain)
        with pytest.raises(UsageError, match="recorded already"):
            run.loader(loader.loader)
    assert Questions(tmp_path / "lineage")("SELECT count(DISTINCT index), count(*) FROM samples") == [(12, 12)]


def test_a_loader_that_is_a_pipeline(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        for number in range(10):
            for ending, data in (("txt", f"text {number}".encode()), ("cls", str(number % 3).encode())):
                entry = tarfile.TarInfo(f"{number:04d}.{ending}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))

    def make() -> Any:
        dataset = wds.WebDataset(str(shard), shardshuffle=False).decode().to_tuple("txt", "cls")
        return wds.WebLoader(dataset, batch_size=4, num_workers=1)

    plain = list(make())
    assert len(plain) == 3
    with audit.record(tmp_path / "lineage", strict=True) as run:
        assert same(list(run.loader(make())), plain)
    assert Questions(tmp_path / "lineage")("SELECT index, label FROM samples ORDER BY 1") == [
        (number, number % 3) for number in range(10)
    ]


class Two:
    """Holds two loaders, of which nobody knows which gives the batches."""

    def __init__(self) -> None:
        self.loaders = [DataLoader(Numbers()), DataLoader(Numbers())]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loaders[0])


@pytest.mark.parametrize("given", [Two(), [1, 2], "text", None, Numbers()])
def test_what_holds_no_loader(tmp_path: Path, given: Any) -> None:
    with audit.record(tmp_path / "lineage") as run, pytest.raises(UsageError, match=r"run\.loader takes"):
        run.loader(given)


class BatchesOnly:
    """Yields batches from code of its own, as FFCV's and DALI's loaders do."""

    def __iter__(self) -> Any:
        yield torch.zeros(2, 3), torch.zeros(2)


def torchdata_nodes() -> Any:
    nodes = pytest.importorskip("torchdata.nodes", reason="torchdata is not installed")
    return nodes.Loader(nodes.Batcher(nodes.IterableWrapper(range(4)), 2))


@pytest.mark.parametrize("make", [BatchesOnly, torchdata_nodes])
def test_a_loader_without_a_dataset_is_refused_with_what_to_use(tmp_path: Path, make: Any) -> None:
    with audit.record(tmp_path / "lineage") as run, pytest.raises(UsageError, match=r"run\.log\("):
        run.loader(make())
