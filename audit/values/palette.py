"""Float pictures that are 8-bit pictures in disguise: found fast, proved exactly, or given up.

ToTensor makes k/255 and Normalize an affine map of that, so at most 256 values occur per channel and one byte per
element says which. A guess is only kept when the table gives back every bit of the input; nothing is ever rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.values import native as loops

_SAMPLE = 2048


def unit_levels(values: Any) -> Any | None:
    """Return k as uint8 where every element is exactly float32(k)/255, else None."""
    flat = values.reshape(-1)
    if not flat.size:
        return None
    head = flat[:64]
    if loops.native is not None:
        found = np.empty(flat.size, np.uint8)
        return found if loops.native.unit(flat, found) else None
    if not _is_unit(head):
        return None
    scaled = flat * np.float32(255)
    np.rint(scaled, out=scaled)
    levels = scaled.astype(np.uint8)
    np.divide(scaled, np.float32(255), out=scaled)
    return levels if np.array_equal(scaled.view(np.uint32), flat.view(np.uint32)) else None


def _is_unit(values: Any) -> bool:
    with np.errstate(all="ignore"):
        k = np.rint(values * np.float32(255))
        return bool(((k >= 0) & (k <= 255)).all() and (k / np.float32(255) == values).all())


def table_levels(channel: Any) -> tuple[Any, Any] | None:
    """Return (table, uint8 indices) of one flat float32 channel with evenly spaced values, else None."""
    if loops.native is not None:
        levels = np.empty(channel.size, np.uint8)
        entries = loops.native.palette(channel, levels)
        return None if entries is None else (np.frombuffer(entries, np.float32), levels)
    sample = np.unique(channel[:: max(1, channel.size // _SAMPLE)])
    if sample.size > 256 or not np.isfinite(sample).all():
        return None
    low, high = channel.min(), channel.max()
    if not np.isfinite(high - low):
        return None
    if low == high:
        step = np.float32(1)
    else:
        gaps = np.diff(sample)
        if not gaps.size or (high - low) / gaps.min() > 255.5:
            return None
        # The smallest gap is one step give or take rounding; the full range gives the step to full precision.
        step = np.float32((float(high) - float(low)) / max(1, round(float((high - low) / gaps.min()))))
    places = channel - low
    np.divide(places, step, out=places)
    np.rint(places, out=places)
    if places.max() > 255:
        return None
    indices = places.astype(np.uint8)
    table = np.zeros(int(indices.max()) + 1, np.float32)
    table[indices] = channel
    if not np.array_equal(table.take(indices).view(np.uint32), channel.view(np.uint32)):
        return None
    return table, indices
