"""`box_fit`: target boxes fit the predicted ones only if they are changed, or have other classes than those that they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.significance import wilson
from audit.checks.shared.target_pairs import OVERLAP, BoxPair, box_pairs, fits, overlaps
from audit.class_names import show_class

#: A change is reported if it makes so many times as many targets fit as the boxes of another picture do.
_TIMES = 4
#: The width of a bin of shifts, in pixels, and of scales, in shares.
_SHIFT, _SCALE = 3.0, 0.05
#: A class is renamed if at least this share of its targets (lower end of an interval, three standard errors) fit boxes of one other class.
_RENAMED_SHARE = 0.6
#: Annotations are missing where the model is right about at least this share of its boxes elsewhere.
_TRUSTED_SHARE = 0.7
_FEWEST = 20

Change = Callable[[BoxPair], Array]


class BoxFit(Check):
    """Change the targets in the ways in which they are often wrong, and count how many then fit a predicted box."""

    description = (
        "Target boxes fit the predicted ones as they are: not only mirrored, moved, scaled, in another format, of other classes or of another "
        "picture; and none are missing."
    )
    question = "Do target boxes fit the predicted ones only after a change?"
    statistic = (
        "the number of targets that only then overlap a sure prediction by half: at least 15 % of all, and four times "
        "as many as with the boxes of another picture; of classes, the share that is found as one other, Wilson's "
        "interval with three standard errors"
    )
    assumes = "a model that finds many of the objects"
    needs = ("model",)
    options = settings(
        gained=Option(
            0.15, "Report a change after which at least this share of the targets fit that did not fit before."
        ),
        pictures=Option(1_000, "Compare at most this many pictures."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.facts.counts.get("boxes"):
            raise Skip("the run has no boxes")
        pairs = box_pairs(context, context.options["pictures"])
        count = sum(len(pair.targets) for pair in pairs)
        if count < _FEWEST or sum(len(pair.predicted) for pair in pairs) < _FEWEST:
            raise Skip(f"the run has {count} target boxes; at least {_FEWEST}, and as many predicted ones, are needed")
        now = [fits(pair.targets, pair.predicted) for pair in pairs]
        found = list(self._find_better_boxes(context, pairs, now, count))
        yield from found
        if not found:
            yield from self._classes(context, pairs)
            yield from self._find_unannotated(context, pairs)

    def _find_better_boxes(
        self, context: Context, pairs: list[BoxPair], now: list[Array], count: int
    ) -> Iterable[Finding]:
        others = [pairs[n - 7] for n in range(len(pairs))]
        chance = _count_gains(
            now, [fits(other.targets, pair.predicted) for pair, other in zip(pairs, others, strict=True)], whole=True
        )
        best, words = 0, ""
        for called, change in _changes(pairs).items():
            gained = _count_gains(now, [fits(change(pair), pair.predicted) for pair in pairs])
            if gained > best:
                best, words = gained, called
        for called, step in (("next", 1), ("previous", -1)):
            neighbours = [pairs[(n + step) % len(pairs)] for n in range(len(pairs))]
            moved = [fits(other.targets, pair.predicted) for pair, other in zip(pairs, neighbours, strict=True)]
            gained = _count_gains(now, moved, whole=True)
            if gained > best:
                best, words = gained, f"they are those of the {called} sample"
        if best >= max(_FEWEST, context.options["gained"] * count) and best >= _TIMES * (chance + 1):
            right = int(sum(one.sum() for one in now))
            yield Finding(
                f"{best:,} of {count:,} target boxes fit a predicted box only if {words}; as they are, {right:,} do.",
                value=best / count,
                threshold=context.options["gained"],
                sql=f"FROM boxes WHERE run_id = {context.run_literal} ORDER BY index, kind",
            )

    def _classes(self, context: Context, pairs: list[BoxPair]) -> Iterable[Finding]:
        """Report classes whose targets fit boxes of one other class."""
        seen: dict[int, list[int]] = {}
        for pair in pairs:
            table = overlaps(pair.targets, pair.predicted)
            for place in np.flatnonzero((table >= OVERLAP).any(axis=1)) if table.size else ():
                seen.setdefault(int(pair.target_classes[place]), []).append(
                    int(pair.predicted_classes[table[place].argmax()])
                )
        renamed = []
        for own, predicted in sorted(seen.items()):
            values, counts = np.unique(predicted, return_counts=True)
            best, hits = int(values[counts.argmax()]), int(counts.max())
            if best != own and len(predicted) >= _FEWEST and wilson(hits, len(predicted), 3)[0] >= _RENAMED_SHARE:
                renamed.append((own, best, hits, len(predicted)))
        if renamed:
            own, best, hits, total = max(renamed, key=lambda one: one[2])
            shown = "; ".join(
                f"{show_class(context.run.classes, one[0])} as {show_class(context.run.classes, one[1])}"
                for one in renamed[:5]
            )
            yield Finding(
                f"Target boxes of {len(renamed)} class{'es' if len(renamed) > 1 else ''} fit boxes that the model gives another class ({shown}): "
                f"{hits:,} of {total:,} of class {show_class(context.run.classes, own)}. Do both count classes in the same way?",
                value=hits / total,
                threshold=_RENAMED_SHARE,
                sql=f"FROM boxes WHERE run_id = {context.run_literal} ORDER BY index, kind",
            )

    def _find_unannotated(self, context: Context, pairs: list[BoxPair]) -> Iterable[Finding]:
        """Report pictures without targets in which the model finds objects as it does elsewhere."""
        annotated = [pair for pair in pairs if len(pair.targets)]
        given = sum(len(pair.predicted) for pair in annotated)
        right = sum(int(fits(pair.predicted, pair.targets).sum()) for pair in annotated)
        unannotated = [pair for pair in pairs if not len(pair.targets) and len(pair.predicted)]
        if len(unannotated) < max(_FEWEST, 0.05 * len(pairs)) or wilson(right, given, 3)[0] < _TRUSTED_SHARE:
            return
        yield Finding(
            f"{len(unannotated):,} of {len(pairs):,} pictures have no target box, and the model finds objects in them; where there are targets, "
            f"{right:,} of {given:,} predicted boxes fit one: were these pictures annotated?",
            index=unannotated[0].index,
            value=len(unannotated) / len(pairs),
            sql=f"SELECT index, count(*) FROM boxes WHERE run_id = {context.run_literal} GROUP BY index HAVING count(*) FILTER (kind = 'target') = 0",
            severity="warning",
        )


def _count_gains(now: list[Array], then: list[Array], *, whole: bool = False) -> int:
    """Return how many targets fit only then; `whole`: where the targets are others, how many more of them fit."""
    if whole:
        return sum(max(0, int(after.sum()) - int(before.sum())) for before, after in zip(now, then, strict=True))
    return sum(int((after & ~before).sum()) for before, after in zip(now, then, strict=True))


def _changes(pairs: list[BoxPair]) -> dict[str, Change]:
    """Return what targets may need, in words, and what does it."""
    shift, scale = _vote(pairs)

    def mirror(pair: BoxPair) -> Array:
        wide, boxes = pair.size[0], pair.targets
        return np.stack([wide - boxes[:, 2], boxes[:, 1], wide - boxes[:, 0], boxes[:, 3]], axis=1)

    def turn_upside_down(pair: BoxPair) -> Array:
        high, boxes = pair.size[1], pair.targets
        return np.stack([boxes[:, 0], high - boxes[:, 3], boxes[:, 2], high - boxes[:, 1]], axis=1)

    def centre(pair: BoxPair) -> Array:
        half = pair.targets[:, 2:] / 2
        return np.concatenate([pair.targets[:, :2] - half, pair.targets[:, :2] + half], axis=1)

    return {
        "they are mirrored, left and right": mirror,
        "they are mirrored, top and bottom": turn_upside_down,
        "their axes are swapped": lambda pair: pair.targets[:, [1, 0, 3, 2]],
        "they are read as x, y, width, height": lambda pair: np.concatenate(
            [pair.targets[:, :2], pair.targets[:, :2] + pair.targets[:, 2:]], axis=1
        ),
        "they are read as the centre, width, height": centre,
        "they are multiplied by the size of the picture": lambda pair: (
            pair.targets * np.array([*pair.size, *pair.size])
        ),
        f"they are moved by {shift[0]:.0f}, {shift[1]:.0f} pixels": lambda pair: (
            pair.targets + np.array([*shift, *shift])
        ),
        f"they are multiplied by {scale[0]:.2f}, {scale[1]:.2f}": lambda pair: (
            pair.targets * np.array([*scale, *scale])
        ),
    }


def _vote(pairs: list[BoxPair]) -> tuple[Array, Array]:
    """Return the shift and the scale that most pairs of a target and a prediction agree on."""
    shifts: list[Array] = [np.zeros((0, 2))]
    scales: list[Array] = [np.zeros((0, 2))]
    for pair in pairs:
        targets, predicted = (
            np.repeat(pair.targets, len(pair.predicted), axis=0),
            np.tile(pair.predicted, (len(pair.targets), 1)),
        )
        if not len(targets):
            continue
        own, other = targets[:, 2:] - targets[:, :2], predicted[:, 2:] - predicted[:, :2]
        # Shifts do not change the size.
        alike = (np.abs(np.log(np.maximum(other, 1e-6) / np.maximum(own, 1e-6))) < 0.2).all(axis=1)
        shifts.append(((predicted[:, :2] + predicted[:, 2:]) - (targets[:, :2] + targets[:, 2:]))[alike] / 2)
        good = (own > 0).all(axis=1) & (other > 0).all(axis=1)
        scales.append(np.log(other[good] / own[good]))
    shift = _fullest_bin(np.concatenate(shifts), _SHIFT)
    return shift, np.exp(_fullest_bin(np.concatenate(scales), _SCALE))


def _fullest_bin(values: Array, width: float) -> Array:
    """Return the middle of the bin that most of the pairs of numbers lie in."""
    if not len(values):
        return np.zeros(2)
    bins, inverse, counts = np.unique(np.rint(values / width), axis=0, return_inverse=True, return_counts=True)
    inside: Array = np.median(values[inverse.ravel() == counts.argmax()], axis=0)
    return inside if len(bins) else np.zeros(2)
