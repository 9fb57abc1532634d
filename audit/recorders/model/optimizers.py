"""Learning rate and gradient norm at each optimizer step of a recorded model, read and not touched."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from audit.recorders.model.batch_tracker import BatchTracker
from audit.recorders.model.recorded_model import RecordedModel
from audit.recorders.model.step import ModelStep
from audit.recorders.problems import Problems


class OptimizerWatch:
    """Observes every optimizer step in the process, and notes on the current model step those of recorded models."""

    def __init__(self, problems: Problems, tracker: BatchTracker) -> None:
        self._tracker = tracker
        self._problems = problems
        self._models: list[weakref.ref[RecordedModel]] = []
        self._step: ModelStep | None = None
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def watch(self, watched: RecordedModel) -> None:
        """Observe the optimizers of this model's parameters."""
        self._models.append(weakref.ref(watched))

    def set_step(self, step: ModelStep) -> None:
        """Note the next optimizer steps on this model step."""
        self._step = step

    def remove(self) -> None:
        """Stop to observe."""
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Before the step gradients are as they were computed. A closure computes them only within it.
        if not _has_closure(args, kwargs):
            with self._problems.guard():
                self._note(optimizer)
            # What an optimizer does to parameters is of no interest, and much.
            self._tracker.pause()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _has_closure(args, kwargs):
            with self._problems.guard():
                self._note(optimizer)
        else:
            self._tracker.resume()

    def _note(self, optimizer: torch.optim.Optimizer) -> None:
        step = self._step
        if step is None or step.written:
            return
        # Read again each time: parameters may have been replaced, by lazy modules or by moving the model.
        models = [model for reference in self._models if (model := reference()) is not None]
        known = {id(parameter) for watched in models for parameter in watched.model.parameters()}
        own = [(group, p) for group in optimizer.param_groups for p in group["params"] if id(p) in known]
        if not own:
            return
        rate = own[0][0].get("lr")
        gradients = [p.grad.detach() for _, p in own if p.grad is not None and not p.grad.is_sparse]
        norm = None
        if gradients:
            with torch.no_grad():
                norm = float(torch.nn.utils.get_total_norm(gradients))
        step.learning_rate, step.gradient_norm = float(rate) if rate is not None else None, norm
        for watched in models:
            if watched.layers is not None:
                watched.layers.parameter_gradients(step)


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    # The optimizer itself is the first argument.
    return any(callable(value) for value in (*args[1:], kwargs.get("closure")))
