"""`shortcuts`: a property of the files, such as size, format, brightness or border, predicts the label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.added_marks import is_drawn
from audit.checks.shared.file_headers import headers
from audit.checks.shared.files import choose_files, spread_evenly
from audit.checks.shared.picture_signatures import SATURATION, TINT, exact_measures, signatures
from audit.checks.shared.shortcut import FACTS, Facts, LabelledSamples, Shortcut
from audit.checks.shared.shortcut_facts import judge_facts
from audit.checks.shared.shortcut_marks import judge_blocks, judge_colour, judge_marks, judge_noise, judge_position
from audit.checks.shared.shortcut_pixels import judge_pixels

#: Properties of the pixels, measured on decoded pictures: place among `looks`, and words for messages.
_LOOKS = (
    *("the amount of red", "the amount of blue", "the brightness of the border", "the variation of the border"),
    *(f"the {colour} of the {corner} corner"
      for corner in ("top left", "top right", "bottom left", "bottom right") for colour in ("red", "green", "blue")),
)  # fmt: skip
#: How much of a class detail and sharpness must name, and how often they must be right: they also follow from what a class
#: looks like. Of handwritten digits, a 1 has the least.
_OF_SHAPES = (0.9, 0.9)


class Shortcuts(Check):
    """Predict the labels of one half of the samples from one property, learned on the other half."""

    description = (
        "No property of the files predicts their labels: size, format, compression, brightness, colour, sharpness, noise, border, "
        "metadata, name, position of drawings, traces of JPEG, a mark, or one pixel."
    )
    question = "Does a property of the files predict the label?"
    statistic = (
        "properties: how often the commonest label of a value is right, learned on one half of the samples and tested "
        "on the other, with three standard errors. Single pixels: the same for their value and for its lowest bits; "
        "black and white are left out where they are more than a tenth of all. Noise: the share of the other pictures "
        "that have less than nearly all of one class. Saturation, tint, and the place of a drawing and of its box: the "
        "share of the others that nearly all of one class exceed. Marks: by how many standard deviations more the "
        "pixels of one class exceed their neighbours, less four standard errors. Hidden bits: each class has the bit "
        "always or never. JPEG: by how many standard deviations more the steps at every eighth pixel of one class "
        "exceed those beside them, less four standard errors"
    )
    assumes = (
        "the halves are independent; the objects of a class do not make all of its pictures noisy, are not at one "
        "place with the same sharp edges, and not on a grid of 8 pixels"
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
        if len({row["label"] for row in rows}) < 2:
            raise Skip("all samples have one label")
        samples = [(row["split"], row["index"]) for row in rows]
        given = LabelledSamples(
            context, query, {sample: row["label"] for sample, row in zip(samples, rows, strict=True)}
        )
        facts: Facts = {name: ([row[name] for row in rows], called) for name, (_, called) in FACTS.items()}
        # Two loaders may have one split, or none: then a sample's label is not known.
        if len(given.label_of) < len(rows):
            samples = [(None, number) for number in range(len(rows))]
            numbered = LabelledSamples(context, query, {(None, n): row["label"] for n, row in enumerate(rows)})
            found = list(judge_facts(numbered, facts, samples))
        else:
            found = [*judge_facts(given, facts, samples), *self._judge_pictures(given)]
        if not found:
            return
        # Properties that go together have one cause.
        (_, best), *others = sorted(found, key=lambda pair: -(pair[1].value or 0))
        further = f" The same holds for {', '.join(called for called, _ in others)}." if others else ""
        yield replace(best, message=best.message + further)

    def _judge_pictures(self, given: LabelledSamples) -> Iterable[Shortcut]:
        """Judge what only decoded pictures or the files show: colour, border, quality and metadata."""
        context, options = given.context, given.context.options
        try:
            shown = signatures(context, options["pictures"])
        except Skip:
            return
        places = [place for place, picture in enumerate(shown.pictures) if picture.sample in given.label_of]
        samples = [shown.pictures[place].sample for place in places]
        looks: Facts = {called: (shown.looks[places, n].tolist(), called) for n, called in enumerate(_LOOKS)}
        yield from judge_facts(given, looks, samples)
        shapes: Facts = {called: (column[places].tolist(), called) for called, column in shown.details.items()}
        yield from judge_facts(given, shapes, samples, _OF_SHAPES)
        yield from judge_marks(given, shown.thumbnails[places], samples)
        yield from judge_colour(given, -shown.looks[places, SATURATION], samples, "the saturation", "paler colours")
        yield from judge_colour(
            given, shown.looks[places, TINT], samples, "the tint", "less green, relative to red and blue,"
        )
        yield from judge_colour(
            given, -shown.looks[places, TINT], samples, "the tint", "more green, relative to red and blue,"
        )
        try:
            exact = exact_measures(context, options["files"], options["pictures"])
        except Skip:
            exact = []
        yield from judge_noise(given, exact)
        if is_drawn(shown.thumbnails[places]):
            yield from judge_position(given, shown.thumbnails[places], samples)
        else:
            yield from judge_blocks(given, exact)
        yield from judge_pixels(given, exact)
        if context.facts.root is not None:
            yield from self._judge_headers(given)

    def _judge_headers(self, given: LabelledSamples) -> Iterable[Shortcut]:
        """Judge what the headers of the files say."""
        files = choose_files(given.context, given.context.options["files"], "status = 'ok' AND label IS NOT NULL")
        read = [(file.sample, header) for file, header in headers(given.context, files) if header is not None]
        facts: Facts = {
            "quality": ([header.quality for _, header in read], "the compression quality"),
            "metadata": ([header.metadata for _, header in read], "the metadata (camera, software, colour profile)"),
        }
        yield from judge_facts(given, facts, [sample for sample, _ in read])

    def _query(self, context: Context) -> str:
        facts = ", ".join(f"{sql} AS {name}" for name, (sql, _) in FACTS.items())
        usable = "status = 'ok' AND label IS NOT NULL"
        total = context.value(f"SELECT count(*) FROM {context.items} WHERE {usable}")
        most = context.options["looked_at"]
        chosen = f" AND {spread_evenly(most, total)}" if most and total > most else ""
        return (
            f"SELECT s.split, s.index, s.label, {facts} FROM (FROM {context.items} WHERE {usable}{chosen}) s "
            f"JOIN (FROM {context.load_outputs} WHERE kind = 'image' AND len(shape) >= 2) o USING (epoch, index, visit)"
        )
