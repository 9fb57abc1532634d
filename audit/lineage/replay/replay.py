"""Prove it: make recorded visits again from their sources, and compare every stage's digest.

Identical means that each digest is equal, never less: no stage missing, none more. Why another differs is decided in
replay_reasons.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from audit.errors import UsageError
from audit.lineage.replay.recorded_visits import RecordedVisits
from audit.lineage.replay.replayer import Replayer, ReplayOptions
from audit.lineage.replay.result import ModelComparison, Replay
from audit.records import Run
from audit.sources import open_dataset
from audit.sources.builder import builders_of, splits_of
from audit.store.read.reader import Reader


def replay(
    reader: Reader,
    run: str | None = None,
    *,
    dataset: Any = None,
    wanted: ReplayOptions | None = None,
    stage: int | str | None = None,
) -> Replay:
    """Replay the visits that are wanted (all, unless said otherwise) and compare.

    `dataset` is one dataset or what `--dataset` takes, or a mapping of them by the split that their samples were
    recorded under. `stage`, a number or a name, compares that stage alone.
    """
    from audit.lineage.replay.model import ReplayModel
    from audit.lineage.replay.pipeline import rebuild_pipeline

    row = reader.run(run)
    wanted = wanted or ReplayOptions()
    visits = RecordedVisits(reader, row.run_id)
    if stage is not None or wanted.stage is not None:
        chosen = wanted.stage if stage is None else stage
        wanted = dataclasses.replace(wanted, stage=_stage_number(row, visits, chosen))
    result = Replay(row.run_id)
    model = None
    if wanted.model:
        model = ReplayModel(
            row, reader.location, wanted.model if isinstance(wanted.model, str) else None, trust=wanted.trust
        )
        if not visits.have_predictions():
            raise UsageError(
                f"The run {row.run_id} has no predictions, so there are no logits to compare with.",
                hint="Record it with a model, or replay it without one.",
            )
        result.model = ModelComparison(_checkpoint_state(row, model.digest))
    parts = _by_split(dataset, row, visits, wanted)
    if None not in parts:
        # Asked once of them all: what one split does not have, another may.
        visits.keys(wanted.indices, wanted.epoch, None, None)
    for split, part in parts.items():
        # The narrower request of the caller stands; a mapping adds which of its datasets a visit belongs to.
        narrowed = wanted if split is None else dataclasses.replace(wanted, split=split)
        pipeline = rebuild_pipeline(row, reader.location, part, visits.find_named_stages(), split, trust=wanted.trust)
        Replayer(reader, visits, row, pipeline, model, narrowed, result).execute()
    return result


def _stage_number(run: Run, visits: RecordedVisits, stage: int | str | None) -> int:
    """Return the number of the stage that a number, or a name such as `Resize`, means."""
    names: dict[int, str] = {number: found.name for number, found in visits.stages.items()}
    if isinstance(stage, str) and not stage.isdecimal():
        numbers = [number for number, name in names.items() if name.lower() == stage.lower()]
        if len(numbers) == 1:
            return numbers[0]
        if numbers:
            hint = f"Give one of the numbers {', '.join(map(str, numbers))}."
            raise UsageError(f"The run {run.run_id} has {len(numbers)} stages called {stage}.", hint=hint)
    elif stage is not None and int(stage) in names:
        return int(stage)
    near = difflib.get_close_matches(str(stage), names.values(), n=3)
    listed = ", ".join(f"{number} {name}" for number, name in sorted(names.items()))
    hint = f"Did you mean {', '.join(dict.fromkeys(near))}?" if near else f"Its stages are {listed}."
    raise UsageError(f"The run {run.run_id} has no stage {stage}.", hint=hint)


def _by_split(dataset: Any, run: Run, visits: RecordedVisits, wanted: ReplayOptions) -> dict[str | None, Any]:
    """Return the datasets to replay, one after the other, each with the split of its samples; None for all samples at once."""
    if dataset is None:
        return dict.fromkeys(splits_of(builders_of(run.recipe)))
    if isinstance(dataset, (str, os.PathLike)):
        if run.recipe.get("kind") == "run":
            return {None: os.fspath(dataset)}
        dataset = open_dataset(dataset)
    splits = visits.splits()
    if isinstance(dataset, Mapping):
        if not dataset:
            raise UsageError(
                "The mapping of datasets is empty.", hint=f"The run has: {', '.join(splits) or 'no splits'}."
            )
        if unknown := set(dataset) - set(splits):
            raise UsageError(
                f"No sample was recorded with split {sorted(map(str, unknown))[0]!r}.",
                hint=f"The run has: {', '.join(splits) or 'no splits'}.",
            )
        return dict(dataset)
    if len(splits) > 1 and wanted.split is None and not _tells_split(dataset):
        raise UsageError(
            f"The run holds samples of several datasets, by split: {', '.join(splits)}.",
            hint=f"Give one for each: dataset={{{splits[0]!r}: …, {splits[1]!r}: …}}, or only some of them.",
        )
    return {None: dataset}


def _tells_split(dataset: Any) -> bool:
    from audit.recorders.files.origin import origin_of

    return origin_of(dataset, 0).split is not None


def _checkpoint_state(run: Run, digest: str) -> Literal["unchanged", "changed", "unknown"]:
    if run.model_digest is None:
        return "unknown"
    return "unchanged" if digest == run.model_digest else "changed"


def check_choice(everything: bool, indices: Sequence[int], sample: int | None) -> None:
    """Refuse a request that names nothing to replay, or too much at once."""
    if sum((everything, bool(indices), sample is not None)) > 1:
        raise UsageError(
            "The visits to replay are named in several ways.", hint="Give only indices, --sample N or --all."
        )
