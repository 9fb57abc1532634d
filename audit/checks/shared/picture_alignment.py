"""How much of a picture another one explains, if it may be moved, blurred and changed in its levels.

A copy that was made smaller is blurred, and one with a higher contrast is cut off at black and white: neither is a
linear change of the original. Both are undone as far as they can be seen: the sharper picture is blurred, and the
levels of one are mapped to those of the other.
"""

from __future__ import annotations

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_grids import changes, pool, unit_vectors

#: The sides of the thumbnails: that are aligned, and compared.
SIDE, COMPARED = 32, 16
#: The most that a copy is moved (pixels across and down) and scaled (share, across and down).
_LIMIT = np.array([2.2, 2.2, 0.12, 0.12], np.float32)
#: After the first and after the second step, pairs that leave more than this unexplained are given up.
_GIVE_UP_LIMITS = {1: 0.09, 2: 0.045}
#: Pairs that leave at most this unexplained are tried again, blurred and with other levels.
_RETRY_LIMIT = 0.035
#: The standard deviations of the blurs, in pixels.
_BLURS = (0.6, 0.9, 1.2)
_STEPS = 4
_BLOCK = 500
_AXIS = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
#: Averages one axis to the side that is compared.
_POOLING_MATRIX = np.repeat(np.eye(COMPARED, dtype=np.float32), SIDE // COMPARED, axis=1) / np.float32(SIDE // COMPARED)


def measure_unexplained(first: Array, second: Array) -> Array:
    """Return the share of each `second` picture (n×32×32) that the `first` one leaves unexplained, at best."""
    blocks = range(0, len(first), _BLOCK)
    if not len(first):
        return np.empty(0, np.float32)
    return np.concatenate([_compute_unexplained(first[n : n + _BLOCK], second[n : n + _BLOCK]) for n in blocks])


def _compute_unexplained(first: Array, second: Array) -> Array:
    a, b = first.astype(np.float32), second.astype(np.float32)
    left, moved = _align(a, b, np.zeros((len(a), 4), np.float32), _STEPS)
    promising = np.flatnonzero(left <= _RETRY_LIMIT)
    if not len(promising):
        return left
    a, b, moved = a[promising], b[promising], moved[promising]
    best = left[promising]
    sharper = (_detail(a) > _detail(b))[:, None, None]
    blurs = [_blur(np.where(sharper, a, b), deviation) for deviation in _BLURS]
    variants = [(np.where(sharper, blurred, a), np.where(sharper, b, blurred)) for blurred in blurs]
    variants += [(_levels_of(a, b), b), (a, _levels_of(b, a))]
    resampling = _resampling_matrices(moved)
    # Only the variant that explains most where the pictures are is aligned again.
    tried = np.stack([_unexplained_share(one, two, resampling) for one, two in variants])
    chosen = np.argmin(tried, axis=0)
    one, two = (np.stack(side)[chosen, np.arange(len(chosen))] for side in zip(*variants, strict=True))
    left[promising] = np.minimum(best, _align(one, two, moved, 2, resampling)[0])
    return left


def _unexplained_share(a: Array, b: Array, resampling: tuple[Array, Array]) -> Array:
    """Return what each a, moved and scaled, leaves of b unexplained."""
    warped = (_POOLING_MATRIX @ resampling[0]) @ a @ (resampling[1] @ _POOLING_MATRIX.T)
    explained = (unit_vectors(warped) * unit_vectors(pool(b, COMPARED))).sum(axis=1)
    left: Array = 1 - np.maximum(explained, 0) ** 2
    return left


def _align(
    a: Array, b: Array, start: Array, steps: int, resampling: tuple[Array, Array] | None = None
) -> tuple[Array, Array]:
    """Return what a leaves of each b unexplained, and the best shift and scale (Gauss–Newton).

    `resampling` are the matrices of `start`; None where it moves nothing.
    """
    left, best = np.ones(len(a), np.float32), start.copy()
    moved, active = start.copy(), np.arange(len(a))
    wanted = pool(b, COMPARED).reshape(len(b), -1)
    wanted = wanted - wanted.mean(axis=1, keepdims=True)
    unit = unit_vectors(wanted)
    for step in range(steps):
        now = moved[active]
        if step:
            resampling = _resampling_matrices(now)
        warped = a[active] if resampling is None else resampling[0] @ a[active] @ resampling[1]
        explained = np.maximum((unit_vectors(pool(warped, COMPARED)) * unit[active]).sum(axis=1), 0) ** 2
        better = 1 - explained < left[active]
        left[active[better]], best[active[better]] = 1 - explained[better], now[better]
        if step == steps - 1:
            break
        if step in _GIVE_UP_LIMITS:
            keep = left[active] <= _GIVE_UP_LIMITS[step]
            active, warped, now = active[keep], warped[keep], now[keep]
        if not len(active):
            break
        moved[active] = np.clip(now + _step(warped, wanted[active]), -_LIMIT, _LIMIT)
    return left, best


def _resampling_matrices(moved: Array) -> tuple[Array, Array]:
    """Return the matrices that move and scale pictures: one from the left, down; one from the right, across."""
    return _weights(moved[:, 1], moved[:, 3]), _weights(moved[:, 0], moved[:, 2]).transpose(0, 2, 1)


def _step(warped: Array, wanted: Array) -> Array:
    """Return the shift and scale that the linear fit suggests."""
    given = changes(warped, COMPARED)
    normal = given @ given.transpose(0, 2, 1)
    normal += np.eye(5, dtype=np.float32) * (1e-4 * np.trace(normal, axis1=1, axis2=2) / 5 + 1e-6)[:, None, None]
    solved = np.linalg.solve(normal, given @ wanted[:, :, None])[:, :, 0]
    gain = np.where(np.abs(solved[:, :1]) < 1e-3, 1e-3, solved[:, :1])
    suggested: Array = np.clip(solved[:, 1:] / gain, -_LIMIT / 2, _LIMIT / 2)
    return suggested


def _weights(shift: Array, scale: Array) -> Array:
    """Return matrices that resample one axis with cubic convolution, shifted and scaled about the centre."""
    centre = (SIDE - 1) / 2
    places = np.clip(centre + _AXIS[None] * (1 + scale[:, None]) + shift[:, None], 0, SIDE - 1).ravel()
    whole = np.floor(places)
    before, past = whole.astype(np.int64), places - whole
    # The four pixels around each place; those beyond the border count for nothing.
    near = ((-0.5 * past + 1) * past - 0.5) * past
    one = (1.5 * past - 2.5) * past * past + 1
    two = ((-1.5 * past + 2) * past + 0.5) * past
    far = (0.5 * past - 0.5) * past * past
    padded = np.zeros((len(places), SIDE + 3), np.float32)
    first = np.arange(0, padded.size, SIDE + 3) + before
    for offset, weight in enumerate((near, one, two, far)):
        padded.ravel()[first + offset] = weight
    weights = padded[:, 1 : SIDE + 1]
    resampling: Array = weights / (weights @ np.ones((SIDE, 1), np.float32))
    return resampling.reshape(len(shift), SIDE, SIDE)


def _detail(pictures: Array) -> Array:
    """Return the share of each picture's variance that lies between neighbouring pixels."""
    across, down = (np.diff(pictures, axis=axis) for axis in (2, 1))
    fine: Array = ((across**2).mean(axis=(1, 2)) + (down**2).mean(axis=(1, 2))) / np.maximum(
        pictures.var(axis=(1, 2)), 1e-6
    )
    return fine


def _blur(pictures: Array, deviation: float) -> Array:
    near = np.exp(-((_AXIS[:, None] - _AXIS[None]) ** 2) / (2 * deviation**2))
    # Without what is nearly 0: products with the smallest numbers of a type take twenty times as long.
    near[near < 1e-7] = 0
    kernel = (near / near.sum(axis=1, keepdims=True)).astype(np.float32)
    # Each product is one of large matrices: down first, then across.
    down = pictures.transpose(0, 2, 1).reshape(-1, SIDE) @ kernel.T
    across = down.reshape(-1, SIDE, SIDE).transpose(0, 2, 1).reshape(-1, SIDE) @ kernel.T
    blurred: Array = across.reshape(pictures.shape)
    return blurred


def _levels_of(pictures: Array, others: Array) -> Array:
    """Return pictures whose grey levels are mapped, in their order, to those of others (histogram matching)."""
    levels = np.arange(256, dtype=np.float32)
    (whole, have), (_, want) = _histograms(pictures), _histograms(others)
    have_ranks, want_ranks = (counts.cumsum(axis=1) - counts / 2 for counts in (have, want))
    mapped = np.empty((len(pictures), 256), np.float32)
    for place, used in enumerate(want > 0):
        mapped[place] = np.interp(have_ranks[place], want_ranks[place, used], levels[used])
    return np.take(mapped.ravel(), whole)


def _histograms(pictures: Array) -> tuple[Array, Array]:
    """Return each pixel's place in a table of 256 levels for each picture, and how many pixels have each place."""
    count = len(pictures)
    places = pictures.astype(np.uint8) + 256 * np.arange(count)[:, None, None]
    return places, np.bincount(places.ravel(), minlength=256 * count).reshape(count, 256)
