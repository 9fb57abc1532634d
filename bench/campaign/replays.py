"""Does replay keep its promise? Random pipelines are recorded one way and replayed another, and every digest compared.

    python -m bench.campaign.replays [--outputs N] [--seed N] [--only NUMBER]

Each pipeline goes through `audit run` or a loop of one's own with some number of workers and some batch size, and is replayed
with another number of workers by objects made again. Everything must be bit-exact, but for the stages that draw on
something hidden (the system, the clock, a counter, a race): those must be named, as not reproducible. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import audit
from audit.lineage.replay.result import Replay
from bench.campaign.replay_cases import Case, case_of, catalogue, dataset_of, make_pictures, stages_of

PICTURES = 16
EPOCHS = 2
#: Hidden sources that can give the same again: a counter in workers that are forked at the same count, a race that ends alike.
_MAY_AGREE = ("from_counter", "from_race")


@dataclass
class Tally:
    """What the campaign came to."""

    pipelines: int = 0
    visits: int = 0
    outputs: int = 0
    identical: int = 0
    planted: collections.Counter[str] = field(default_factory=collections.Counter)
    explained: int = 0
    ways: collections.Counter[str] = field(default_factory=collections.Counter)
    used: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    """Run the campaign and print its table."""
    options = argparse.ArgumentParser()
    options.add_argument("--outputs", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", type=int, help="one pipeline by its number, with its stages")
    given = options.parse_args()
    work = Path(tempfile.mkdtemp(prefix="audit-campaign-"))
    begun = time.perf_counter()
    tally = Tally()
    try:
        for tried in campaign(work, given.seed, given.outputs, tally, given.only):
            if given.only is not None or tried.pipelines % 20 == 0:
                _say(
                    f"{tried.pipelines} pipelines, {tried.outputs:,} stage outputs, {time.perf_counter() - begun:.0f} s"
                )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for line in table(tally, time.perf_counter() - begun):
        _say(line)
    return 1 if tally.wrong else 0


def campaign(work: Path, seed: int, outputs: int, tally: Tally, only: int | None = None) -> Iterator[Tally]:
    """Pipeline after pipeline until so many stage outputs have been compared; the tally after each."""
    images = make_pictures(work / "images", PICTURES)
    sys.path.insert(0, str(work))
    number = only or 0
    while tally.outputs < outputs:
        case = case_of(seed, number)
        try:
            result = replay_case(case, images, work)
            judge(case, result, tally)
        except Exception as error:
            tally.wrong.append(f"pipeline {number}: {type(error).__name__}: {error}")
        yield tally
        if only is not None:
            for name in stages_of(seed, number)[0]:
                _say(f"  {name}")
            return
        number += 1


def replay_case(case: Case, images: Path, work: Path) -> Replay:
    """Record a case and replay it by objects that have never seen the recording."""
    store = work / f"store-{case.number}"
    warnings.simplefilter("ignore")
    try:
        if case.mode == "run":
            module = f"campaign_pipeline_{case.seed}_{case.number}"
            (work / f"{module}.py").write_text(
                f"from bench.campaign.replay_cases import transform_of\ntransform = transform_of({case.seed}, {case.number})\n"
            )
            options: dict[str, Any] = {"start_method": case.start_method} if case.start_method else {}
            audit.run(
                images,
                pipeline=work / f"{module}.py",
                store=store,
                capture="digest",
                workers=case.workers,
                batch_size=case.batch_size,
                seed=case.number,
                **options,
            )
            sys.modules.pop(module, None)
            with audit.open(store) as opened:
                return opened.replay(workers=case.replay_workers)
        record(case, dataset_of(case, images), store)
        with audit.open(store) as opened:
            return opened.replay(dataset=dataset_of(case, images), workers=case.replay_workers)
    finally:
        shutil.rmtree(store, ignore_errors=True)


def record(case: Case, dataset: Any, store: Path) -> None:
    """A loop of one's own, two epochs."""
    sampler = WeightedRandomSampler([1.0] * len(dataset), len(dataset)) if case.repeats else None
    with audit.record(store, capture="digest") as run:
        loader: Any = DataLoader(
            run.dataset(dataset) if case.mode == "dataset" else dataset,
            batch_size=case.batch_size,
            sampler=sampler,
            shuffle=sampler is None,
            num_workers=case.workers,
            collate_fn=list,
            multiprocessing_context=case.start_method,
            persistent_workers=case.workers > 0 and case.number % 2 == 0,
        )
        if case.mode == "loader":
            loader = run.loader(loader)
        for _ in run.epochs(EPOCHS):
            # A transform that cannot take some picture ends a loop; what was recorded until then is replayed.
            with contextlib.suppress(Exception):
                for _ in loader:
                    torch.rand(1)


def judge(case: Case, result: Replay, tally: Tally) -> None:
    """Count a case, and note what should not have been."""
    tally.pipelines += 1
    tally.visits += result.checked
    tally.outputs += result.stage_outputs
    tally.identical += result.identical_outputs
    tally.ways[f"{case.mode}, {case.workers} → {case.replay_workers} workers"] += 1
    tally.used.update(stages_of(case.seed, case.number)[0])
    if not result.checked:
        tally.wrong.append(f"pipeline {case.number}: nothing was recorded")
    if case.hidden is not None:
        tally.explained += result.stage_outputs - result.identical_outputs
    for item in result.different:
        if case.hidden is not None and item.name == case.hidden and item.reason == "not reproducible":
            tally.planted[case.hidden] += 1
        else:
            tally.wrong.append(
                f"pipeline {case.number} ({case.mode}, {case.workers} → {case.replay_workers} workers): sample {item.index} "
                f"stage {item.stage} {item.name}: {item.reason}: {item.detail[:300]}"
            )
    if case.hidden is not None and case.hidden not in _MAY_AGREE and result.identical:
        tally.wrong.append(f"pipeline {case.number}: {result.identical} visits identical in spite of {case.hidden}")


def table(tally: Tally, seconds: float) -> list[str]:
    """The figures, as Markdown."""
    known, hidden = catalogue()
    used = [tally.used[entry.name] for entry in [*known, *hidden]]
    return [
        "",
        "| what | count |",
        "| --- | ---: |",
        f"| pipelines | {tally.pipelines:,} |",
        f"| kinds of stage, each used {min(used)} to {max(used)} times | {len(used):,} |",
        f"| visits | {tally.visits:,} |",
        f"| stage outputs compared | {tally.outputs:,} |",
        f"| identical | {tally.identical:,} |",
        f"| not reproducible, from a planted hidden source on | {tally.explained:,} |",
        f"| anything else | {tally.outputs - tally.identical - tally.explained:,} |",
        f"| seconds | {seconds:,.0f} |",
        "",
        "| planted | visits caught |",
        "| --- | ---: |",
        *(f"| {name} | {count:,} |" for name, count in sorted(tally.planted.items())),
        "",
        "| recorded, replayed | pipelines |",
        "| --- | ---: |",
        *(f"| {way} | {count} |" for way, count in sorted(tally.ways.items())),
        "",
        *(f"WRONG {line}" for line in tally.wrong[:40]),
        f"{len(tally.wrong)} wrong" if tally.wrong else "nothing wrong",
    ]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    sys.exit(main())
