"""Find pictures that are copies of each other: re-encoded, resized, brightened, cropped a little, or mirrored.

Two small grey pictures are copies if one, shifted, scaled by a few percent and changed in brightness and contrast,
explains the other almost completely. Candidates come from all pairs of 8×8 thumbnails, or from perceptual hashes where
there are too many pictures for that. A linear fit (the picture and its gradients) sorts out most candidates, and the
best of the rest are aligned exactly.

How much must be explained depends on the dataset: two different handwritten ones are more alike than two photographs.
The limit is such that, by the number of pairs just below it, less than one false pair is expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checks.shared.hashes import Array, near_pairs

#: The sides of the thumbnails: that are aligned, compared, and searched.
SIDE, COMPARED, SEARCHED = 32, 16, 8
#: Up to this many pictures all pairs are compared.
MOST_IN_PAIRS = 20_000
#: The least correlation of searched thumbnails, and the least share that the linear fit must explain.
_CORRELATION, _FITTED = 0.85, 0.8
#: The most candidates for each of: the linear fit, the alignment.
_MOST_FITTED, _MOST_ALIGNED = 100_000, 3_000
#: The share of a picture that its copy leaves unexplained at most; between it and twice it lie pairs that are not copies.
_UNEXPLAINED = 0.015
#: Within the tail, the number of false pairs grows with about this power of the unexplained share (digits, photographs).
_POWER = 5
#: The number of false pairs that are expected at the limit.
_EXPECTED = 1.0
_STEPS = 4
_BLOCK = 500
_AXIS = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
_LIMIT = np.array([2.2, 2.2, 0.12, 0.12], np.float32)


@dataclass(frozen=True, slots=True)
class Lookalike:
    """Two pictures by their places, the earlier first; `similarity` is the explained share, `mirrored` how."""

    first: int
    second: int
    similarity: float
    mirrored: bool


def thumbnail(image: Any) -> Array:
    """Return a picture as 32×32 grey levels."""
    from PIL import Image

    grey = image.convert("L")
    smooth = Image.Resampling.BILINEAR if min(grey.size) >= SIDE else Image.Resampling.BICUBIC
    return np.asarray(grey.resize((SIDE, SIDE), smooth), dtype=np.uint8)


def find_lookalikes(thumbnails: Array, hashes: Array | None = None, distance: int = 3) -> list[Lookalike]:
    """Return the pairs of copies among n thumbnails (n×32×32), the surest first.

    `hashes` are the pictures' perceptual hashes, for the case that there are too many for all pairs.
    """
    found: list[tuple[Array, Array, bool]] = []
    for mirrored in (False, True):
        pairs = _candidates(thumbnails, mirrored, hashes, distance)
        pairs = _fitted(thumbnails, pairs, mirrored)
        found.append((pairs, _aligned_shares(thumbnails, pairs, mirrored), mirrored))
    left = np.concatenate([1 - share for _, share, _ in found])
    limit = _limit(left)
    best: dict[tuple[int, int], Lookalike] = {}
    for pairs, share, mirrored in found:
        for (first, second), explained in zip(pairs.tolist(), share.tolist(), strict=True):
            known = best.get((first, second))
            if 1 - explained <= limit and (known is None or known.similarity < explained):
                best[first, second] = Lookalike(first, second, explained, mirrored)
    return sorted(best.values(), key=lambda one: (-one.similarity, one.first, one.second))


def _limit(left: Array) -> float:
    """Return the largest unexplained share at which few false pairs are expected."""
    beyond = int(((left > _UNEXPLAINED) & (left <= 2 * _UNEXPLAINED)).sum())
    # Real copies that changed more than usual may lie there too, so a few such pairs count for nothing.
    false = max(0, beyond - 3) / (1 - 0.5**_POWER)
    limit = 2 * _UNEXPLAINED * (_EXPECTED / max(false, _EXPECTED)) ** (1 / _POWER)
    return float(min(_UNEXPLAINED, limit))


def _candidates(thumbnails: Array, mirrored: bool, hashes: Array | None, distance: int) -> Array:
    """Return pairs (i < j) that may be copies, no more than can be fitted."""
    if len(thumbnails) > MOST_IN_PAIRS:
        if mirrored or hashes is None:
            return np.empty((0, 2), np.int64)
        return near_pairs(hashes, distance)[:_MOST_FITTED]
    small = _normalised(_pooled(thumbnails.astype(np.float32), SEARCHED))
    others = small.reshape(-1, SEARCHED, SEARCHED)[:, :, ::-1].reshape(small.shape) if mirrored else small
    found: list[Array] = []
    scores: list[Array] = []
    for start in range(0, len(small), 1_000):
        table = small[start : start + 1_000] @ others.T
        i, j = np.nonzero(table >= _CORRELATION)
        keep = i + start < j
        found.append(np.stack([i[keep] + start, j[keep]], axis=1))
        scores.append(table[i[keep], j[keep]])
    pairs, score = np.concatenate(found), np.concatenate(scores)
    if len(pairs) <= _MOST_FITTED:
        return pairs
    return pairs[np.argpartition(-score, _MOST_FITTED)[:_MOST_FITTED]]


def _fitted(thumbnails: Array, pairs: Array, mirrored: bool) -> Array:
    """Return the pairs whose second picture the first one and its gradients explain, no more than can be aligned."""
    if not len(pairs):
        return pairs
    used, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(pairs.shape)
    given = _pooled(thumbnails[used].astype(np.float32), COMPARED)
    other = _normalised(given[:, :, ::-1] if mirrored else given)
    axis = np.linspace(-1, 1, COMPARED, dtype=np.float32)
    spans = np.concatenate(
        [_orthonormal(_changes(part, axis)) for part in np.array_split(given, -(-len(given) // 2_000))]
    )
    blocks = np.array_split(places, -(-len(places) // 2_000))
    share = np.concatenate([(np.einsum("pkd,pd->pk", spans[b[:, 0]], other[b[:, 1]]) ** 2).sum(axis=1) for b in blocks])
    chosen = np.flatnonzero(share >= _FITTED)
    if len(chosen) > _MOST_ALIGNED:
        chosen = chosen[np.argpartition(-share[chosen], _MOST_ALIGNED)[:_MOST_ALIGNED]]
    return pairs[np.sort(chosen)]


def _aligned_shares(thumbnails: Array, pairs: Array, mirrored: bool) -> Array:
    """Return the share of each pair's second picture that the first explains after exact alignment."""
    shares = [
        _align(thumbnails[block[:, 0]].astype(np.float32), _second(thumbnails, block, mirrored))
        for block in _blocks(pairs)
    ]
    return np.concatenate(shares) if shares else np.empty(0, np.float32)


