"""Learning rate and gradient norm at each optimizer step of a recorded model, read and not touched."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from audit.recorders.model.batch_tracker import BatchTracker
from audit.recorders.problems import Problems

#: Told the learning rate and the norm of all gradients, each None where there is none.
Heard = Callable[[float | None, float | None], None]


class OptimizerWatch:
    """Hears every optimizer step in the process, and keeps to those that step a recorded model."""

    def __init__(self, heard: Heard, problems: Problems, tracker: BatchTracker) -> None:
        self._heard = heard
        self._tracker = tracker
        self._problems = problems
        self._models: list[weakref.ref[nn.Module]] = []
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def watch(self, model: nn.Module) -> None:
        """Attend to this model's parameters."""
        self._models.append(weakref.ref(model))

    def remove(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Before the step gradients are as they were computed. A closure computes them only within it.
        if not _has_closure(args, kwargs):
            with self._problems.caught():
                self._look(optimizer)
            # What an optimizer does to parameters is of no interest, and much.
            self._tracker.pause()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _has_closure(args, kwargs):
            with self._problems.caught():
                self._look(optimizer)
        else:
            self._tracker.resume()

    def _look(self, optimizer: torch.optim.Optimizer) -> None:
        # Asked anew each time: parameters may have been replaced, by lazy modules or by moving the model.
        models = [model for reference in self._models if (model := reference()) is not None]
        watched = {id(parameter) for model in models for parameter in model.parameters()}
        own = [(group, p) for group in optimizer.param_groups for p in group["params"] if id(p) in watched]
        if not own:
            return
        rate = own[0][0].get("lr")
        gradients = [p.grad.detach() for _, p in own if p.grad is not None and not p.grad.is_sparse]
        norm = None
        if gradients:
            with torch.no_grad():
                norm = float(torch.nn.utils.get_total_norm(gradients))
        self._heard(float(rate) if rate is not None else None, norm)


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    # The optimizer itself is the first argument.
    return any(callable(value) for value in (*args[1:], kwargs.get("closure")))
