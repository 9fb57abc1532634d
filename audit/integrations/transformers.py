"""Hugging Face Transformers: a callback that records whatever the Trainer runs.

    trainer = Trainer(model, args, train_dataset=…, callbacks=[AuditCallback("lineage")])

The Trainer gives its callbacks no part in the making of loaders, and evaluation begins without an event. So the callback
takes hold of the Trainer's own `get_train_dataloader`, `get_eval_dataloader` and `get_test_dataloader`, which are made
to be replaced, and records the DataLoader inside what accelerate prepared. Each `train`, `evaluate` and `predict` is a
separate run; evaluations within a training belong to its run.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Unpack

from torch import nn

from audit.errors import MissingExtra, UsageError
from audit.integrations.callback_recording import CallbackOptions, CallbackRecording, Network, network_of

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise MissingExtra("transformers", "The Transformers callback", extra="transformers") from error

_LOADERS = {"get_train_dataloader": "train", "get_eval_dataloader": "eval", "get_test_dataloader": "test"}
_ATTACH = "Give the callback to Trainer(callbacks=[…]), or call callback.attach(trainer)."


class AuditCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records samples, stages, predictions and steps of a Transformers Trainer. The options are those of
    `audit.record` (name, capture, tags, strict…), of `run.model` (layers, when, every…) and of `run.loader` (label, source, builder).

    `model` says which module gives the logits, by name or as a function of the Trainer's model; left out, it is that model.
    """

    def __init__(
        self, store: str | os.PathLike[str] | None = None, *, model: Network = None, **options: Unpack[CallbackOptions]
    ) -> None:
        self._recording = CallbackRecording(store, options, workers_stay=True)
        self._wanted = model
        self._trainer: Any = None
        self._training = False
        #: What accelerate's loaders held before: put back when the run ends.
        self._before: list[tuple[Any, Any]] = []

    @property
    def run_ids(self) -> list[str]:
        """Return the runs that were recorded, oldest first."""
        return self._recording.run_ids

    def attach(self, trainer: Any) -> AuditCallback:
        """Attach to a Trainer. Needed only to record `evaluate` or `predict` of a Trainer created without the callback."""
        if self._trainer is trainer:
            return self
        if self._trainer is not None:
            raise UsageError(
                "This callback belongs to another Trainer.", hint="Create one AuditCallback for each Trainer."
            )
        self._trainer = trainer
        for name, split in _LOADERS.items():
            setattr(trainer, name, self._record_loaders_of(getattr(trainer, name), split))
        return self

    # -- events ----------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Attach to the Trainer that is being created."""
        if self._trainer is None and (trainer := _trainer_above()) is not None:
            self.attach(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Record the training loader of a Trainer that existed before the callback was added."""
        if self._trainer is None and (trainer := _trainer_above()) is not None:
            self.attach(trainer)
            self._begin("train")
            self._record_inner_loader(train_dataloader, "train", inside_only=True)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the epoch, before the Trainer draws from the loader."""
        self._recording.set_epoch(int((state.epoch or 0) + 1e-6))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the run of a training."""
        self._training = False
        self._end()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """End the run of a separate evaluation."""
        if not self._training:
            self._end()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """End the run of a prediction."""
        if not self._training:
            self._end()

    # -- loaders ---------------------------------------------------------------------------------

    def _record_loaders_of(self, make: Callable[..., Any], split: str) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_recorded(*args: Any, **kwargs: Any) -> Any:
            loader = make(*args, **kwargs)
            self._begin(split)
            return self._record_inner_loader(loader, split)

        return make_recorded

    def _begin(self, split: str) -> None:
        """Start a run for a training, or for an evaluation that is not part of a training."""
        if split == "train":
            self._training = True
        elif self._training and self._recording.run is not None:
            return
        self._put_back()
        tags = {"transformers": "train" if split == "train" else "evaluate" if split == "eval" else "predict"}
        rank = self._trainer.args.process_index
        self._recording.begin(tags | ({"rank": str(rank)} if self._trainer.args.world_size > 1 else {}))
        if split == "train":
            self._recording.set_epoch(0)
        self._recording.watch(network_of(self._trainer.model, self._wanted, _return_model))

    def _record_inner_loader(self, loader: Any, split: str, *, inside_only: bool = False) -> Any:
        """Record the DataLoader inside accelerate's loader, which only moves batches to the device."""
        held = getattr(loader, "__dict__", {}).get("base_dataloader")
        if held is None:
            if inside_only:
                self._recording.complain(UsageError("The training loader is already in use.", hint=_ATTACH))
                return loader
            return self._recording.loader(loader, split)
        recorded = self._recording.loader(held, split)
        if recorded is not held:
            self._before.append((loader, held))
            loader.base_dataloader = recorded
        return loader

    def _end(self) -> None:
        self._put_back()
        self._recording.end()

    def _put_back(self) -> None:
        for loader, held in self._before:
            loader.base_dataloader = held
        self._before.clear()


def _return_model(model: nn.Module) -> nn.Module:
    return model


def _trainer_above() -> Any:
    """Return the Trainer from the call stack, because events do not pass it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    return None