def _second(thumbnails: Array, block: Array, mirrored: bool) -> Array:
    found = thumbnails[block[:, 1]].astype(np.float32)
    return found[:, :, ::-1] if mirrored else found


def _blocks(pairs: Array) -> Iterator[Array]:
    for start in range(0, len(pairs), _BLOCK):
        yield pairs[start : start + _BLOCK]


def _align(a: Array, b: Array) -> Array:
    """Return the share of each b that a explains, with the best shift, scale, gain and offset (Gauss–Newton)."""
    count = len(a)
    wanted = _pooled(b, COMPARED).reshape(count, -1)
    wanted = wanted - wanted.mean(axis=1, keepdims=True)
    unit = _normalised(wanted)
    moved = np.zeros((count, 4), np.float32)
    best = np.zeros(count, np.float32)
    for step in range(_STEPS):
        warped = _weights(moved[:, 1], moved[:, 3]) @ a @ _weights(moved[:, 0], moved[:, 2]).transpose(0, 2, 1)
        explained = (_normalised(_pooled(warped, COMPARED)) * unit).sum(axis=1)
        best = np.maximum(best, np.maximum(explained, 0) ** 2)
        if step == _STEPS - 1:
            break
        changes = _changes(warped, _AXIS, pooled=True)
        normal = changes @ changes.transpose(0, 2, 1)
        normal += np.eye(5, dtype=np.float32) * (1e-4 * np.trace(normal, axis1=1, axis2=2) / 5 + 1e-6)[:, None, None]
        solved = np.linalg.solve(normal, changes @ wanted[:, :, None])[:, :, 0]
        gain = np.where(np.abs(solved[:, :1]) < 1e-3, 1e-3, solved[:, :1])
        moved = np.clip(moved + np.clip(solved[:, 1:] / gain, -_LIMIT / 2, _LIMIT / 2), -_LIMIT, _LIMIT)
    return best


def _changes(pictures: Array, axis: Array, *, pooled: bool = False) -> Array:
    """Return how pictures change with gain, shift and scale: n×5×pixels, each with mean 0."""
    down, across = np.gradient(pictures, axis=(1, 2))
    parts = (pictures, across, down, across * axis[None, None, :], down * axis[None, :, None])
    flat = [(_pooled(part, COMPARED) if pooled else part).reshape(len(pictures), -1) for part in parts]
    stacked: Array = np.stack(flat, axis=1)
    stacked -= stacked.mean(axis=2, keepdims=True)
    return stacked


def _orthonormal(vectors: Array) -> Array:
    return np.linalg.qr(vectors.transpose(0, 2, 1))[0].transpose(0, 2, 1).astype(np.float32)


def _weights(shift: Array, scale: Array) -> Array:
    """Return matrices that resample one axis with cubic convolution, shifted and scaled about the centre."""
    centre = (SIDE - 1) / 2
    places = np.clip(centre + _AXIS[None] * (1 + scale[:, None]) + shift[:, None], 0, SIDE - 1)
    x = np.abs(places[:, :, None] - np.arange(SIDE, dtype=np.float32))
    weights = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0))
    resampling: Array = (weights / weights.sum(axis=2, keepdims=True)).astype(np.float32)
    return resampling


def _pooled(pictures: Array, side: int) -> Array:
    factor = pictures.shape[1] // side
    smaller: Array = pictures.reshape(len(pictures), side, factor, side, factor).mean(axis=(2, 4))
    return smaller


def _normalised(pictures: Array) -> Array:
    flat = pictures.reshape(len(pictures), -1)
    flat = flat - flat.mean(axis=1, keepdims=True)
    normalised: Array = (flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)).astype(np.float32)
    return normalised
