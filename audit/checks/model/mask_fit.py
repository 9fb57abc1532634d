"""`mask_fit`: target masks agree with the predicted ones only if they are changed, or have other classes than those that they cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.significance import wilson
from audit.class_names import show_class
from audit.picture_formats import open_picture

#: The class of pixels that are not graded.
_IGNORED_CLASS = 255
#: A changed mask fits where it agrees with the predicted one in so much more of the objects, and in so much in all.
_BETTER, _AGREES = 0.3, 0.6
#: A change is reported if it makes so many times as many masks fit as the mask of another picture does.
_TIMES = 4
#: A class is renamed if at least this share of its pixels is predicted as one other class, in most of the pictures that have it.
_RENAMED_SHARE = 0.8
#: So many pictures are needed; a picture counts as having an object that covers this share of it.
_FEWEST, _COVERED_SHARE = 20, 0.01
#: Masks were interpolated if at least this share of the steps between distant classes pass through one pixel of a class between them.
_BLENDED_SHARE, _STEPS = 0.4, 200


@dataclass(frozen=True, slots=True)
class MaskPair:
    """The masks of one picture; `whole` is False where they were stored smaller."""

    index: int
    target: Array
    predicted: Array
    whole: bool


class MaskFit(Check):
    """Change the targets in the ways in which they are often wrong, and count how many then agree with the predicted mask."""

    description = (
        "Target masks agree with the predicted ones as they are: not only mirrored, moved, of other classes or of another picture; they were "
        "not interpolated, and none are missing."
    )
    question = "Do target masks agree with the predicted ones only after a change?"
    statistic = (
        "the number of masks that only then agree in 60 % of the pixels of objects, with the same limits; of classes, "
        "the areas that are predicted as one other, Wilson's interval"
    )
    assumes = "the same"
    needs = ("model",)
    options = settings(
        gained=Option(
            0.15, "Report a change after which at least this share of the masks agree that did not agree before."
        ),
        pictures=Option(300, "Compare at most this many pictures."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        pairs = mask_pairs(context, context.options["pictures"])
        if len(pairs) < _FEWEST:
            raise Skip(f"{len(pairs)} pictures have stored masks; at least {_FEWEST} are needed")
        found = [*self._classes(context, pairs), *self._find_blended_masks(context, pairs)]
        yield from found
        if not found:
            ground = _commonest_class([pair.predicted for pair in pairs])
            found = list(self._find_better_masks(context, pairs, ground))
            yield from found or self._find_unannotated(context, pairs, ground)

    def _find_better_masks(self, context: Context, pairs: list[MaskPair], ground: int) -> Iterable[Finding]:
        predicted = [pair.predicted for pair in pairs]
        targets = [pair.target for pair in pairs]
        now = _agreements(targets, predicted, ground)
        chance = _count_gains(now, _agreements(_rotate_masks(targets, 7), predicted, ground))
        down, across = _vote_shift(pairs, ground)
        changes: dict[str, Sequence[Array]] = {
            "they are mirrored, left and right": [mask[:, ::-1] for mask in targets],
            "they are mirrored, top and bottom": [mask[::-1] for mask in targets],
            "they are turned by 180 degrees": [mask[::-1, ::-1] for mask in targets],
            "their axes are swapped": [mask.T for mask in targets],
            f"they are moved by {across}, {down} pixels": [np.roll(mask, (down, across), (0, 1)) for mask in targets],
            "they are those of the next sample": _rotate_masks(targets, -1),
            "they are those of the previous sample": _rotate_masks(targets, 1),
        }
        gains = {
            words: _count_gains(now, _agreements(changed, predicted, ground)) for words, changed in changes.items()
        }
        words = max(gains, key=lambda name: gains[name])
        if gains[words] >= max(_FEWEST, context.options["gained"] * len(pairs)) and gains[words] >= _TIMES * (
            chance + 1
        ):
            yield Finding(
                f"{gains[words]:,} of {len(pairs):,} target masks agree with the predicted ones only if {words}.",
                value=gains[words] / len(pairs),
                threshold=context.options["gained"],
                sql=_evidence(context),
            )

    def _classes(self, context: Context, pairs: list[MaskPair]) -> Iterable[Finding]:
        """Report classes whose pixels are nearly all predicted as one other class."""
        votes: dict[int, list[int]] = {}
        for pair in pairs:
            for own in np.unique(pair.target).tolist():
                pixels = pair.predicted[pair.target == own] if own != _IGNORED_CLASS else pair.predicted[:0]
                if pixels.size >= _COVERED_SHARE * pair.target.size:
                    values, counts = np.unique(pixels, return_counts=True)
                    sure = counts.max() >= _RENAMED_SHARE * pixels.size
                    votes.setdefault(own, []).append(int(values[counts.argmax()]) if sure else own)
        renamed = []
        for own, given in sorted(votes.items()):
            values, counts = np.unique(given, return_counts=True)
            best, hits = int(values[counts.argmax()]), int(counts.max())
            if best != own and len(given) >= _FEWEST and wilson(hits, len(given), 3)[0] >= _AGREES:
                renamed.append((own, best, hits, len(given)))
        # What is found as background is not found at all, unless it is the background itself.
        ground, target_ground = (
            _commonest_class([p.predicted for p in pairs]),
            _commonest_class([p.target for p in pairs]),
        )
        if any(best != ground or own == target_ground for own, best, _, _ in renamed):
            own, best, hits, total = max(renamed, key=lambda one: (one[1] != ground, one[2]))
            shown = "; ".join(
                f"{show_class(context.run.classes, one[0])} as {show_class(context.run.classes, one[1])}"
                for one in renamed[:5]
            )
            yield Finding(
                f"Target masks have other class numbers than the model ({shown}): {hits:,} of {total:,} areas of class {show_class(context.run.classes, own)} are predicted "
                f"as {show_class(context.run.classes, best)}. Do both count classes in the same way?",
                value=hits / total,
                threshold=_AGREES,
                sql=_evidence(context),
            )

    def _find_blended_masks(self, context: Context, pairs: list[MaskPair]) -> Iterable[Finding]:
        """Report masks in which classes between two others line the borders, as interpolated numbers do."""
        whole = [pair.target for pair in pairs if pair.whole]
        through, direct = (sum(counts) for counts in zip(*map(_steps, whole), strict=True)) if whole else (0, 0)
        if through + direct >= _STEPS and through >= _BLENDED_SHARE * (through + direct):
            yield Finding(
                f"{through:,} of {through + direct:,} borders between distant classes of the target masks pass through one pixel of a class between them: the "
                "masks were resized with interpolation; class numbers need the nearest pixel.",
                value=through / (through + direct),
                threshold=_BLENDED_SHARE,
                sql=_evidence(context),
            )

    def _find_unannotated(self, context: Context, pairs: list[MaskPair], ground: int) -> Iterable[Finding]:
        """Report pictures without objects in which the model finds some as it does elsewhere."""
        empty = [
            pair
            for pair in pairs
            if (pair.target == ground).all() and (pair.predicted != ground).mean() >= _COVERED_SHARE
        ]
        filled = [pair for pair in pairs if (pair.target != ground).mean() >= _COVERED_SHARE]
        agrees = _agreements([pair.target for pair in filled], [pair.predicted for pair in filled], ground) >= _AGREES
        if len(empty) < max(_FEWEST, 0.05 * len(pairs)) or wilson(int(agrees.sum()), len(filled), 3)[0] < _AGREES:
            return
        yield Finding(
            f"{len(empty):,} of {len(pairs):,} target masks have no object, and the model finds some; where there are objects, it agrees in "
            f"{int(agrees.sum()):,} of {len(filled):,} masks: were these pictures annotated?",
            index=empty[0].index,
            value=len(empty) / len(pairs),
            sql=_evidence(context),
            severity="warning",
        )


def mask_pairs(context: Context, most: int) -> list[MaskPair]:
    """Return the target and the predicted mask of at most `most` pictures of the last epoch, in order of index."""
    last = context.value(f"SELECT max(epoch) FROM masks WHERE run_id = {context.run_literal}")
    if last is None:
        raise Skip("the run has no masks")
    rows = context.rows(
        "SELECT t.index, t.data AS target, p.data AS predicted, t.form = 'full' AND p.form = 'full' AS whole "
        "FROM masks t JOIN masks p USING (run_id, epoch, index, visit, call) "
        f"WHERE t.model IS NOT DISTINCT FROM p.model AND t.run_id = {context.run_literal} AND epoch = {last} AND visit = 0 AND call = 0 AND t.kind = 'target' AND p.kind = 'predicted' "
        "AND t.data IS NOT NULL AND p.data IS NOT NULL AND (t.width, t.height) = (p.width, p.height) "
        f"ORDER BY t.index LIMIT {most}"
    )
    found = []
    for row in rows:
        target, predicted = _decode(row["target"]), _decode(row["predicted"])
        if target.shape == predicted.shape:
            found.append(MaskPair(row["index"], target, predicted, bool(row["whole"])))
    return found


def _decode(data: bytes) -> Array:
    with open_picture(data) as image:
        return np.asarray(image).astype(np.int64)


def _commonest_class(masks: list[Array]) -> int:
    """Return the class that most pixels have: the background."""
    pixels = np.concatenate([mask[mask != _IGNORED_CLASS] for mask in masks])
    values, counts = np.unique(pixels, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 0


def _agreements(targets: Sequence[Array], predicted: Sequence[Array], ground: int) -> Array:
    """Return for each picture the share of the pixels of objects, in either mask, that agree; 1 where neither has any."""
    found = np.ones(len(targets))
    for place, (target, given) in enumerate(zip(targets, predicted, strict=True)):
        if target.shape != given.shape:
            found[place] = 0.0
            continue
        objects = ((target != ground) | (given != ground)) & (target != _IGNORED_CLASS)
        count = np.count_nonzero(objects)
        if count:
            found[place] = np.count_nonzero((target == given) & objects) / count
    return found


def _count_gains(now: Array, then: Array) -> int:
    """Return how many masks agree much better than before."""
    return int(((then >= _AGREES) & (then >= now + _BETTER)).sum())


def _rotate_masks(masks: list[Array], step: int) -> list[Array]:
    return [masks[(place - step) % len(masks)] for place in range(len(masks))]


def _vote_shift(pairs: list[MaskPair], ground: int) -> tuple[int, int]:
    """Return the shift (down, across) that most pictures agree on: where the objects of both masks correlate best."""
    votes: dict[tuple[int, int], int] = {}
    for pair in pairs:
        target, given = (np.asarray(mask != ground, np.float64) for mask in (pair.target, pair.predicted))
        if not target.any() or not given.any():
            continue
        table = np.fft.irfft2(np.conj(np.fft.rfft2(target)) * np.fft.rfft2(given), target.shape)
        down, across = np.unravel_index(int(table.argmax()), table.shape)
        height, width = table.shape
        shift = ((int(down) + height // 2) % height - height // 2, (int(across) + width // 2) % width - width // 2)
        votes[shift] = votes.get(shift, 0) + 1
    return max(votes, key=lambda shift: votes[shift], default=(0, 0))


def _steps(mask: Array) -> tuple[int, int]:
    """Return how many borders between distant classes pass through one pixel of a class between them, and how many do not."""
    through = direct = 0
    for lines in (mask, mask.T):
        known = lines != _IGNORED_CLASS
        before, here, after = lines[:, :-2], lines[:, 1:-1], lines[:, 2:]
        all_known = known[:, :-2] & known[:, 1:-1] & known[:, 2:]
        between = ((before < here) & (here < after)) | ((before > here) & (here > after))
        through += int(np.count_nonzero(between & all_known))
        direct += int(np.count_nonzero((np.abs(np.diff(lines, axis=1)) >= 2) & known[:, :-1] & known[:, 1:]))
    return through, direct


def _evidence(context: Context) -> str:
    return f"SELECT index, class, target_pixels, predicted_pixels, shared_pixels FROM mask_scores WHERE run_id = {context.run_literal} ORDER BY ALL"
