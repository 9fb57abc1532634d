"""What a layer of a run's model gives for every sample of its last epoch: visits made again, and the model called with a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from audit.errors import AuditError, UsageError
from audit.lineage.replay.model import ReplayModel
from audit.lineage.replay.pipeline import ReplayTask, rebuild_pipeline, replay_all
from audit.lineage.replay.recorded_visits import Key, RecordedVisits
from audit.records import Progress, Run
from audit.store.read.reader import Reader

_BATCH = 32


def layer_outputs(
    reader: Reader,
    run: Run,
    layer: str,
    epoch: int,
    *,
    trust: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[list[Key], npt.NDArray[np.float32]]:
    """Return the keys and one vector for each: the layer's output, averaged over places. Runs the recorded pipeline."""
    model = ReplayModel(run, reader.location, None, trust=trust)
    keys: list[Key] = []
    vectors: list[npt.NDArray[np.float32]] = []
    with model.watch_layer(layer) as seen:
        for some, inputs in _batches(reader, run, epoch, trust, progress):
            seen.clear()
            model.logits(inputs)
            found = np.concatenate([_vectors(output) for output in seen])
            if len(found) != len(inputs):
                raise AuditError(
                    f"The layer {layer} gives {len(found)} outputs for {len(inputs)} samples: choose another."
                )
            keys += some
            vectors.append(found)
    if not vectors:
        raise AuditError(f"No sample of the run {run.run_id} could be made again.", hint="See why with: audit replay")
    return keys, np.concatenate(vectors)


def _batches(
    reader: Reader, run: Run, epoch: int, trust: bool, progress: Callable[[Progress], None] | None
) -> Iterator[tuple[list[Key], list[Any]]]:
    visits = RecordedVisits(reader, run.run_id)
    pipeline = rebuild_pipeline(run, reader.location, named=visits.find_named_stages(), split=None, trust=trust)
    pipeline.keep_final = True
    keys = visits.keys((), epoch, None, None)
    done = 0
    waiting: list[tuple[Key, Any]] = []
    for facts in visits.chunks(keys):
        states = {} if pipeline.seeded else visits.states(list(facts))
        tasks = [
            ReplayTask(*key, states.get(key, {}), place)
            for key, fact in facts.items()
            if (place := pipeline.place_of(key[1], fact["source"], fact["root"], states.get(key, {}))) is not None
        ]
        with closing(replay_all(pipeline, tasks, workers=0)) as outcomes:
            for outcome in outcomes:
                done += 1
                if progress is not None:
                    progress(Progress(done, len(keys), doing="embedding"))
                if outcome.final is not None:
                    task = outcome.task
                    waiting.append(((task.epoch, task.index, task.visit), outcome.final))
                if len(waiting) == _BATCH:
                    yield [key for key, _ in waiting], [value for _, value in waiting]
                    waiting = []
    if waiting:
        yield [key for key, _ in waiting], [value for _, value in waiting]


def _vectors(output: Any) -> npt.NDArray[np.float32]:
    """Return one vector for each sample of a batch: of a feature map the mean of each channel."""
    if not isinstance(output, torch.Tensor) or output.ndim < 2:
        raise UsageError("The output of this layer is not a batch of vectors.", hint="Choose another with --layer.")
    flat = output.flatten(2).mean(2) if output.ndim > 2 else output
    return np.asarray(flat.detach().float().cpu().numpy(), np.float32)
