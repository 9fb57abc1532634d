"""Rows of predicted tokens beside those of their targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from audit.recorders.model.tasks.task_rows import IGNORED_TARGET, TaskContext, TaskRows


def is_sequence(target: Any) -> bool:
    """Return whether a target is a sequence of whole numbers."""
    return isinstance(target, np.ndarray) and target.ndim == 1 and np.issubdtype(target.dtype, np.integer)


def add_tokens(rows: TaskRows, sample: int, scores: torch.Tensor, context: TaskContext) -> float | None:
    """Add the rows of one sequence; return its mean loss."""
    scores = scores.detach().float().cpu()
    wanted = _read_wanted_tokens(rows, sample, scores, context)
    finite = torch.isfinite(scores).all(1)
    if not bool(finite.all()):
        rows.mark("A position has scores that are NaN or infinite: it has no predicted token, and counts as wrong.")
    if not len(scores) or (wanted is not None and bool((wanted == IGNORED_TARGET).all())):
        rows.mark("A sequence has no position that counts (it is empty, or every target is -100): it is not graded.")
    logs = functional.log_softmax(scores, dim=1)
    best = scores.argmax(1)
    inside = None if wanted is None else (wanted >= 0) & (wanted < scores.shape[1])
    chosen = best if wanted is None or inside is None else torch.where(inside, wanted, best)
    logged = logs[torch.arange(len(scores)), chosen]
    losses = []
    for position in range(len(scores)):
        target = None if wanted is None else int(wanted[position])
        if target == IGNORED_TARGET:
            continue
        known = bool(finite[position])
        is_graded = known and target is not None and inside is not None and bool(inside[position])
        loss = -float(logged[position]) if is_graded else None
        if loss is not None:
            losses.append(loss)
        predicted = int(best[position]) if known else None
        has_probability = is_graded or (known and target is None)
        rows.add(
            "tokens",
            sample,
            position=position,
            target=target,
            predicted=predicted,
            probability=float(logged[position].exp()) if has_probability else None,
            loss=loss,
            # Losses leave negative targets out (ignore_index); one beyond the outputs can never be right.
            correct=None if target is None or target < 0 else predicted == target,
        )
    return sum(losses) / len(losses) if losses else None


def _read_wanted_tokens(rows: TaskRows, sample: int, scores: torch.Tensor, context: TaskContext) -> torch.Tensor | None:
    """Return the target of each position; None if there are none that fit."""
    target = context.targets[sample]
    if not is_sequence(target):
        return None
    if len(target) != len(scores):
        rows.mark(f"A sequence has {len(target)} targets and {len(scores)} outputs: such sequences are not graded.")
        return None
    wanted = torch.from_numpy(target.astype(np.int64))
    if _is_next_token(context, sample, wanted):
        # Hugging Face's convention: the output at a position is for the token after it.
        wanted = torch.cat([wanted[1:], wanted.new_full((1,), IGNORED_TARGET)])
    if bool(((wanted != IGNORED_TARGET) & ((wanted < 0) | (wanted >= scores.shape[1]))).any()):
        rows.mark(f"A target token is beyond the model's {scores.shape[1]} outputs: such tokens have no loss.")
    return wanted


def _is_next_token(context: TaskContext, sample: int, wanted: torch.Tensor) -> bool:
    """Return whether the targets are the model's own input, so that each output is for the next token."""
    given = context.tokens
    if given is None or given.dim() != 2 or given.shape[1] != len(wanted) or given.is_floating_point():
        return False
    counted = wanted != IGNORED_TARGET
    return bool(counted.any()) and bool((given[context.inputs[sample]].cpu()[counted] == wanted[counted]).all())
