"""Generate docs/CHECKS.md from the checks' declarations; a test compares the file with the code."""

from __future__ import annotations

from collections.abc import Sequence

from audit.checks.base import Check
from audit.checks.registry import all_checks

_HEAD = """\
# Checks

<!-- Made by `python -m audit.checks.documentation > docs/CHECKS.md`; a test compares it with the code. -->

A check reads what was recorded and reports findings. It records nothing and needs no torch (except `reproducible`, which replays, and `probe`, which runs the model with `--probe`). Its status is
`pass`, `fail`, `skip` (with the reason) or `error` (the check itself raised an error; the others still run).

```
audit check                          the newest run, the default checks
audit check RUN --only finite        one run, one check
audit check --list                   this page, in the terminal
audit check --init                   write audit.toml from what the run shows
audit sql "FROM findings"            the findings, each with a query that shows its rows
```

## Configuration

`audit.toml`, or `[tool.audit]` in `pyproject.toml`. An unknown key or check is an error.

```toml
fail_on = "error"              # `audit check` exits with 1 at this severity or worse: error, warning, info
baseline = "baseline.json"     # a file of `audit baseline export`, or a run of the store
max_findings = 100             # listed for each check; the rest is counted
skip = ["image_quality"]       # or select = [...]: these and no others

[checks.accuracy]
min = 0.95
severity = "error"             # every check: enabled, severity, splits, classes, stages, pipelines, datasets, allow
classes = ["cat", "dog"]
pipelines = ["eval.py"]        # only runs of this pipeline; others skip the check (datasets = [...]: of this dataset)

[checks.duplicates]
splits = ["train"]
allow = [
  { source = "scans/*.png", reason = "both sides of one sheet", expires = 2027-06-30 },
  { digest = "9f86d081884c7d65", reason = "test card" },
]

[checks.per_class_accuracy]    # a finding without a source is accepted by its message or its stage
allow = [{ message = "The class lynx is right in *", reason = "12 pictures so far", expires = 2027-06-30 }]

[checks.stage_contract.contract.Normalize]
kind = "tensor"
dtype = "float32"
shape = [3, -1, -1]            # -1 is any length
min = -5
max = 5

[[sql]]                        # your own rule: a query that must return no rows ...
name = "large-files"
query = "SELECT index, source, source_bytes AS value FROM samples WHERE source_bytes > 10000000"

[[sql]]                        # ... or a value within bounds
name = "mean-loss"
query = "SELECT avg(loss) FROM predictions"
max = 0.5
```

In Python: `run_checks("lineage", only=["finite"])` of `audit.checks.runner`, or `store.check()`.

## What `coverage` expects from your own loop

After `audit run`, every sample must be recorded. In a loop recorded with `run.loader`, every sample must be recorded in each epoch that ran to its end, if the
sampler is torch's `SequentialSampler`, `RandomSampler` without replacement, or `DistributedSampler` (all ranks together). A missing sample is then a finding.
Samples that `drop_last` leaves out are a warning in an evaluation split (test, val, …), and counted in a note elsewhere. With other samplers (subset, weighted, your own),
in loops that stop early, or with `run.dataset`, samples that no epoch drew are also only counted in a note. `every_sample = true` makes them findings.

## What chance explains is not a finding

| check | question | statistic | assumes |
| --- | --- | --- | --- |
{statistics}

A check that has too few samples to decide is skipped, and says how many it needs; where it can judge a part, a note says what it left out.

| check | a finding needs | corrected for | skipped, or noted, below |
| --- | --- | --- | --- |
| `augmentation` | 99.99 % interval | Bonferroni: 0.01 % for each stage is 5 % for 500 | 20 visits |
| `class_regressions` | p of 1 %, and a drop of 2 % | classes (Holm) | as many samples of a class as McNemar's test needs: 8 for one class, 11 for ten |
| `drift`, `split_drift` | p of 0.01 %; 0.1 %, and a distance | all comparisons (Holm) | 30 samples on each side; 50 in each split |
| `accuracy` | p of 5 %, and a drop of 2 %; with `min`, the accuracy as it is, shown with its 95 % interval | – (one test) | 50 samples, to be compared with guessing |
| `losses` | p of 0.1 %, and an effect of 0.2 | – (one test) | 30 pairs |
| `per_class_accuracy` | 95 % interval | classes (Bonferroni) | as many samples of a class as the interval needs |
| `weak_segments` | p of 1 %, and a gap of 15 % | 24 segments (Holm) | 120 graded pictures |
| `calibration` | two standard errors; p of 0.1 % for a class; e¹⁰ for the scale | classes (Holm) | 100 graded samples; 20 of a class; 10 wrong ones |
| `class_order` | p of 0.1 % in each split | pairs of classes (Bonferroni) | 5 samples of two classes; 10 samples; 30 with several labels |
| `alignment` | p of 0.1 %, and a gain of 25 % | both neighbours (Holm) | 8 places where the label changes |
| `missed_by_size` | p of 0.1 %, and a difference of 30 % | sizes (Holm) | 30 objects |
| `lost_boxes`, `box_fit`, `mask_fit` | p of 0.1 %; three standard errors, and four times what boxes of another picture give | – | 20 boxes, 20 masks (`box_fit`, `mask_fit`) |
| `missing_classes` | p of 1 % | classes and splits (Bonferroni) | – (a note instead) |
| `label_issues` | a likelihood ratio of e³, and an expected precision of 80 % | all labels (one mixture) | 20 predictions |
| `probe` | p of 0.1 %, and a gain of 5 % | changes (Holm) | 20 samples |
| `shortcuts`, `telling_words`, `columns` | Wilson's interval with three standard errors (four for marks, blocks and turns) on the other half | Bonferroni: 0.13 % for each of about 40 properties is 5 % for all; large effects alone (half of the errors, 75 % of a class) | 60 samples |
| `outliers` | as many in 0.5 % of clean runs (Poisson) | all pictures | 300 pictures |
| `odd_scale` | 8 standard deviations | – | 50 outputs |
| `near_duplicates`, `leakage` | fewer than one false pair expected | all pairs | – |

The other checks need no statistic: they compare or count what was recorded, and find one sample, stage or file as surely among 100 as among
10,000 samples. What they look at only in a part of the files or pictures is an option of the check, and a note says so.

| check | question | rule | assumes |
| --- | --- | --- | --- |
{rules}

How often a fault is found at 100, 1,000 and 10,000 samples, and how often a finding is false where there is no fault (300 simulations each,
`python -m bench.power`; 100 for pixels, bits, blocks, positions, turns, columns and logits, 40 for `label_issues`, marks, boxes and masks). False findings are counted at 30 samples too:

| check | fault | 100 | 1,000 | 10,000 | nothing, at most |
| --- | --- | --- | --- | --- | --- |
| `augmentation` | A stage with p 0.5 that acts in 30 % of the visits. | 2% | 99% | 100% | 0.0% |
| `class_regressions` | One of 10 classes loses 20 % of its samples, where 2 % of all flip each way by chance. | 0% | 83% | 100% | 0.3% |
| `split_drift` | The brightness of a quarter of the samples, the test split, is shifted by 0.7 standard deviations. | 0% | 100% | 100% | 0.0% |
| `weak_segments` | One of 20 quarters is right in 65 %, the others in 90 %. | 0% | 100% | 100% | 0.0% |
| `per_class_accuracy` | One of 10 classes is right in 40 %, the others in 90 %. | 0% | 57% | 100% | 0.0% |
| `accuracy` | 5 % of the samples turn wrong against the baseline, where 2 % of all flip each way by chance. | 28% | 100% | 100% | 0.0% |
| `losses` | The losses grow by 0.3 standard deviations of their changes. | 32% | 100% | 100% | 0.0% |
| `calibration` | Where one of 10 classes is predicted with 90 % confidence, 60 % are right. | 0% | 99% | 100% | 0.0% |
| `calibration` | Logits of a model that is right in 96 % are 20 times too large. | 2% | 100% | 100% | 0.0% |
| `class_order` | Two of 10 classes are swapped, and the model is right in 80 % otherwise; without the fault the model guesses. | 95% | 100% | 100% | 0.0% |
| `shortcuts` | The brightness of each of 3 classes differs by four standard deviations. | 100% | 100% | 100% | 0.0% |
| `shortcuts` | Noise of 5 levels is added to one of 10 classes, where pictures have 2 in the mean and classes differ by half of that. | 0% | 100% | 100% | 0.0% |
| `shortcuts` | One of 200 pixels, which have any level, has one level in all pictures of one of 10 classes; at most 1,000 pictures are used. | 0% | 80% | 86% | 0.0% |
| `shortcuts` | A watermark of 25 % opacity on half of the pictures of one of 4 classes; at most 2,000 pictures are simulated. | 0% | 50% | 100% | 0.0% |
| `shortcuts` | One bit of one of 200 pixels is set where the label, one of 4, is odd; at most 1,000 pictures are used. | 100% | 100% | 100% | 0.0% |
| `shortcuts` | Pictures of 32×32 of one of 4 classes have steps of 4 levels between blocks of 8×8, where noise is 10; at most 2,000 are simulated. | 0% | 100% | 100% | 0.0% |
| `split_drift` | The test split, a quarter, is upside down, where pictures are brighter above by half a standard deviation; at most 2,000 are simulated. | 0% | 100% | 100% | 0.0% |
| `columns` | One of 20 columns is the label, one of 3, with noise of a tenth; without the fault it has noise of 1; at most 5,000 rows are read. | 0% | 100% | 100% | 0.0% |
| `telling_words` | A word that is in 95 % of the texts of one of 4 classes and in 1 % of the others; at most 5,000 texts are read. | 0% | 100% | 100% | 0.0% |
| `outliers` | Three pictures lie 12 standard deviations away in three of the 13 measures; found: two of them are warnings. | 0% | 100% | 100% | 0.0% |
| `probe` | Another normalisation turns 15 % of at most 256 samples right and 3 % wrong; the others change 3 % each way. | 7% | 70% | 71% | 0.0% |
| `label_issues` | 3 % of the labels of 10 classes are replaced, where the model is right in 90 %; found: half of them are reported. | 70% | 100% | 100% | 0.0% |
| `drift` | The brightness is shifted by half a standard deviation against the baseline, one of 20 comparisons. | 4% | 100% | 100% | 0.0% |
| `missing_classes` | One of 10 classes, with 5 % of the samples, is missing in a test split of a quarter; without the fault the split is random. | 0% | 100% | 100% | 0.3% |
| `box_fit` | The targets of a third of the pictures are mirrored, and the model finds 70 % of the objects; at most 1,000 pictures are used. | 98% | 100% | 100% | 0.0% |
| `mask_fit` | A third of the masks is mirrored, and the model finds 70 % of the objects; at most 300 pictures are used. | 45% | 98% | 100% | 0.0% |
| `missed_by_size` | A detector misses half of the small objects, a third of all, and 10 % of the others; one object in each picture. | 81% | 100% | 100% | 0.0% |
| `calibration` | The confidence is 25 % too high in every bin. | 32% | 100% | 100% | 0.0% |
| `class_order` | Of 10 classes each is predicted as the next, in 70 % of the samples; without the fault the model guesses. | 98% | 100% | 100% | 0.0% |
| `alignment` | Labels of 3 classes are shifted by one row, and the model is right in 70 % otherwise; without the fault the model guesses. | 100% | 100% | 100% | 0.0% |
| `lost_boxes` | A random crop loses a quarter of the objects, without the fault 8 %; one object in each picture. | 87% | 100% | 100% | 0.0% |
| `shortcuts` | The pictures of one of 10 classes lose two thirds of their colour, where saturation is exponential and differs by half between classes. | 0% | 66% | 99% | 0.0% |
| `shortcuts` | The drawings of one of 10 classes, of which each lies a pixel off its place (standard deviation), lie 3 pixels of 32 lower; at most 2,000 are simulated. | 0% | 93% | 100% | 0.0% |
| `odd_scale` | One sample was not divided by 255, where the largest values of the others spread by a fifth (lognormal). | 100% | 100% | 100% | 0.0% |

What is found of copies (`near_duplicates`, `leakage`) is measured on pictures, below. `shortcuts` and `split_drift` look for marks in photographs alone: where more than a tenth of all pixels is black or
white, as in drawings and digits, what the pictures show lies at one place as a mark does. A watermark on less than a third of a class is mostly missed. A class that
is upside down is found where another split has the same class upright; in one split alone a class that is upside down looks like a class of its own kind.

`box_fit` and `mask_fit` need 20 pictures; of 90 pictures each of 11 planted changes of boxes and 9 of masks is found, and none is reported for good and poor
models on right targets (`tests/checks/test_checks_targets.py`).

`python -m bench.alarms` runs all default checks against a baseline on random clean runs: two runs of one model on the same files, two splits, labels that follow
the probabilities, 2 to 50 classes. Of 100 runs of 30 samples none had a warning or an error; of 100 of 100 samples one, by `label_issues`; of 60 of 1,000 samples and 12 of 10,000 only `per_class_accuracy`
(three runs) and `head` (one) reported something, of models that do predict a rare class seldom.

Of 12 classifiers that were tried with 0, 1, 3 and 10 % of their test labels replaced (logistic regression, forests and overfitted networks on MNIST,
Fashion-MNIST and digits; 6 seeds each), `label_issues` reported no label where none was replaced, and mostly 80 to 100 % (in one case with few reports 67 %) of what it reported was wrong where it
expected 80 %, except for one classifier of 76 % accuracy (57 to 75 %), which `min_accuracy` now excludes.

Of 300 copies of each kind, hidden among 10,000 pictures, `python -m bench.copies` finds (the limits were chosen on the first 10,000 training
pictures, `--half choose`; these are the 10,000 test pictures):

| change | CIFAR-10 | MNIST |
| --- | --- | --- |
| JPEG, quality 60 | 98 % | 100 % |
| shrunk to three quarters | 100 % | 98 % |
| 6 levels brighter | 100 % | 100 % |
| 3 % cropped | 100 % | 100 % |
| contrast 1.4 | 100 % | 100 % |
| mirrored | 100 % | 100 % |
| turned by 90, 180 or 270 degrees | 100 % | 100 % |
| turned, and JPEG, quality 90 | 100 % | 98 % |
| turned by 5 degrees, with black corners | 94 % | 86 % |
| a tenth covered by a black square | 100 % | 94 % |
| pairs without planted copies | 25, of the same photograph as far as the eye tells | none |

Five pictures of another kind among CIFAR-10's test photographs, in one run of `python -m bench.outliers`: warnings, and notes after the plus.

| among | noise | scanned text | diagrams | handwritten digits | blurred | inverted | photographs, of all |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 300 | 5 | 5 | 5 | 0 | 0 | 0 | 0 |
| 1,000 | 5 | 5 | 5 | 0 | 0 | 0 | 0 |
| 10,000 | 5 | 5 | 5 | 0 | 0 | 0 | 0 |

Digits, blurred and inverted photographs are not farther from the others than photographs are from each other: `audit embed` finds more. Of runs without
outliers (the first 10,000 training and the 10,000 test pictures of MNIST and of CIFAR-10, divided into runs of 300, 400, 1,000 and 10,000; 820 in all), 0.4 % had a warning, with one picture each.

A picture of fewer than 16 pixels across, such as a digit of 8×8, shows too little to tell a copy from another of its kind: there only
copies with nearly the same pixels are found.

With more than 20,000 pictures the candidates come from perceptual hashes, which miss most cropped and all mirrored copies, and copies turned by a few
degrees are not looked for. By default 10,000
pictures are compared, evenly chosen; `pictures = 20000` compares more.

## Your own, in Python

```python
from audit.checks.base import Check, Finding, Option, settings


class Tiny(Check):
    name = "tiny"
    description = "Very small files."
    severity = "warning"
    options = settings(bytes=Option(100, "Report files smaller than this."))

    def run(self, context):
        limit = context.options["bytes"]
        query = f"SELECT index, source, source_bytes FROM {context.samples} WHERE source_bytes < {limit}"
        for row in context.offenders(query):
            yield Finding(
                f"{row['source']} has {row['source_bytes']} bytes.",
                index=row["index"],
                source=row["source"],
                sql=context.evidence("samples", row["index"]),
            )
```

Save it as a file of your project and name it. No package or entry point is needed.

```
audit check --checks checks/tiny.py
```

```toml
[checks]
paths = ["checks/*.py"]        # relative to this file
```

A configuration may come with somebody else's project, so the files that only it names are executed with `--trust`
alone. Without it `audit check` names them, runs nothing and exits with 1. A package offers a check to everyone
who installs it:

```toml
[project.entry-points."audit.checks"]      # in the package's pyproject.toml
tiny = "my_package.checks:Tiny"
```
"""

