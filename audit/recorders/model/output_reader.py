"""Reads one model's outputs: which tensor is meant, what its numbers mean, and whether that stays so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from audit.errors import UnclearOutput, UsageError
from audit.models.meaning import (
    MOST_NUMBERS,
    OutputMeaning,
    check_kind,
    doubt_targets,
    find_meaning,
    lies_inside,
    sums_to_one,
)
from audit.models.outputs import find_named_logits, logits_of, require_plain
from audit.models.score_scale import SCALES, ScoreScale
from audit.models.task_outputs import (
    TASK_KINDS,
    TaskOutput,
    describe_output,
    is_mask,
    looks_like_boxes,
    looks_like_masks,
    pixel_scores,
    read_boxes,
    read_masks,
    read_tokens,
)
from audit.recorders.model.scale_doubt import ScaleDoubt
from audit.recorders.model.tasks.mask_rows import as_mask

#: How far a probability may lie outside of 0 to 1, as rounding leaves it.
_NEAR = 1e-3
#: A key, a position or a function that picks the tensor out of what a model returns; False for none at all.
Picker = str | int | bool | Callable[[Any], Any] | None


class OutputReader:
    """What `run.model(output=…, logits=…)` says, and what the first output shows."""

    def __init__(self, module: nn.Module, name: str, kind: str | None, pick: Picker) -> None:
        self._module = module
        self.name = name
        self._declared = check_kind(kind)
        if pick is True or not (pick is None or isinstance(pick, (str, int)) or callable(pick)):
            raise UsageError(
                f"logits cannot be {pick!r}.", hint="Give a key, a position, a function, or False for none."
            )
        self._pick = pick
        self.meaning: OutputMeaning | None = None
        self._width: int | None = None
        #: Whether the model itself calls its output logits.
        self._is_named = False
        #: Whether values that are taken for logits may be probabilities.
        self.scale = ScaleDoubt()
        #: Whether scores of several labels, of pixels or of tokens are logits.
        self.scores = ScoreScale(module, self._declared)

    @property
    def is_read(self) -> bool:
        """Whether anything of the output is recorded."""
        return self._pick is not False

    @property
    def is_declared(self) -> bool:
        """Whether the user said what the numbers mean."""
        return self._declared is not None

    @property
    def is_embedding(self) -> bool:
        """Whether the output was declared as a vector, which nothing is compared with."""
        return self._declared == "embedding"

    def read_task(self, output: Any, size: int, targets: list[Any]) -> TaskOutput | None:
        """Return boxes, masks or tokens; None where the output is to be one row of numbers for each sample."""
        picked = self._pick_from(output)
        require_plain(picked)
        kind = self._task_kind(picked, targets)
        if kind == "boxes":
            return read_boxes(picked, size, self.name)
        if kind == "masks":
            return read_masks(picked, size, self.name, self.scores)
        if kind == "tokens":
            lengths = {len(target) for target in targets if getattr(target, "ndim", 0) == 1}
            return read_tokens(picked, size, self.name, lengths.pop() if len(lengths) == 1 else None, self.scores)
        return None

    def _task_kind(self, picked: Any, targets: list[Any]) -> str | None:
        if (
            self._declared in SCALES
            and pixel_scores(picked) is not None
            and any(is_mask(as_mask(one)) for one in targets)
        ):
            return "masks"
        if self._declared is not None:
            return self._declared if self._declared in TASK_KINDS else None
        evident = "boxes" if looks_like_boxes(picked) else "masks" if looks_like_masks(picked, targets) else None
        known = self.meaning.kind if self.meaning is not None else None
        if known == "masks" and pixel_scores(picked) is not None:
            return known  # this time there are no targets beside it
        if known is not None and known != evident and (known in TASK_KINDS or evident is not None):
            raise UnclearOutput(
                f"The output of the model {self.name} was {known}, and now it returned {describe_output(picked)}: this is "
                "not recorded.",
                hint="Say what the output is with output=, or pick one that keeps its form with logits=.",
            )
        return evident

    def note_task(self, kind: str) -> tuple[OutputMeaning, bool]:
        """Return the meaning of an output that is boxes, masks or tokens, and whether that was found out just now."""
        is_new = self.meaning is None
        if self.meaning is None:
            self.meaning = OutputMeaning(kind, "It was declared." if self._declared is not None else TASK_KINDS[kind])
        return self.meaning, is_new

    def values(self, output: Any, size: int, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return the values (N, C) that are recorded; `targets` show whether an output of more axes is measured values."""
        picked = self._pick_from(output)
        self._is_named = not isinstance(picked, torch.Tensor) and find_named_logits(picked) is not None
        flat = self._flatten(picked, size, targets)
        tensor = logits_of(flat, batch=size, module=self._module).detach()
        if self._width is not None and tensor.shape[1] != self._width:
            was, now = self._width, tensor.shape[1]
            raise UnclearOutput(
                f"The model {self.name} gave {was} numbers for each sample, and now {now}: these are not recorded.",
                hint="Pick an output that keeps its form with logits=: a key, a position or a function.",
            )
        self._width = tensor.shape[1]
        return tensor

    def _flatten(self, picked: Any, size: int, targets: torch.Tensor | None) -> Any:
        """Return an output of measured values as (N, C), where it has more axes; any other as it is."""
        if not isinstance(picked, torch.Tensor) or picked.dim() < 3 or picked.shape[0] != size:
            return picked
        is_alike = targets is not None and targets.is_floating_point() and targets.shape[1:] == picked.shape[1:]
        if self._declared not in ("regression", "embedding") and not (self._declared is None and is_alike):
            return picked
        if (count := picked[0].numel()) > MOST_NUMBERS:
            raise UnclearOutput(
                f"The model {self.name} gave {count:,} numbers for each sample: more than {MOST_NUMBERS:,} are not recorded.",
                hint="Pick a part of them with logits=: a key, a position or a function.",
            )
        return picked.flatten(1)

    def label_scale(self, values: torch.Tensor) -> str | None:
        """Return whether the values of several labels are `logits` or `probabilities`; None where neither is evident."""
        is_several = self.meaning is not None and self.meaning.kind == "multilabel"
        return self.scores.read(values, exclusive=False) if is_several else "logits"

    def _require_same_scale(self, values: torch.Tensor) -> None:
        """Raise UnclearOutput where a model that gave logits gives probabilities now, or the other way round."""
        kind = self.meaning.kind if self.meaning is not None else None
        now = None
        if (
            kind == "logits"
            and not self._is_named
            and values.shape[1] > 1
            and lies_inside(values)
            and sums_to_one(values)
        ):
            now = "each row lies between 0 and 1 and adds up to 1"
        elif kind in ("probabilities", "sigmoid") and _has_finite(values, (values < -_NEAR) | (values > 1 + _NEAR)):
            now = "some numbers lie outside of 0 to 1"
        elif kind == "log_probabilities" and _has_finite(values, values > _NEAR):
            now = "some numbers are above 0"
        if now is not None:
            raise UnclearOutput(
                f"The output of the model {self.name} was {kind}, and now {now}: this is not recorded.",
                hint="Return the same in training and evaluation, or say what the output is with output=.",
            )

    def _pick_from(self, output: Any) -> Any:
        pick = self._pick
        if pick is None:
            return output
        if callable(pick):
            return pick(output)
        try:
            return output[pick] if isinstance(pick, int) or isinstance(output, Mapping) else getattr(output, str(pick))
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise UnclearOutput(
                f"The model {self.name} returned a {type(output).__name__} without {pick!r}.",
                hint="Give logits= a key, a position or a function that fits what the model returns.",
            ) from error

    def find_meaning(
        self,
        values: torch.Tensor,
        labels: list[int | None],
        targets: torch.Tensor | None,
        classes: Sequence[str] | None = None,
    ) -> tuple[OutputMeaning, bool]:
        """Return what the values mean, and whether that was found out just now."""
        is_new = self.meaning is None
        if self.meaning is None:
            self.meaning = find_meaning(
                values, declared=self._declared, module=self._module, labels=labels, targets=targets, classes=classes
            )
            if self._is_named and self.meaning.kind == "logits" and self.meaning.doubt is None:
                self.meaning = replace(self.meaning, evidence="The model calls it logits.")
        elif self._declared is None:
            self._require_same_scale(values)
        if not is_new and self._declared is None and self.meaning.doubt is None:
            doubt = doubt_targets(self.meaning, values.shape[1], labels, targets)
            if doubt is not None:
                self.meaning, is_new = replace(self.meaning, doubt=doubt), True
        if self.is_declared or self._is_named or self.meaning.kind != "logits" or self.meaning.doubt is not None:
            self.scale.close()
        if self.scale.is_open:
            self.scale.add(values)
        return self.meaning, is_new


def _has_finite(values: torch.Tensor, chosen: torch.Tensor) -> bool:
    """Return whether any of the chosen values is finite."""
    return bool((chosen & torch.isfinite(values)).any())
