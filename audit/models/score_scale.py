"""Whether scores are logits or probabilities, where each class is decided by itself or each pixel has scores of its own.

Declared, or shown by the values: scores of all classes that add up to 1 are probabilities, one outside of 0 to 1 is a logit.
Values that all lie between 0 and 1 may be both; then the model's last module decides, or what the loop uses them for.
"""

from __future__ import annotations

import torch
from torch import nn

from audit.models.meaning import last_module, lies_inside, sums_to_one

#: What each declared kind says of the numbers.
SCALES = {
    "logits": "logits",
    "log_probabilities": "logits",
    "probabilities": "probabilities",
    "sigmoid": "probabilities",
}
#: The logits of one class easily have the same sign for all samples: so many classes and values are not there by chance.
_MANY_CLASSES, _MANY_VALUES = 8, 48
#: What is said of scores that may be both.
UNCLEAR = (
    "every score lies between 0 and 1, and nothing shows whether they are logits or probabilities: {result}. Say it with output "
    "(--output): sigmoid if they are probabilities, logits if not."
)


class ScoreScale:
    """The scale of one output: `logits`, `probabilities`, or None where neither is evident."""

    def __init__(self, module: nn.Module, declared: str | None) -> None:
        self._module = module
        self._declared = SCALES.get(declared or "")
        #: Whether the scores of the last call may be both, so that what the loop uses them for says more.
        self.is_open = False
        #: What was found out so far, by whether the model was in training mode: models may return other things then.
        self._known: dict[bool, str] = {}

    @property
    def _is_training(self) -> bool:
        return bool(getattr(self._module, "training", False))

    def note_use(self, *, as_logits: bool) -> None:
        """Take in what the loop uses the output for."""
        self._known[self._is_training] = "logits" if as_logits else "probabilities"
        self.is_open = False

    def read(self, scores: torch.Tensor, *, exclusive: bool) -> str | None:
        """Return the scale of scores (N, C, …) of one call; `exclusive` classes are those of which each place has one."""
        found = self._find(scores, exclusive)
        self.is_open = found is None
        return found

    def _find(self, scores: torch.Tensor, exclusive: bool) -> str | None:
        if self._declared is not None:
            return self._declared
        scores = scores.detach()
        finite = scores[torch.isfinite(scores)]
        if finite.numel() and not lies_inside(finite):
            self._known[self._is_training] = "logits"
            return "logits"
        if not bool(finite.any()):
            return "logits"  # of a last layer that was set to zero: no sigmoid gives nothing but zeros
        if exclusive and scores.shape[1] > 1 and sums_to_one(scores):
            return "probabilities"
        is_many = scores.shape[1] >= _MANY_CLASSES and scores.numel() >= _MANY_VALUES
        known = self._known.get(self._is_training)
        if isinstance(last_module(self._module), nn.Sigmoid) or (is_many and known is None):
            return "probabilities"
        return known


def as_logits(scores: torch.Tensor) -> torch.Tensor:
    """Return probabilities (N, C, …) as logits that have the same losses; one class stands for two, as for a sigmoid."""
    shares = scores.detach().float()
    # As torch's binary cross entropy does it: the loss of a share of 0 is 100.
    logs = shares.log().clamp(min=-100)
    return logs - torch.log1p(-shares).clamp(min=-100) if scores.shape[1] == 1 else logs