#: The order of the rows of the two tables of questions. Of checks that share a row, the first declares its words. A check that
#: is not named here has a row of its own at the end.
_STATISTICS = (
    "augmentation",
    "class_regressions",
    "drift",
    "split_drift",
    "columns",
    "split_scale",
    "overflow",
    "blank",
    "displaced",
    "truncated",
    "probabilities",
    "accuracy",
    "losses",
    "box_fit",
    "mask_fit",
    "telling_words",
    "odd_scale",
    "missed_by_size",
    "outliers",
    "missing_classes",
    "weak_segments",
    "per_class_accuracy",
    "calibration",
    "class_order",
    "alignment",
    "lost_boxes",
    "shortcuts",
    "label_issues",
    "probe",
    "near_duplicates leakage",
)
_RULES = (
    "coverage",
    "reproducible",
    "source_unchanged",
    "stable_load",
    "loader_order",
    "store",
    "stage_coverage",
    "code_unchanged model_unchanged",
    "unreadable",
    "hooks",
    "finite clipped stage_contract",
    "scale preprocessing",
    "channel_order",
    "repeated_draws",
    "duplicates conflicting_labels",
    "class_balance missing_classes",
    "image_quality",
    "exif_orientation alpha_dropped",
    "target_boxes target_masks",
    "class_names",
    "learning",
    "head label_range",
    "evaluation_mode",
    "dead_layers exploding_layers",
    "dataset_changed pipeline_changed prediction_flips",
    "sql",
)

