"""Search for one property of the files that predicts the label: size, format, brightness, colour, metadata."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Finding
from audit.checks.shared.label_guess import betrayed_class, bins_of, predict, separate_common_values
from audit.checks.shared.shortcut import NAMED, RIGHT, Facts, LabelledSamples, Sample, Shortcut, halves_of
from audit.checks.shared.significance import FAMILY_Z, wilson


def judge_facts(
    given: LabelledSamples, facts: Facts, samples: list[Sample], shares: tuple[float, float] = (NAMED, RIGHT)
) -> Iterable[Shortcut]:
    """Yield the properties that predict the label of one half of the samples, learned on the other half."""
    known = [place for place, sample in enumerate(samples) if sample in given.label_of]
    if len(known) < given.required_samples:
        return
    samples = [samples[place] for place in known]
    truth, halves = given.labels(samples), halves_of([index for _, index in samples])
    for name, (column, called) in facts.items():
        values = [column[place] for place in known]
        # What all samples have in common predicts nothing.
        if len(set(values)) < 2:
            continue
        bins = bins_of(values)
        right, guessed = predict(bins, truth, halves)
        least = wilson(round(right * len(samples)), len(samples), FAMILY_Z)[0]
        explained = (least - guessed) / (1 - guessed) if guessed < 1 else 0.0
        if explained >= given.context.options["explained"]:
            yield (
                called,
                Finding(
                    f"From {called} of a file alone the label is right for {right:.0%} of {len(samples):,} samples "
                    f"(at least {least:.0%}), where guessing gives {guessed:.0%}: a model may learn that instead of the picture.",
                    stage=0,
                    value=right,
                    threshold=guessed,
                    sql=given.evidence(name),
                ),
            )
        elif betrayed := betrayed_class(separate_common_values(values, bins), truth, halves, *shares):
            label, hits, named, count = betrayed
            yield (
                called,
                Finding(
                    f"{called[0].upper()}{called[1:]} alone names {hits:,} of the {count:,} samples of the class "
                    f"{given.show_class(label)}, and is right in {hits:,} of {named:,} cases: a model may learn that instead of the picture.",
                    stage=0,
                    value=hits / count,
                    threshold=shares[0],
                    sql=given.evidence(name),
                ),
            )
