"""`class_regressions`: one class got worse than in the baseline, though the total may hide it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.significance import fewest_flips, holm
from audit.checks.shared.source_pairs import pair_by_source
from audit.lineage.diff.mcnemar import p_value
from audit.store.sql_literal import literal


@dataclass(slots=True)
class _Class:
    """How the predictions of one class changed."""

    samples: int = 0
    lost: int = 0
    gained: int = 0


class ClassRegressions(Check):
    """Test each class with McNemar's exact test on the same samples, corrected for the number of classes (Holm)."""

    description = "No class has become worse than in the baseline by more than chance explains."
    question = "Did one class get worse than in the baseline?"
    statistic = "McNemar's exact test of the samples that turned wrong and right, Holm over the classes"
    assumes = "the same sources and labels in both runs"
    # A model that is worse as a whole is worse in most classes.
    follows = ("accuracy",)
    needs = ("model", "labels", "same_labels", "baseline")
    options = settings(
        significance=Option(0.01, "The probability of any false finding among all classes."),
        drop=Option(0.02, "Report a class only if its accuracy is lower by at least this."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        assert baseline is not None
        classes: dict[int, _Class] = {}
        for before, now in pair_by_source(context, baseline):
            if before is None or now is None or before.label is None or before.label != now.label:
                continue
            if before.predicted is None or now.predicted is None:
                continue
            found = classes.setdefault(now.label, _Class())
            was, is_now = before.predicted == before.label, now.predicted == now.label
            found.samples += 1
            found.lost += was and not is_now
            found.gained += is_now and not was
        if not classes:
            raise Skip(f"no sample has a label and a prediction both here and in {baseline.name}")
        level = context.options["significance"]
        # A class of fewer samples cannot differ significantly, whatever became of them, and is not tested.
        needed = fewest_flips(level / len(classes))
        labels = sorted(label for label, one in classes.items() if one.samples >= needed)
        if not labels:
            most = max(one.samples for one in classes.values())
            raise Skip(f"the largest class has {most} samples in both runs; at least {needed} are needed")
        if len(labels) < len(classes):
            context.note(f"{len(classes) - len(labels):,} of {len(classes):,} classes have fewer than {needed} samples")
        chances = [p_value(classes[label].lost, classes[label].gained) for label in labels]
        for label, chance, sure in zip(labels, chances, holm(chances, level), strict=True):
            one = classes[label]
            drop = (one.lost - one.gained) / one.samples
            if sure and drop >= context.options["drop"]:
                name = (context.run.classes or [])[label : label + 1] or [str(label)]
                yield Finding(
                    f"The class {name[0]} is {drop:.1%} less accurate than in {baseline.name}: of {one.samples:,} samples "
                    f"{one.lost:,} were right and are wrong now, and {one.gained:,} were wrong and are right now (McNemar's exact test: p {chance:.2g}).",
                    value=drop,
                    threshold=context.options["drop"],
                    sql=f"SELECT index, source, predicted_name, confidence FROM lineage WHERE run_id = "
                    f"{literal(context.run.run_id)} AND label = {label} AND NOT correct ORDER BY confidence DESC",
                )