_GROUPS = {
    "integrity": "Integrity: is the record complete and correct?",
    "values": "Values: is each stage's output as intended?",
    "data": "Data: does the dataset have defects?",
    "model": "Labels and model",
    "against": "Against a baseline",
    "yours": "Yours",
}


def checks_page() -> str:
    """Return the whole page."""
    checks = [check for check in all_checks() if check.__module__.startswith("audit.checks.")]  # without plugins
    statistics = _questions({check.name: check for check in checks if check.statistic}, "statistic", _STATISTICS)
    rules = _questions({check.name: check for check in checks if check.rule}, "rule", _RULES)
    lines = [_HEAD.replace("{statistics}", statistics).replace("{rules}", rules)]
    group = None
    for check in checks:
        if check.group != group:
            group = check.group
            lines += [f"## {_GROUPS[group]}", ""]
        needs = f" Needs: {', '.join(check.needs)}." if check.needs else ""
        lines += [f"### `{check.name}`", "", f"{check.description} Severity `{check.severity}`.{needs}", ""]
        if check.options:
            lines += ["| option | default | |", "| --- | --- | --- |"]
            lines += [
                f"| `{key}` | {_default_text(option.default)} | {option.help} |"
                for key, option in check.options.items()
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _questions(checks: dict[str, type[Check]], method: str, order: Sequence[str]) -> str:
    """Return the rows of the checks that declare a `statistic`, or a `rule`."""
    named = {name for row in order for name in row.split()}
    rows = []
    for names in (*order, *(name for name in checks if name not in named)):
        check = checks[names.split()[0]]
        shown = ", ".join(f"`{name}`" for name in names.split())
        rows.append(f"| {shown} | {check.question} | {getattr(check, method)} | {check.assumes} |")
    return "\n".join(rows)


def _default_text(default: object) -> str:
    return "none" if default is None else f"`{default!r}`"


if __name__ == "__main__":
    import sys

    sys.stdout.write(checks_page())
