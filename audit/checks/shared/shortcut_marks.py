"""Search for what was done to the pictures of one class alone: a mark, noise, other colours, a move, or compression as JPEG."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np

from audit.checks.base import Finding
from audit.checks.shared.added_marks import find_mark
from audit.checks.shared.drawing_position import measure_moves
from audit.checks.shared.hashes import Array
from audit.checks.shared.jpeg_blocks import LEAST_SIDE, block_contrast, find_blocky
from audit.checks.shared.label_guess import raised_class
from audit.checks.shared.picture_measures import Measures, grey_levels
from audit.checks.shared.shortcut import LabelledSamples, Sample, Shortcut

#: A mark on many pictures of one class makes its pixels exceed their neighbours by so many standard deviations more than in others.
_MARK_LIMIT = 0.4
_MARKED_CLASSES = 64
#: Noise betrays a class if nearly all of its pictures have more of it than this share of the others (interval).
_NOISY = 0.5
#: Of smaller pictures, noise and content look the same.
_NOISE_SIDE = 16
#: Colours betray a class if nearly all of its pictures lie beyond this share of the others (interval). Of CIFAR-10's classes, a third at most.
_COLOUR_SHARE = 0.5
#: The position betrays a class if nearly all of its drawings lie farther to one side than this share of the others (interval). Of digits
#: and clothes, none lies farther than 61 %; of 300 digits of 8×8, one than 78 %.
_MOVED_SHARE = 0.9
#: Blocks of JPEG show in one class by so many standard deviations more clearly than in the others.
_BLOCKY = 0.4
#: Blocks of JPEG are looked for in at most this many pictures.
_BLOCK_PICTURES = 2_000


def judge_marks(given: LabelledSamples, thumbnails: Array, samples: list[Sample]) -> Iterable[Shortcut]:
    """Judge marks on the pictures of one class that change their pixels a little, or on some of them alone."""
    if len(samples) < given.required_samples:
        return
    classes, codes = np.unique(given.labels(samples), return_inverse=True)
    found = find_mark(thumbnails, codes, _MARK_LIMIT) if len(classes) <= _MARKED_CLASSES else None
    if found is not None:
        yield (
            "a mark",
            Finding(
                f"Many pictures of the class {given.show_class(int(classes[found.group]))} have a mark that the others do not have: in a thumbnail of "
                f"32×32, in the rows {found.rows[0]} to {found.rows[1]} and columns {found.columns[0]} to {found.columns[1]}, pixels exceed their "
                f"neighbours by {found.effect:.1f} standard deviations more: a model may learn that instead of the picture.",
                stage=0,
                value=found.effect,
                threshold=_MARK_LIMIT,
                sql=given.evidence("pixels"),
            ),
        )


def judge_noise(given: LabelledSamples, measures: list[Measures]) -> Iterable[Shortcut]:
    """Judge the noise, which what a picture shows does not explain."""
    measures = [one for one in measures if one.picture.sample in given.label_of and one.side >= _NOISE_SIDE]
    if len(measures) < given.required_samples:
        return
    labels = given.labels([one.picture.sample for one in measures])
    found = raised_class([one.noise for one in measures], labels, _NOISY)
    if found is None:
        return
    label, share = found
    own, other = (
        statistics.median(one.noise for one, is_own in zip(measures, labels == label, strict=True) if is_own == wanted)
        for wanted in (True, False)
    )
    yield (
        "the noise",
        Finding(
            f"Nearly all pictures of the class {given.show_class(label)} have more noise than {share:.0%} of the others (a standard "
            f"deviation of {own:.2g} levels in the median, others {other:.2g}): a model may learn that instead of the picture.",
            stage=0,
            value=share,
            threshold=_NOISY,
            sql=given.evidence("noise"),
        ),
    )


def judge_colour(
    given: LabelledSamples, values: Array, samples: list[Sample], called: str, said: str
) -> Iterable[Shortcut]:
    """Judge colours that differ in one direction in nearly all pictures of one class; by themselves, classes differ only in the mean."""
    return _judge_raised(given, values, samples, called, f"have {said}", _COLOUR_SHARE)


def judge_position(given: LabelledSamples, thumbnails: Array, samples: list[Sample]) -> Iterable[Shortcut]:
    """Judge drawings of one class that nearly all lie on one side of the others: they were cut out or moved in another way."""
    if len(samples) >= given.required_samples:
        for said, moves in measure_moves(thumbnails).items():
            yield from _judge_raised(given, moves, samples, "the position", f"lie {said}", _MOVED_SHARE)


def _judge_raised(
    given: LabelledSamples, values: Array, samples: list[Sample], called: str, said: str, share: float
) -> Iterable[Shortcut]:
    """Judge values that are higher in nearly all pictures of one class than in this share of the others (interval)."""
    if len(samples) < given.required_samples or not values.any():
        return
    found = raised_class(values.tolist(), given.labels(samples), share)
    if found is not None:
        label, others = found
        yield (
            called,
            Finding(
                f"Nearly all pictures of the class {given.show_class(label)} {said} than {others:.0%} of the others: "
                "a model may learn that instead of the picture.",
                stage=0,
                value=others,
                threshold=share,
                sql=given.evidence("pixels"),
            ),
        )


def judge_blocks(given: LabelledSamples, measures: list[Measures]) -> Iterable[Shortcut]:
    """Judge traces of JPEG in the pixels of files of any format: the pictures of one class come from another place."""
    measures = [one for one in measures if one.picture.sample in given.label_of]
    contrasts = _block_contrasts(measures[:: -(-len(measures) // _BLOCK_PICTURES) or 1])
    if len(contrasts) < given.required_samples:
        return
    found = find_blocky(np.array(list(contrasts.values())), given.labels(list(contrasts)), _BLOCKY)
    if found is not None:
        label, effect = found
        yield (
            "a grid of 8×8 pixels",
            Finding(
                f"The pixels of the class {given.show_class(label)} show a grid of 8×8 pixels more clearly than the others, by "
                f"{effect:.1f} standard deviations: they were compressed as JPEG before, or enlarged; a model may learn that instead of the picture.",
                stage=0,
                value=effect,
                threshold=_BLOCKY,
                sql=given.evidence("pixels"),
            ),
        )


def _block_contrasts(given: list[Measures]) -> dict[Sample, float]:
    """Return for each sample how clearly blocks of JPEG show in each picture that is large enough."""
    found = {one.picture.sample: one.blocks for one in given if one.blocks is not None}
    shapes: dict[tuple[int, ...], list[Measures]] = {}
    for one in given:
        if one.blocks is None and one.pixels is not None and one.side >= LEAST_SIDE:
            shapes.setdefault(one.pixels.shape, []).append(one)
    for group in shapes.values():
        contrasts = block_contrast(grey_levels(np.stack([one.pixels for one in group if one.pixels is not None])))
        found |= {one.picture.sample: float(value) for one, value in zip(group, contrasts, strict=True)}
    return found
