"""Statistics of a layer's tensor, for each sample of the batch at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

#: Percentiles of larger tensors are taken from an even sample of this size.
_SAMPLE_SIZE = 4096
_QUANTILES = (0.01, 0.25, 0.50, 0.75, 0.99)
_NAMES = ("p01", "p25", "p50", "p75", "p99")


def describe(value: torch.Tensor, *, per_sample: bool) -> list[dict[str, Any]]:
    """Return one row of statistics for each sample, or one for the batch."""
    rows = value.reshape(value.shape[0], -1) if per_sample else value.reshape(1, -1)
    rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    shape = list(value.shape[1:]) if per_sample else list(value.shape)
    common = {"shape": shape, "dtype": str(value.dtype).removeprefix("torch.")}
    if rows.shape[1] == 0:
        return [{**common, "nonfinite": 0} for _ in range(rows.shape[0])]
    lists = {name: column.tolist() for name, column in _columns(rows).items()}
    return [{**common, **{name: column[n] for name, column in lists.items()}} for n in range(rows.shape[0])]


def _columns(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    width = rows.shape[1]
    # One pass each: torch's combined reductions (aminmax, std_mean) are many times slower on a CPU.
    low, high, mean = rows.amin(dim=1), rows.amax(dim=1), rows.mean(dim=1)
    spread = torch.linalg.vector_norm(rows - mean[:, None], dim=1)
    columns = {"min": low, "max": high, "mean": mean, "std": spread / math.sqrt(width)}
    columns["zero_fraction"] = 1 - torch.count_nonzero(rows, dim=1).double() / width
    columns["norm"] = torch.linalg.vector_norm(rows, dim=1)
    # A NaN or an infinity anywhere shows in the extremes: only then are they counted.
    finite = bool(torch.isfinite(low).all() and torch.isfinite(high).all())
    columns["nonfinite"] = torch.zeros(rows.shape[0]) if finite else (~torch.isfinite(rows)).sum(dim=1)
    if finite:
        # The smallest step that keeps the sample within its size, over the whole width. numpy sorts faster than torch.
        sampled = np.sort(rows[:, :: -(-width // _SAMPLE_SIZE)].cpu().numpy(), axis=1)
        columns |= dict(zip(_NAMES, _quantiles(torch.from_numpy(sampled)), strict=True))
    return columns


def _quantiles(ordered: torch.Tensor) -> list[torch.Tensor]:
    """Return the quantiles, linear between neighbours, as torch.quantile has it."""
    last = ordered.shape[1] - 1
    found = []
    for quantile in _QUANTILES:
        at = quantile * last
        below = int(at)
        above = min(below + 1, last)
        found.append(torch.lerp(ordered[:, below], ordered[:, above], at - below))
    return found
