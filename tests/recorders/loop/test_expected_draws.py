"""What a loop was to draw, against what it drew: gaps are found, and what was left out on purpose fails nobody's build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Numbers
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import audit
from audit.checks.report import CheckOutcome


def coverage(store: Path, run: str | None = None) -> CheckOutcome:
    with audit.open(store) as opened:
        (outcome,) = opened.check(run, only=["coverage"]).outcomes
    return outcome


def loaders_of(store: Path) -> list[dict[str, Any]]:
    with audit.open(store) as opened:
        found: list[dict[str, Any]] = opened.run().recipe["loaders"]
        return found


class Forgetful(Sampler[int]):
    """Leaves out the last three."""

    def __iter__(self) -> Any:
        return iter(range(9))

    def __len__(self) -> int:
        return 9


class Stream(IterableDataset[Any]):
    """Says that it is longer than it is."""

    def __iter__(self) -> Any:
        return iter([(torch.zeros(2), 0)] * 5)

    def __len__(self) -> int:
        return 8


def loader(dataset: Any = None, **options: Any) -> Any:
    return DataLoader(dataset if dataset is not None else Numbers(12), **{"batch_size": 5, **options})


#: What may be left out, on purpose or by a setting, and what is said of it.
RIGHT: dict[str, tuple[Callable[[], Any], str]] = {
    "in order": (loader, ""),
    "shuffled": (lambda: loader(shuffle=True), ""),
    "without batches": (lambda: loader(batch_size=None), ""),
    "a part of it": (lambda: loader(Subset(Numbers(12), [3, 1, 7]), shuffle=True), ""),
    "two of them": (lambda: loader(ConcatDataset([Numbers(4), Numbers(3)])), ""),
    "drop_last": (lambda: loader(shuffle=True, drop_last=True), "2 of 12 samples were left out of an epoch"),
    "a subset": (lambda: loader(sampler=SubsetRandomSampler([1, 2])), "10 of the 12 samples were drawn in no epoch"),
    "weighted": (lambda: loader(sampler=WeightedRandomSampler([1.0] + [0.0] * 11, 12)), "11 of the 12"),
    "with replacement": (lambda: loader(sampler=RandomSampler(range(1), replacement=True, num_samples=4)), "11 of the"),
    "some of them": (lambda: loader(sampler=RandomSampler(range(12), num_samples=2)), "drawn in no epoch"),
    "a shorter range": (lambda: loader(sampler=SequentialSampler(range(7))), "5 of the 12"),
    "more than all": (lambda: loader(sampler=RandomSampler(range(12), num_samples=20), drop_last=True), ""),
    "another sampler": (lambda: loader(sampler=Forgetful()), "3 of the 12"),
    "batches of one's own": (
        lambda: DataLoader(Numbers(12), batch_sampler=[[1, 2], [3]]),
        "9 of the 12",
    ),
    "torch's batches, of some": (
        lambda: DataLoader(Numbers(12), batch_sampler=BatchSampler(SubsetRandomSampler([1]), 2, False)),
        "11 of the 12",
    ),
    "one rank alone": (
        lambda: loader(sampler=DistributedSampler(Numbers(12), num_replicas=4, rank=1)),
        "9 of 12 samples were left out",
    ),
    "a stream": (lambda: loader(Stream()), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RIGHT)
def test_what_is_left_out_on_purpose_is_said_and_no_finding(case: str, tmp_path: Path) -> None:
    make, said = RIGHT[case]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        for _ in run.loader(make()):
            pass
    outcome = coverage(tmp_path / "lineage")
    assert (outcome.status, outcome.findings) == ("pass", [])
    notes = "; ".join(outcome.notes)
    assert said in notes if said else not notes


@pytest.mark.slow
def test_a_pass_that_ends_too_early_is_found(tmp_path: Path) -> None:
    """A StopIteration that escapes a dataset ends a loop without a word."""

    def stop(x: torch.Tensor) -> torch.Tensor:
        if int(x[0]) == 7:
            raise StopIteration
        return x

    dataset = Numbers(12, transform=stop)
    with audit.record(tmp_path / "lineage") as run:
        assert sum(len(labels) for _, labels in run.loader(loader(dataset, batch_size=2))) == 6
    outcome = coverage(tmp_path / "lineage")
    assert outcome.status == "fail"
    assert [finding.index for finding in outcome.findings] == [8, 9, 10, 11]
    assert "not drawn in epoch 0" in outcome.findings[0].message
    # The same of two ranks, of which the second stops: its tail is nobody's.
    for rank in ("0", "1"):
        tags = {"distributed": "together", "rank": rank, "world_size": "2"}
        sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=int(rank), shuffle=False)
        with audit.record(tmp_path / "ranks", name=rank, tags=tags) as run:
            for _ in run.loader(loader(dataset, sampler=sampler, batch_size=1)):
                pass
    for rank in ("0", "1"):
        found = coverage(tmp_path / "ranks", rank).findings
        assert [(finding.index, "drawn by no rank in epoch 0" in finding.message) for finding in found] == [
            (9, True),
            (11, True),
        ]


def test_loops_that_break_off_or_fail(tmp_path: Path) -> None:
    with audit.record(tmp_path / "broken-off", strict=True) as run:
        train, other = run.loader(loader(), split="train"), run.loader(loader(Numbers(4)), split="val")
        for _ in run.epochs(3):
            for _ in train:
                break
            for _ in other:
                pass
    outcome = coverage(tmp_path / "broken-off")
    assert (outcome.status, outcome.notes) == ("pass", ["7 of the 12 samples of train were drawn in no epoch"])
    assert [
        (one["split"], one["sampler"], one["length"], one["passes"]) for one in loaders_of(tmp_path / "broken-off")
    ] == [
        ("train", "SequentialSampler", 12, []),
        ("val", "SequentialSampler", 4, [{"first": 0, "last": 2, "length": 4, "asked": 4, "dropped": 0}]),
    ]
    with pytest.raises(LookupError), audit.record(tmp_path / "failed") as run:
        for _ in run.loader(loader(Numbers(12, fails=frozenset({8})))):
            pass
    outcome = coverage(tmp_path / "failed", run.run_id)
    assert (outcome.findings, outcome.notes) == (
        [],
        ["the run did not finish, so samples that were not drawn cannot be found"],
    )


@pytest.mark.workers
def test_a_build_may_ask_for_every_sample(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        dataset = run.dataset(Numbers(12))
        for index in range(9):
            dataset[index]
    assert coverage(tmp_path / "lineage").notes == ["3 of the 12 samples were drawn in no epoch"]
    (tmp_path / "audit.toml").write_text("[checks.coverage]\nevery_sample = true\n")
    with audit.open(tmp_path / "lineage") as opened:
        (outcome,) = opened.check(only=["coverage"], config=tmp_path / "audit.toml").outcomes
    assert [finding.index for finding in outcome.findings] == [9, 10, 11]


def test_a_dataset_that_grows_is_held_to_its_length_of_the_epoch(tmp_path: Path) -> None:
    dataset = Numbers(4)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        recorded = run.loader(loader(dataset, num_workers=0))
        for _ in run.epochs(3):
            for _ in recorded:
                pass
            dataset.count += 2
    assert [one["length"] for one in loaders_of(tmp_path / "lineage")[0]["passes"]] == [4, 6, 8]
    outcome = coverage(tmp_path / "lineage")
    assert (outcome.status, outcome.notes) == ("pass", [])
