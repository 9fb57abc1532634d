"""A dataset whose items leave rows behind: the recorder that runs inside a worker.

`RecordedDataset` is what `audit run` gives to the DataLoader. It never raises for a sample: what
cannot be read or transformed becomes a failed row with its path, stage and error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from audit.recorders.activity import Activity
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.envelope import RecordedBatch
from audit.recorders.randomness.visit_randomness import SeededRandomness, VisitRequest
from audit.recorders.shared_memory import to_send
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.item_recorder import ItemRecorder
from audit.recorders.visit.make import VisitMaker
from audit.usercode import CodeFiles


class RecordedDataset:
    """Fetches whole batches of samples, each recorded on its way."""

    def __init__(
        self,
        dataset: Any,
        pipeline: Pipeline,
        *,
        level: CaptureLevel,
        seed: int,
        want_inputs: bool,
        epoch: int = 0,
        code: CodeFiles | None = None,
        given_up: dict[int, tuple[str, str]] | None = None,
        head_targets: Mapping[str, str | int] | None = None,
    ) -> None:
        # First, so that it is unpickled first: a spawned worker then imports the code that this process runs.
        self.code = code
        self.dataset = dataset
        self.pipeline = pipeline
        self.activity = Activity()
        maker = VisitMaker(
            dataset, pipeline, SeededRandomness(dataset, seed), require_value=True, activity=self.activity
        )
        #: Samples that took too long, with the stage and the reason: they are not tried again.
        self.given_up = given_up if given_up is not None else {}
        self._recorder = ItemRecorder(maker, level, all_targets=want_inputs, head_targets=head_targets)
        self.want_inputs = want_inputs
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> RecordedBatch:
        """Record one batch; called by the DataLoader in a worker."""
        self._recorder.clear()
        inputs: list[Any] = []
        with self._recorder.sequence():
            for index in indices:
                if index in self.given_up:
                    self._recorder.add_stalled(index, *self.given_up[index])
                    continue
                made = self._recorder.add(VisitRequest(index, self.epoch))
                if self.want_inputs and made.visit.error is None:
                    inputs.append(made.value)
        batch = self._recorder.take_batch(_stack(inputs), indexed=True)
        return to_send(batch, [batch.data, batch.item_targets, batch.item_head_targets])

    def prepare_workers(self) -> None:
        """Do what each worker would do before its first sample; to be called just before workers are forked."""
        self._recorder.prepare_workers()

    def give_up(self, index: int, stage: str, error: str) -> None:
        """Record a sample as failed from now on, instead of making it. Workers that are running do not hear of it."""
        self.given_up[index] = stage, error

    def repeat_unrecorded(self) -> None:
        """Send what was not seen once more, with the next batch."""
        self._recorder.repeat_unrecorded()

    def batch_of_lost_sample(self, index: int) -> RecordedBatch:
        """Return the batch of one sample whose worker process died."""
        if index in self.given_up:
            return self.__getitems__([index])
        self._recorder.clear()
        self._recorder.add_lost(index)
        return self._recorder.take_batch(None, indexed=True)


def _stack(inputs: list[Any]) -> Any:
    """Return one tensor where the samples have one shape, as the DataLoader would; else the list."""
    if not inputs:
        return None
    try:
        return torch.utils.data.default_collate(inputs)
    except TypeError:
        return inputs
    except RuntimeError:  # other shapes, or a worker that finds shared memory full
        alike = all(isinstance(one, torch.Tensor) and one.shape == inputs[0].shape for one in inputs)
        return torch.stack(inputs) if alike else inputs
