"""What proves that a row of a batch was made of one sample and of no other.

A row is a sample's if it holds the sample's value as it is, in another precision, with padding around it, or cut off at its
end. A row that was scaled or shifted (each channel by numbers of its own) is recognised by what scaling keeps: how its values
vary around their mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: A row with fewer numbers may be that of another sample by chance, unless all rows are in order.
FEWEST_NUMBERS = 4
#: A scaled row agrees with its own sample at least so far, and with every other sample at most so far (as correlations).
_AGREES = 1 - 1e-4
_DIFFERS = 0.99
#: So many values of a channel must be there to compare how they vary, and so many are compared.
_FEWEST = 16
_MOST_VALUES = 1024


def holds(row: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether a row is a sample's value, or that value with padding behind or before it, or its beginning."""
    if not row.numel() or not value.numel():
        return False
    if row.dim() != value.dim():
        row, value = (row, value.reshape(-1)) if row.dim() == 1 else (row.squeeze(), value.squeeze())
        if row.dim() != value.dim() or (row.dim() == 1 and len(row) != len(value)):
            return False
    if row.shape == value.shape:
        return is_equal(row, value)
    if all(most <= size for most, size in zip(row.shape, value.shape, strict=True)):
        return row.numel() >= FEWEST_NUMBERS and is_equal(row, value[tuple(slice(size) for size in row.shape)])
    if any(most < size for most, size in zip(row.shape, value.shape, strict=True)):
        return False
    for corner in (
        tuple(slice(size) for size in value.shape),
        tuple(slice(most - size, most) for most, size in zip(row.shape, value.shape, strict=True)),
    ):
        if is_equal(row[corner], value):
            around = torch.ones(row.shape, dtype=torch.bool)
            around[corner] = False
            padding = row[around]
            if bool((padding == padding[0]).all()):
                return True
    return False


def is_equal(row: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether two tensors of one shape hold the same numbers, but for the precision of fractions."""
    if row.is_floating_point() or not value.is_floating_point():
        value = value.to(row.dtype)
    else:  # whole numbers that were made of fractions: only if nothing was cut off
        row = row.to(value.dtype)
    if torch.equal(row, value):
        return True
    if not row.is_floating_point() or not bool((unknown := row.isnan()).any()):
        return False
    return torch.equal(unknown, value.isnan()) and torch.equal(row[~unknown], value[~unknown])


def scaled_order(rows: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[int] | None:
    """Return the value that each row is a scaled form of; None unless each row agrees with exactly one of them."""
    agreement = torch.stack([_agreements(rows, value) for value in values], dim=1)
    best, places = agreement.max(1)
    agreement[torch.arange(len(rows)), places] = 0
    found: list[int] = places.tolist()
    is_clear = bool((best > _AGREES).all()) and bool((agreement < _DIFFERS).all())
    return found if is_clear and len(set(found)) == len(found) else None


def _agreements(rows: Sequence[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return how far each row varies as a value does: the least correlation of its channels, between 0 and 1."""
    none = torch.zeros(len(rows), dtype=torch.float64)
    if any(
        row.dim() != value.dim() or any(most < size for most, size in zip(row.shape, value.shape, strict=True))
        for row in rows
    ):
        return none
    corner = tuple(slice(size) for size in value.shape)
    own = _variation(value[None])
    others = _variation(torch.stack([row[corner] for row in rows]))
    if own is None or others is None:
        return none
    sizes = own.norm(dim=2) * others.norm(dim=2)
    products = (own * others).sum(2).abs()
    # A channel without any variation says nothing; it must be one in both.
    is_flat = (own.norm(dim=2) == 0) & (others.norm(dim=2) <= 1e-6 * others.shape[2])
    correlations = torch.where(is_flat, 1.0, products / sizes.clamp(min=1e-300))
    return torch.where(is_flat.all(1), 0.0, correlations.amin(1)).nan_to_num(0.0)


def _variation(batch: torch.Tensor) -> torch.Tensor | None:
    """Return (rows, channels, values) around the mean of each channel; None where a channel has too few values."""
    if batch.dim() < 2:
        return None
    if batch.dim() == 2:
        flat = batch[:, None, :]
    elif batch.dim() == 3:  # a sequence of vectors: each feature is a channel
        flat = batch.transpose(1, 2)
    else:
        flat = batch.flatten(2)
    if flat.shape[2] < _FEWEST:
        return None
    step = max(1, flat.shape[2] // _MOST_VALUES)
    chosen = flat[:, :, ::step].to(torch.float64)
    return chosen - chosen.mean(2, keepdim=True)
