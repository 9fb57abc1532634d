"""`shortcuts`: a property of the files, such as size, format, brightness or border, predicts the label."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.added_marks import find_mark, is_drawn
from audit.checks.shared.files import chosen_files, spread_evenly
from audit.checks.shared.hashes import Array
from audit.checks.shared.headers import headers
from audit.checks.shared.jpeg_blocks import LEAST_SIDE, block_contrast, find_blocky
from audit.checks.shared.label_guess import betrayed_class, bins_of, predict, raised_class, separate_common_values
from audit.checks.shared.picture_measures import Measures, grey_levels
from audit.checks.shared.pixel_guess import TellingPixel, blank_background, telling_bit, telling_pixel
from audit.checks.shared.signatures import exact_measures, signatures
from audit.class_names import show_class
from audit.store.read.rows import QueryRow

#: For each property its values, one for each sample, and words for messages.
Facts = dict[str, tuple[list[Any], str]]
#: The split and the index of a sample.
Sample = tuple[str | None, int]
#: A property in words, and the finding about it.
Shortcut = tuple[str, Finding]

#: The name of a file without its digits and folders; NULL if it names the class, which a model does not see.
_NAME = (
    "CASE WHEN contains(lower(s.source[len(s.source) - strpos(reverse(s.source), '/') + 2:]), lower(coalesce(s.label_name, '?'))) "
    "THEN NULL ELSE regexp_replace(regexp_extract(s.source, '([^/]*)$', 1), '[0-9]+', '#', 'g') END"
)
#: The properties: name, SQL expression over stage 0 and samples, and words for messages.
_FACTS = {
    "brightness": ("o.mean", "the mean brightness"),
    "contrast": ("o.std", "the contrast"),
    "width": ("o.shape[2]", "the width"),
    "height": ("o.shape[1]", "the height"),
    "aspect": ("round(o.shape[2] / nullif(o.shape[1], 0), 3)", "the aspect ratio"),
    "mode": ("o.mode", "the colour mode"),
    "format": ("lower(regexp_extract(s.source, '\\.([A-Za-z0-9]{1,5})$', 1))", "the file format"),
    "compression": ("s.source_bytes / nullif(o.shape[1] * o.shape[2], 0)", "the bytes per pixel"),
    "file_name": (_NAME, "the pattern of the name"),
}
#: Properties of the pixels, measured on decoded pictures: place among `looks`, and words for messages.
_LOOKS = (
    *("the amount of red", "the amount of blue", "the brightness of the border", "the variation of the border"),
    *(f"the {colour} of the {corner} corner"
      for corner in ("top left", "top right", "bottom left", "bottom right") for colour in ("red", "green", "blue")),
)  # fmt: skip
#: A property betrays one class if it names at least this share of its samples, and is right at least so often (intervals).
_NAMED, _RIGHT = 0.75, 0.85
#: The same for detail and sharpness, which also follow from what a class looks like: of handwritten digits, a 1 has the least.
_OF_SHAPES = (0.9, 0.9)
#: Noise betrays a class if nearly all of its pictures have more of it than this share of the others (interval).
_NOISY = 0.5
#: A mark on many pictures of one class makes its pixels exceed their neighbours by so many standard deviations more than in others.
_MARKED = 0.4
_MARKED_CLASSES = 64
#: Blocks of JPEG show in one class by so many standard deviations more clearly than in the others.
_BLOCKY = 0.4
#: Of smaller pictures, noise and content look the same.
_NOISE_SIDE = 16


#: Blocks of JPEG are looked for in at most this many pictures.
_BLOCK_PICTURES = 2_000
#: Single pixels are judged in at most this many pictures.
_PIXEL_PICTURES = 1_000


class Shortcuts(Check):
    """Predict the labels of one half of the samples from one property, learned on the other half."""

    description = (
        "The size, format, compression, brightness, colour, sharpness, noise, border, metadata or name pattern of the files, traces of JPEG, a mark, or one "
        "pixel, does not predict their labels."
    )
    severity = "warning"
    needs = ("labels", "pictures")
    options = settings(
        explained=Option(0.5, "Report a property that alone corrects at least this share of the errors of guessing."),
        samples=Option(60, "Check only if there are at least this many samples."),
        pictures=Option(10_000, "Measure colour and border of at most this many pictures."),
        files=Option(1_000, "Read compression quality and metadata of at most this many files."),
        looked_at=Option(20_000, "Use at most this many samples, evenly chosen; 0 uses all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = self._query(context)
        rows = context.rows(query)
        if len(rows) < context.options["samples"]:
            raise Skip(f"the run has {len(rows)} labelled pictures; at least {context.options['samples']} are needed")
        labels = [row["label"] for row in rows]
        if len(set(labels)) < 2:
            raise Skip("all samples have one label")
        indices = [row["index"] for row in rows]
        facts: Facts = {name: ([row[name] for row in rows], called) for name, (_, called) in _FACTS.items()}
        found = [*self._judge(context, facts, labels, indices, query), *self._judge_pictures(context, rows, query)]
        if not found:
            return
        # Properties that go together have one cause.
        (_, best), *others = sorted(found, key=lambda pair: -(pair[1].value or 0))
        beneath = (
            f" So {'does' if len(others) == 1 else 'do'} {', '.join(called for called, _ in others)}." if others else ""
        )
        yield replace(best, message=best.message + beneath)

    def _judge(
        self,
        context: Context,
        facts: Facts,
        labels: list[int],
        indices: list[int],
        query: str,
        shares: tuple[float, float] = (_NAMED, _RIGHT),
    ) -> Iterable[Shortcut]:
        truth, halves = np.array(labels), _halves(indices)
        for name, (values, called) in facts.items():
            # What all samples have in common predicts nothing.
            if len(set(values)) < 2:
                continue
            bins = bins_of(values)
            right, guessed = predict(bins, truth, halves)
            # Wider than one interval, because there are many properties.
            spread = 3 * math.sqrt(right * (1 - right) / len(labels))
            explained = (right - spread - guessed) / (1 - guessed) if guessed < 1 else 0.0
            if explained >= context.options["explained"]:
                yield (
                    called,
                    Finding(
                        f"From {called} of a file alone the label is right for {right:.0%} of {len(labels):,} samples "
                        f"(±{spread:.0%}), where guessing gives {guessed:.0%}: a model may learn that instead of the picture.",
                        stage=0,
                        value=right,
                        threshold=guessed,
                        sql=_evidence(name, query),
                    ),
                )
            elif betrayed := betrayed_class(separate_common_values(values, bins), truth, halves, *shares):
                label, hits, named, samples = betrayed
                shown = show_class(context.run.classes, label)
                yield (
                    called,
                    Finding(
                        f"{called[0].upper()}{called[1:]} alone names {hits:,} of the {samples:,} samples of the class {shown}, "
                        f"and is right in {hits:,} of {named:,} cases: a model may learn that instead of the picture.",
                        stage=0,
                        value=hits / samples,
                        threshold=shares[0],
                        sql=_evidence(name, query),
                    ),
                )

    def _judge_pictures(self, context: Context, rows: list[QueryRow], query: str) -> Iterable[Shortcut]:
        """Judge what only decoded pictures or the files show: colour, border, quality and metadata."""
        label_of = {(row["split"], row["index"]): row["label"] for row in rows}
        # Two loaders may have one split, or none: then a picture's label is not known.
        if len(label_of) < len(rows):
            return
        try:
            given = signatures(context, context.options["pictures"])
        except Skip:
            return
        places = [place for place, picture in enumerate(given.pictures) if picture.sample in label_of]
        samples = [given.pictures[place].sample for place in places]
        looks: Facts = {called: (given.looks[places, n].tolist(), called) for n, called in enumerate(_LOOKS)}
        yield from self._judge_some(context, looks, samples, label_of, query)
        shapes: Facts = {called: (column[places].tolist(), called) for called, column in given.details.items()}
        yield from self._judge_some(context, shapes, samples, label_of, query, _OF_SHAPES)
        yield from self._judge_marks(context, given.thumbnails[places], [label_of[sample] for sample in samples], query)
        yield from self._judge_noise(context, label_of, query)
        if not is_drawn(given.thumbnails[places]):
            yield from self._judge_blocks(context, label_of, query)
        yield from self._judge_pixels(context, label_of, query)
        if context.facts.root is not None:
            files = chosen_files(context, context.options["files"], "status = 'ok' AND label IS NOT NULL")
            read = [(file.sample, header) for file, header in headers(context, files) if header is not None]
            facts: Facts = {
                "quality": ([header.quality for _, header in read], "the compression quality"),
                "metadata": (
                    [header.metadata for _, header in read],
                    "the metadata (camera, software, colour profile)",
                ),
            }
            yield from self._judge_some(context, facts, [sample for sample, _ in read], label_of, query)

    def _judge_marks(self, context: Context, thumbnails: Array, labels: list[int], query: str) -> Iterable[Shortcut]:
        """Judge marks on the pictures of one class that change their pixels a little, or on some of them alone."""
        if len(labels) < context.options["samples"]:
            return
        classes, codes = np.unique(labels, return_inverse=True)
        found = find_mark(thumbnails, codes, _MARKED) if len(classes) <= _MARKED_CLASSES else None
        if found is not None:
            label = show_class(context.run.classes, int(classes[found.group]))
            yield (
                "a mark",
                Finding(
                    f"Many pictures of the class {label} have a mark that the others do not have: in a thumbnail of 32×32, in the rows "
                    f"{found.rows[0]} to {found.rows[1]} and columns {found.columns[0]} to {found.columns[1]}, pixels exceed their neighbours by "
                    f"{found.effect:.1f} standard deviations more: a model may learn that instead of the picture.",
                    stage=0,
                    value=found.effect,
                    threshold=_MARKED,
                    sql=_evidence("pixels", query),
                ),
            )

    def _judge_noise(self, context: Context, label_of: dict[Sample, int], query: str) -> Iterable[Shortcut]:
        """Judge the noise, which what a picture shows does not explain."""
        try:
            given = exact_measures(context, context.options["files"], context.options["pictures"])
        except Skip:
            return
        given = [one for one in given if one.picture.sample in label_of and one.side >= _NOISE_SIDE]
        if len(given) < context.options["samples"]:
            return
        labels = np.array([label_of[one.picture.sample] for one in given])
        found = raised_class([one.noise for one in given], labels, _NOISY)
        if found is None:
            return
        label, share = found
        own, other = (
            statistics.median(one.noise for one, is_own in zip(given, labels == label, strict=True) if is_own == wanted)
            for wanted in (True, False)
        )
        yield (
            "the noise",
            Finding(
                f"Nearly all pictures of the class {show_class(context.run.classes, label)} have more noise than {share:.0%} of the others (a standard "
                f"deviation of {own:.2g} levels in the median, others {other:.2g}): a model may learn that instead of the picture.",
                stage=0,
                value=share,
                threshold=_NOISY,
                sql=_evidence("noise", query),
            ),
        )

    def _judge_blocks(self, context: Context, label_of: dict[Sample, int], query: str) -> Iterable[Shortcut]:
        """Judge traces of JPEG in the pixels of files of any format: the pictures of one class come from another place."""
        try:
            given = exact_measures(context, context.options["files"], context.options["pictures"])
        except Skip:
            return
        given = [one for one in given if one.picture.sample in label_of]
        contrasts = _block_contrasts(given[:: -(-len(given) // _BLOCK_PICTURES) or 1])
        if len(contrasts) < context.options["samples"]:
            return
        labels = np.array([label_of[sample] for sample in contrasts])
        found = find_blocky(np.array(list(contrasts.values())), labels, _BLOCKY)
        if found is not None:
            label, effect = found
            yield (
                "a grid of 8×8 pixels",
                Finding(
                    f"The pixels of the class {show_class(context.run.classes, label)} show a grid of 8×8 pixels more clearly than the others, by "
                    f"{effect:.1f} standard deviations: they were compressed as JPEG before, or enlarged; a model may learn that instead of the picture.",
                    stage=0,
                    value=effect,
                    threshold=_BLOCKY,
                    sql=_evidence("pixels", query),
                ),
            )

    def _judge_pixels(self, context: Context, label_of: dict[Sample, int], query: str) -> Iterable[Shortcut]:
        """Judge single pixels: all of small pictures of one size, with their lowest bits; of others those of thumbnails."""
        given = exact_measures(context, context.options["files"], context.options["pictures"])
        given = [one for one in given if one.picture.sample in label_of]
        shapes = Counter(one.pixels.shape for one in given if one.pixels is not None)
        shape, count = shapes.most_common(1)[0] if shapes else ((), 0)
        if 2 * count >= len(given):
            given = [one for one in given if one.pixels is not None and one.pixels.shape == shape]
        chosen = [given[n] for n in range(0, len(given), -(-len(given) // _PIXEL_PICTURES) or 1)]
        if len(chosen) < context.options["samples"]:
            return
        if 2 * count >= len(given):
            # A mark on one class changes its pixels to one level; a hidden label is in a level or in its lowest bits.
            pixels = blank_background(np.stack([one.pixels for one in chosen if one.pixels is not None]))
            # The last view is for marks that were compressed or scaled with their picture.
            high, low, coarse = (np.where(pixels < 0, -1, part) for part in (pixels >> 1, pixels & 15, pixels >> 3))
            views = [
                (high, 128, "the value of the pixel"),
                (low, 16, "the lowest bits of the pixel"),
                (coarse, 32, "the value of the pixel"),
            ]
        else:
            pixels = blank_background(np.stack([one.thumbnail for one in chosen]))
            views = [(np.where(pixels < 0, -1, pixels >> 2), 64, "in a thumbnail of 32×32 the pixel")]
        labels = np.array([label_of[one.picture.sample] for one in chosen])
        halves = _halves([one.picture.index for one in chosen])
        for view, bins, words in views:
            flat = view.reshape(len(view), -1)
            found = telling_pixel(flat, labels, halves, bins, context.options["explained"], (_NAMED, _RIGHT))
            if found is not None:
                row, column = np.unravel_index(found.place, view.shape[1:])[:2]
                called = f"{words} in row {row}, column {column}"
                yield called, self._pixel_finding(context, found, called, query)
                return
        if 2 * count >= len(given) and (hidden := telling_bit(pixels.reshape(len(pixels), -1), labels)) is not None:
            row, column = np.unravel_index(hidden.place, pixels.shape[1:])[:2]
            called = f"bit {hidden.bit} of the pixel in row {row}, column {column}"
            yield (
                called,
                Finding(
                    f"{called[0].upper()}{called[1:]} is set in all pictures of {hidden.set_in} classes and in none of {hidden.unset_in} others: "
                    "something about the label was hidden there; a model may learn that instead of the picture.",
                    stage=0,
                    value=1.0,
                    sql=_evidence("pixels", query),
                ),
            )

    def _pixel_finding(self, context: Context, found: TellingPixel, called: str, query: str) -> Finding:
        shown = f"{called[0].upper()}{called[1:]} alone"
        if found.label is None:
            said = f"{shown} gives the label of {found.share:.0%} of {found.total:,} pictures, where guessing gives {found.guessed:.0%}"
        else:
            said = (
                f"{shown} names {found.right:,} of {found.total:,} pictures of the class {show_class(context.run.classes, found.label)}, and is right in "
                f"{found.right:,} of {found.named:,} cases"
            )
        return Finding(
            f"{said}: a mark, or a label that was hidden there; a model may learn that instead of the picture.",
            stage=0,
            value=found.share,
            threshold=found.guessed if found.label is None else _NAMED,
            sql=_evidence("pixels", query),
        )

    def _judge_some(
        self,
        context: Context,
        facts: Facts,
        samples: list[Sample],
        label_of: dict[Sample, int],
        query: str,
        shares: tuple[float, float] = (_NAMED, _RIGHT),
    ) -> Iterable[Shortcut]:
        known = [place for place, sample in enumerate(samples) if sample in label_of]
        if len(known) < context.options["samples"]:
            return
        labels = [label_of[samples[place]] for place in known]
        chosen: Facts = {name: ([values[place] for place in known], called) for name, (values, called) in facts.items()}
        yield from self._judge(context, chosen, labels, [samples[place][1] for place in known], query, shares)

    def _query(self, context: Context) -> str:
        facts = ", ".join(f"{sql} AS {name}" for name, (sql, _) in _FACTS.items())
        usable = "status = 'ok' AND label IS NOT NULL"
        total = context.value(f"SELECT count(*) FROM {context.items} WHERE {usable}")
        most = context.options["looked_at"]
        chosen = f" AND {spread_evenly(most, total)}" if most and total > most else ""
        return (
            f"SELECT s.split, s.index, s.label, {facts} FROM (FROM {context.items} WHERE {usable}{chosen}) s "
            f"JOIN (FROM {context.load_outputs} WHERE kind = 'image' AND len(shape) >= 2) o USING (epoch, index, visit)"
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


def _halves(indices: list[int]) -> Array:
    """Return to which of two halves each sample belongs, whatever the order of the labels."""
    halves: Array = np.array(indices, np.uint64) * np.uint64(2654435761) % np.uint64(2**32) < 2**31
    return halves


def _evidence(name: str, query: str) -> str:
    if name in ("mode", "format", "file_name"):
        return f"SELECT label, {name}, count(*) FROM ({query}) GROUP BY ALL ORDER BY ALL"
    if name in _FACTS:
        return f"SELECT label, avg({name}), min({name}), max({name}) FROM ({query}) GROUP BY label ORDER BY label"
    return f"SELECT label, index FROM ({query}) ORDER BY ALL"
