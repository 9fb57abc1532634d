"""Digests of the rows of a model's input, as the last stage of each sample would have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from audit import values
from audit.recorders.model.step import Place

Form = Callable[[torch.Tensor], Any]
#: More numbers are not taken for a list, unless they may be tokens: to digest a picture as nested lists takes a second.
_MOST_LISTED = 1024


def _as_list(row: torch.Tensor) -> Any:
    """Return a row as the list or number that it may have been; raise ValueError if it has too many numbers for that."""
    may_be_tokens = row.dim() == 1 and not row.is_floating_point()
    if row.numel() > _MOST_LISTED and not may_be_tokens:
        raise ValueError("a tensor of many numbers is not taken for a list")
    return row.tolist()


#: An array, a number or a list became a tensor when it was collated: the same content under another kind.
FORMS: tuple[Form, ...] = (
    lambda row: row,
    lambda row: row.numpy(),
    _as_list,
    # Parameters and tv_tensors become plain tensors when they are stacked.
    functools.partial(values.as_form, form="Parameter"),
    *(functools.partial(values.as_form, form=f"tv_tensors.{name}") for name in ("Image", "Video", "Mask")),
)


def digest_row(form: Form, row: torch.Tensor) -> str | None:
    """Return the digest of one row in this form; None if the row cannot have that form."""
    try:
        return values.digest(form(row))
    except (TypeError, RuntimeError, ValueError):
        return None


def row_digests(
    input_tensor: torch.Tensor | None, rows: list[Place], inputs: list[int] | None = None
) -> list[str | None]:
    """Return the digest of each sample's row of a model's input."""
    found: list[str | None] = [None] * len(rows)
    if input_tensor is None or input_tensor.dim() == 0 or input_tensor.shape[0] < len(rows):
        return found
    if inputs is None and input_tensor.shape[0] != len(rows):
        return found
    form = FORMS[0]
    seen = input_tensor.detach().cpu()
    if (at_once := _plain_digests(seen, rows, inputs)) is not None:
        return at_once
    for number, (batch, place) in enumerate(rows):
        row = seen[number if inputs is None else inputs[number]]
        digest, expected = digest_row(form, row), batch.digests[place]
        if digest != expected and expected is not None and number == 0:
            form = next((other for other in FORMS if digest_row(other, row) == expected), form)
            digest = digest_row(form, row)
        found[number] = digest
    return found


def _plain_digests(seen: torch.Tensor, rows: list[Place], inputs: list[int] | None) -> list[str | None] | None:
    """Return the digests of rows that are what the last stages gave, without any other form; None where they are not."""
    digests = values.row_digests(seen)
    if digests is None or not rows:
        return None
    chosen: list[str | None] = [digests[number] for number in (range(len(rows)) if inputs is None else inputs)]
    batch, place = rows[0]
    return chosen if batch.digests[place] in (None, chosen[0]) else None
