"""Find the logits in a classifier's output, and turn them into probabilities.

It never guesses: if more than one tensor, or more than one axis, could hold the classes, it raises `UnclearOutput`.
Logits are (N, C). A single logit per sample, as (N,) or (N, 1), means two classes through a sigmoid: class 1 is
predicted when its probability is over 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from audit.errors import UnclearOutput
from audit.models.output_tree import is_weight, iterate_leaves, list_entries

_HINT = (
    "Say what it is with output= (--output): tokens for (N, T, V), masks for (N, C, H, W), regression or embedding. "
    "Pick one of several outputs with logits= (--output KEY=KIND). Wrap it in a module that returns one (N, C) tensor of "
    "logits, if neither fits."
)
_WRAP_HINT = "Wrap it in a module that returns one (N, C) tensor of logits, or several tensors in a dict or a tuple."


def logits_of(output: object, *, batch: int | None = None, module: nn.Module | None = None) -> torch.Tensor:
    """Return the logits in a model's output as (N, C), or (N, 1) for a single logit; N must be `batch` if given.

    Takes a tensor, or a tuple, list, mapping or dataclass that holds, at any depth, exactly one tensor which can be the
    logits, where a weight of the model (`module`) cannot be; or an object that calls one of its entries `logits` (Hugging Face's ModelOutput; torchvision's Inception outputs).
    """
    if isinstance(output, torch.Tensor):
        return _check_shape(output, batch)
    named = find_named_logits(output)
    if named is not None:
        return logits_of(named, batch=batch, module=module)
    if list_entries(output, batch) is None:
        raise UnclearOutput(f"The model returned {_kind(output)}, in which no logits can be found.", hint=_WRAP_HINT)
    return _only_candidate(dict(iterate_leaves(output, batch)), _kind(output), batch, module)


def find_named_logits(output: object) -> object | None:
    """Return the entry or attribute `logits` of what a model returned; None if it has none."""
    if isinstance(output, Mapping):
        return output.get("logits")
    return None if callable(getattr(output, "logits", None)) else getattr(output, "logits", None)


def require_plain(value: object) -> None:
    """Raise UnclearOutput for a tensor whose numbers cannot be read row by row: sparse, nested, or without values."""
    if not isinstance(value, torch.Tensor):
        return
    form = (
        "nested"
        if value.is_nested
        else "sparse"
        if value.layout is not torch.strided
        else "meta"
        if value.is_meta
        else None
    )
    if form is not None:
        raise UnclearOutput(
            f"The model returned a {form} tensor, whose numbers cannot be read row by row.",
            hint="Return a dense tensor with a row for each sample, such as output.to_dense().",
        )


def _only_candidate(entries: dict[str, object], kind: str, batch: int | None, module: nn.Module | None) -> torch.Tensor:
    only = next(iter(entries.values())) if len(entries) == 1 else None
    if only is not None and list_entries(only, batch) is None:  # what lies too deep is a container still
        return logits_of(only, batch=batch)
    candidates = {port: value for port, value in entries.items() if _may_be_logits(value, batch, module)}
    if len(candidates) == 1:
        return logits_of(next(iter(candidates.values())), batch=batch)
    shown = ", ".join(f"{port!r}: {_kind(value, batch)}" for port, value in list(entries.items())[:8]) or "nothing"
    named = ", ".join(map(repr, list(candidates)[:8]))
    count = "no entry" if not candidates else f"more than one entry ({named})"
    raise UnclearOutput(f"The model returned {kind} in which {count} can be the logits: {shown}.", hint=_HINT)


def _may_be_logits(value: object, batch: int | None, module: nn.Module | None) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_nested or value.is_meta or value.layout is not torch.strided:
        return False
    may_be = value.is_floating_point() and value.dim() in (1, 2) and batch in (None, value.shape[0])
    return may_be and not is_weight(value, module)


def _check_shape(tensor: torch.Tensor, batch: int | None) -> torch.Tensor:
    require_plain(tensor)
    shape = tuple(tensor.shape)
    if not tensor.is_floating_point():
        reason = f"{tensor.dtype} numbers, not logits (classes already chosen?)"
        raise UnclearOutput(f"The model returned a tensor of shape {shape} of {reason}.", hint=_HINT)
    if not shape:
        raise UnclearOutput("The model returned one number for the whole batch.", hint=_HINT)
    if len(shape) > 2:
        raise UnclearOutput(
            f"The model returned {_kind(tensor, batch)}: it is not clear which axis is the class axis.", hint=_HINT
        )
    if len(shape) == 2 and shape[1] == 0:
        raise UnclearOutput(f"The model returned a tensor of shape {shape}: it has no classes.", hint=_HINT)
    if batch is not None and shape[0] != batch:
        raise UnclearOutput(
            f"The model returned a tensor of shape {shape} for a batch of {batch}: its first axis is not the batch.",
            hint=_HINT,
        )
    return tensor if len(shape) == 2 else tensor.unsqueeze(1)


def probabilities_of(logits: torch.Tensor) -> torch.Tensor:
    """Return class probabilities (N, C): softmax, or for a single logit x the pair [1 - sigmoid(x), sigmoid(x)].

    Half precision is computed in float32. Non-finite logits give non-finite probabilities; they are not repaired.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    if logits.dim() != 2:
        raise UnclearOutput(f"Logits have the shape {tuple(logits.shape)}, not (N, C).", hint=_HINT)
    if logits.shape[1] == 1:
        # sigmoid(-x) is 1 - sigmoid(x) without losing the small one to rounding.
        return torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)], dim=1)
    return torch.softmax(logits, dim=1)


def _kind(value: object, batch: int | None = None) -> str:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return "a nested tensor"
    if isinstance(value, torch.Tensor):
        # The axis of the batch has a letter, so that batches of different length are described by one sentence.
        lengths = [str(length) for length in value.shape]
        if lengths and batch is not None and value.shape[0] == batch:
            lengths[0] = "N"
        return (
            f"a ({', '.join(lengths)}{',' * (len(lengths) == 1)}) tensor of {str(value.dtype).removeprefix('torch.')}"
        )
    return "None" if value is None else f"a {type(value).__name__}"
