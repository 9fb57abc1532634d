"""Lightning: a callback that records whatever the Trainer runs.

    trainer = Trainer(callbacks=[AuditCallback("lineage")])

Lightning builds new loaders (samplers for several devices, overfitting) and lets the strategy process each one last
of all. There they are recorded: after Lightning is done with them, before anything is drawn from them. Each `fit`,
`validate`, `test` and `predict` is a separate run. The batches of the sanity check are recorded as epoch -1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Unpack

from torch import nn

from audit.errors import MissingExtra
from audit.integrations.callback_recording import CallbackOptions, CallbackRecording, Network, network_of

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtra("lightning", "The Lightning callback", extra="lightning") from error

_SANITY = -1


class AuditCallback(Callback):
    """Records samples, stages, predictions and steps of a Lightning Trainer. The options are those of
    `audit.record` (name, capture, tags, strict…), of `run.model` (layers, when, every…) and of `run.loader` (label, source, builder).

    `model` says which module gives the logits: the name of a submodule, or a function of the LightningModule. Left out,
    it is the LightningModule itself if it has a `forward`, else its only child with parameters.
    """

    def __init__(
        self, store: str | os.PathLike[str] | None = None, *, model: Network = None, **options: Unpack[CallbackOptions]
    ) -> None:
        self._recording = CallbackRecording(store, options)
        self._wanted = model
        self._process: Callable[[object], object] | None = None

    @property
    def run_ids(self) -> list[str]:
        """Return the runs that were recorded, oldest first."""
        return self._recording.run_ids

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin the run, before any loader is made."""
        self._release(trainer)
        tags = {"lightning": stage}
        if trainer.world_size > 1:
            tags["rank"] = str(trainer.global_rank)
        network = network_of(pl_module, self._wanted, _default_model)
        self._recording.begin(tags)
        self._recording.watch(network)
        self._record_loaders(trainer)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mark the following batches as not part of a training epoch."""
        self._set_epoch(_SANITY)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mark the following batches as part of the training again."""
        self._set_epoch(trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch; Lightning draws from the loader after this call."""
        self._set_epoch(trainer.current_epoch)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the run with the status and the error of the loop."""
        self._release(trainer)
        self._recording.end(error=exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run as complete."""
        self._release(trainer)
        self._recording.end()

    def _record_loaders(self, trainer: Trainer) -> None:
        strategy = trainer.strategy
        process = strategy.process_dataloader

        def process_recorded(loader: object) -> object:
            made = process(loader)
            if not trainer.sanity_checking:
                # Lightning draws a loader's first epoch at once, before any hook can set the epoch.
                self._set_epoch(trainer.current_epoch)
            return self._recording.loader(made, _split(trainer))

        self._process = process_recorded
        strategy.__dict__["process_dataloader"] = process_recorded

    def _release(self, trainer: Trainer) -> None:
        """Remove the replacement, so that the strategy uses its class's method again."""
        if self._process is not None and trainer.strategy.__dict__.get("process_dataloader") is self._process:
            del trainer.strategy.__dict__["process_dataloader"]
        self._process = None

    def _set_epoch(self, epoch: int) -> None:
        self._recording.set_epoch(epoch)


def _split(trainer: Trainer) -> str:
    if trainer.sanity_checking or trainer.validating:
        return "validate"
    return "test" if trainer.testing else "predict" if trainer.predicting else "train"


def _default_model(module: nn.Module) -> nn.Module:
    """Return the module itself if it has a `forward`, or else its only child with parameters."""
    if type(module).forward is not LightningModule.forward:
        return module
    holding = [child for child in module.children() if any(True for _ in child.parameters())]
    return holding[0] if len(holding) == 1 else module
