"""What proves that a row of a batch was made of one sample and of no other.

A row is a sample's if it holds the sample's value as it is, in another precision, with padding around it, or cut off at its
end. Rows that were scaled or shifted are recognised by what scaling keeps: how their values vary around their mean. They are
proved only by one map for the whole batch (each channel with a factor and a summand of its own) that gives every value, up
to the rounding of its precision: a row with a small part of another sample in it is neither of them.
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
#: A scaled value may differ from what the map gives by so many roundings of its precision.
_ROUNDINGS = 4
#: Precisions that are coarser hide a part of another sample in their rounding.
_COARSEST = 1e-6


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
    if not row.is_floating_point() and not value.is_floating_point():
        # Numbers that were cut to fewer bits, or to whether they are zero, are others.
        return torch.equal(value, row if row.dtype == value.dtype else row.to(value.dtype)) and torch.equal(
            row, value.to(row.dtype)
        )
    if row.is_floating_point() or not value.is_floating_point():
        value = value.to(row.dtype)
    else:  # whole numbers that were made of fractions: only if nothing was cut off
        row = row.to(value.dtype)
    if torch.equal(row, value):
        return True
    if not row.is_floating_point() or not bool((unknown := row.isnan()).any()):
        return False
    return torch.equal(unknown, value.isnan()) and torch.equal(row[~unknown], value[~unknown])


def find_scaled_order(rows: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[int] | None:
    """Return the value that each row is a scaled form of; None unless each row agrees with exactly one of them."""
    agreement = torch.stack([_agreements(rows, value) for value in values], dim=1)
    best, places = agreement.max(1)
    agreement[torch.arange(len(rows)), places] = 0
    found: list[int] = places.tolist()
    is_clear = bool((best > _AGREES).all()) and bool((agreement < _DIFFERS).all())
    if not is_clear or len(set(found)) != len(found):
        return None
    return found if _has_one_map(rows, [values[place] for place in found]) else None


def _has_one_map(rows: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> bool:
    """Return whether a factor and a summand for each channel make every one of these rows of its value."""
    dtype = rows[0].dtype
    if dtype.is_floating_point and torch.finfo(dtype).eps > _COARSEST:
        return False
    inner = [row[tuple(slice(size) for size in value.shape)] for row, value in zip(rows, values, strict=True)]
    if not all(_is_padded(row, value) for row, value in zip(rows, values, strict=True)):
        return False
    made = torch.cat([_channels(one[None])[0] for one in inner], dim=1).to(torch.float64)
    given = torch.cat([_channels(value[None])[0] for value in values], dim=1).to(torch.float64)
    centred = given - given.mean(1, keepdim=True)
    spread = centred.square().sum(1, keepdim=True)
    factor = torch.where(spread > 0, (centred * made).sum(1, keepdim=True) / spread.clamp(min=1e-300), 1.0)
    summand = made.mean(1, keepdim=True) - factor * given.mean(1, keepdim=True)
    if not dtype.is_floating_point:
        return _is_rounded(made, given, factor, summand)
    rounding = max([torch.finfo(one).eps for one in (dtype, values[0].dtype) if one.is_floating_point])
    size = (factor * given).abs() + summand.abs() + made.abs()
    return bool(((made - factor * given - summand).abs() <= _ROUNDINGS * rounding * size).all())


def _is_rounded(made: torch.Tensor, given: torch.Tensor, factor: torch.Tensor, summand: torch.Tensor) -> bool:
    """Return whether whole numbers are those of a map with a simple factor and summand, rounded or cut off."""
    factor, summand = (factor * 2).round() / 2, (summand * 2).round() / 2
    exact = given * factor + summand
    single = (given.float() * factor.float() + summand.float()).double()
    return any(torch.equal(cut(one), made) for one in (exact, single) for cut in (torch.round, torch.trunc))


def _is_padded(row: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether what lies around a value in its row is the same number all over each channel."""
    if row.shape == value.shape:
        return True
    around = torch.ones(row.shape, dtype=torch.bool)
    around[tuple(slice(size) for size in value.shape)] = False
    inside, flags = _channels(row[None])[0], _channels(around[None])[0]
    return all(
        len(rest := channel[flag]) == 0 or bool((rest == rest[0]).all())
        for channel, flag in zip(inside, flags, strict=True)
    )


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
    flat = _channels(batch)
    if flat.shape[2] < _FEWEST:
        return None
    step = max(1, flat.shape[2] // _MOST_VALUES)
    chosen = flat[:, :, ::step].to(torch.float64)
    return chosen - chosen.mean(2, keepdim=True)


def _channels(batch: torch.Tensor) -> torch.Tensor:
    """Return (rows, channels, values)."""
    if batch.dim() == 2:
        return batch[:, None, :]
    if batch.dim() == 3:  # a sequence of vectors: each feature is a channel
        return batch.transpose(1, 2)
    return batch.flatten(2)
