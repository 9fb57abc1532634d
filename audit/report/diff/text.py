"""A diff for a terminal: changes of the data, the pipeline and the predictions.

Everything that came from a file name, a label or an error is shown as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from audit.lineage.diff.diff import ChangedSample, Diff
from audit.lineage.diff.first_divergence import Divergence
from audit.lineage.diff.flips import FlippedPrediction, Flips
from audit.report.clean_text import clean

_MOST = 10
#: The first line of a diff without a matched sample.
NOTHING_COMPARED = "Nothing was compared: no sample of one run is in the other, by source, content or name."

_KINDS = (("regressions", "bold red"), ("fixes", "bold green"), ("other_changes", "yellow"))


def diff_text(diff: Diff, rows: int = _MOST) -> RenderableType:
    """Return the whole diff, with at most `rows` of each list."""
    first = [] if diff.matched else [Text(NOTHING_COMPARED, "bold red"), Text()]
    parts: list[RenderableType] = [*first, _runs(diff), Text(), _data(diff), *_lists(diff, rows)]
    if diff.matched:
        parts += [Text(), *_stages(diff)]
    if has_predictions(diff):
        parts += [Text(), *_predictions(diff, rows)]
    parts += [Text(clean(f"note: {note}"), "yellow") for note in diff.notes]
    return Group(*parts)


def has_predictions(diff: Diff) -> bool:
    """Return whether there are predictions to compare: graded in both runs, or lost to a failure."""
    flips = diff.flips
    return bool(flips.graded or (flips.predictions_a and flips.predictions_b))


def p_text(value: float | None) -> str:
    """Return a probability as text."""
    if value is None:
        return "—"
    return f"{value:.3g}" if value >= 1e-4 else "< 0.0001"


def accuracy_name(flips: Flips) -> str:
    """Return what the accuracy of the matched samples is called: with its split, if it is of one."""
    return "accuracy" + (f" of {clean(flips.accuracy_split)}" if flips.accuracy_split is not None else "")


def percent(value: float | None) -> str:
    """Return a share as a percentage, or a dash for None."""
    return f"{value:.2%}" if value is not None else "—"


def _runs(diff: Diff) -> Table:
    table = Table.grid(padding=(0, 2))
    accuracies = (diff.flips.run_accuracy_a, diff.flips.run_accuracy_b)
    for letter, side, accuracy in zip("ab", (diff.a, diff.b), accuracies, strict=True):
        table.add_row(
            Text(letter, "bold"),
            Text(side.run.run_id),
            Text(clean(side.run.name or "")),
            Text(f"{side.run.samples:,} samples", "dim"),
            Text(f"accuracy {percent(accuracy)}" if accuracy is not None else "no predictions", "dim"),
        )
    return table


#: The possible changes of the data, in the order of the report.
DATA_CHANGES = (
    *("added", "removed", "renamed", "reencoded", "source_changed", "label_changed"),
    *("newly_failed", "no_longer_failed", "failed_in_both"),
)


def _data(diff: Diff) -> Text:
    counts = diff.counts
    text = Text.assemble(("data      ", "dim"), (f"{diff.matched:,} samples in both", "bold"))
    for name in DATA_CHANGES:
        if counts[name]:
            colour = "red" if name in ("removed", "newly_failed") else "yellow"
            text.append(f", {counts[name]:,} {name.replace('_', ' ')}", colour)
    return text


def _lists(diff: Diff, rows: int) -> list[RenderableType]:
    shown: list[RenderableType] = []
    for name, lines in list_changed_data(diff, rows):
        title = (f"  {name.replace('_', ' '):<18}", "dim")
        shown += [Text.assemble(title, clean(line)) for line in lines]
        if diff.counts[name] > rows:
            shown.append(Text(f"  … and {diff.counts[name] - rows:,} more {name.replace('_', ' ')}", "dim"))
    return shown


#: The text of one row of each list of changed samples.
_CHANGES: dict[str, Callable[[ChangedSample], str]] = {
    "renamed": lambda row: f"{row['source']} → {row['source_b']}",
    "reencoded": lambda row: f"{row['source']} → {row['source_b']}",
    "source_changed": lambda row: f"{row['source_b']} (index {row['index_b']})",
    "label_changed": lambda row: f"{row['source_b']}: {_label_change(row)}",
    "newly_failed": lambda row: f"{row['source_b']} (index {row['index_b']})",
}


def list_changed_data(diff: Diff, rows: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each list of changed data, and a line for each of its first rows."""
    for name, found in (("added", diff.added), ("removed", diff.removed)):
        yield name, [f"{row['source']} (index {row['index']})" for row in found[:rows]]
    for name, describe in _CHANGES.items():
        yield name, [describe(row) for row in diff.lists[name][:rows]]


def _label_change(row: ChangedSample) -> str:
    a = row["label_a"] if row["label_name_a"] is None else row["label_name_a"]
    b = row["label_b"] if row["label_name_b"] is None else row["label_name_b"]
    return f"{a} → {b}"


def _stages(diff: Diff) -> list[RenderableType]:
    head = Text.assemble(("pipeline  ", "dim"))
    failures = f", {diff.same_failure:,} fail in both with the same error" if diff.same_failure else ""
    if not diff.divergent:
        which = "every sample" if diff.identical == diff.matched else _count_samples(diff.identical)
        head.append(f"every stage gave the same output for {which}", "green")
        head.append(failures, "red")
        return [head]
    head.append(f"{diff.divergent:,} of {diff.matched:,} samples differ", "bold")
    head.append(f", {diff.identical:,} are identical throughout", "dim")
    head.append(failures, "red")
    shown: list[RenderableType] = [head, *(_divergence(group, diff.matched) for group in diff.divergences)]
    if also := also_changed(diff):
        shown.append(Text(f"  also described differently: {clean(', '.join(also))}", "dim"))
    return shown


def _count_samples(count: int) -> str:
    return f"{count:,} sample{'' if count == 1 else 's'}"


def also_changed(diff: Diff) -> list[str]:
    """Return the stages whose description differs but which are not the first divergence of any sample."""
    known = {group.step.number for group in diff.divergences}
    return [
        f"{stage.path} {stage.name} ({step.change})"
        for step in diff.steps
        if step.change != "same" and step.number not in known and (stage := step.a or step.b) is not None
    ]


def stage_name(group: Divergence) -> str:
    """Return a stage with its path, as people refer to it."""
    stage = group.step.a or group.step.b
    return f"{stage.path} {stage.name}" if stage else group.step.name


def size_text(group: Divergence) -> str:
    """Return the largest and mean difference, or other known facts."""
    size = group.difference
    if size is None:
        return ""
    if size.max is not None:
        over = f"over {size.samples} sample{'' if size.samples == 1 else 's'}"
        return f"largest difference {size.max:.4g}, mean {size.mean or 0:.4g} {over}"
    if size.a and size.b and size.a != size.b:
        return f"{size.a} → {size.b}"
    return ""


def _divergence(group: Divergence, matched: int) -> Text:
    text = Text.assemble(
        f"  {group.count:,} of {matched:,} first differ at stage ",
        (clean(stage_name(group)), "bold cyan"),
        ": ",
        (clean(f"{group.reason}: {group.detail}" if group.reason != "parameters" else group.detail), "bold"),
    )
    if size := size_text(group):
        text.append(f"\n      {clean(size)}")
    example = group.example
    text.append(f"\n      e.g. sample {example['index_b']}, {clean(example['source_b'])}", "dim")
    if example["drawn_a"] is not None or example["drawn_b"] is not None:
        text.append(clean(f", drew {example['drawn_a']} → {example['drawn_b']}")[:200], "magenta")
    return text


def _predictions(diff: Diff, rows: int) -> list[RenderableType]:
    flips = diff.flips
    head = Text.assemble(("model     ", "dim"), f"{accuracy_name(flips)} {percent(flips.accuracy_a)} → ")
    worse = (flips.accuracy_b or 0) < (flips.accuracy_a or 0)
    head.append(percent(flips.accuracy_b), "bold red" if worse else "bold green")
    if flips.mcnemar_p is not None:
        head.append(f"  McNemar p {p_text(flips.mcnemar_p)}", "dim")
    shown: list[RenderableType] = [head]
    for kind, colour in _KINDS:
        total = flips.total(kind)
        if not total:
            continue
        causes = ", ".join(f"{cause} {count:,}" for cause, count in flips.counts[kind].items() if count)
        shown.append(Text.assemble(("  ", ""), (f"{total:,} {kind.replace('_', ' ')}", colour), f"  ({causes})"))
        shown += [Text(f"      {clean(flip_text(row))}") for row in flips.lists[kind][:rows]]
        if total > rows:
            shown.append(Text(f"      … and {total - rows:,} more", "dim"))
    if len(shown) == 1:
        shown.append(Text("  no prediction flipped", "green"))
    return [*shown, *_classes(diff, rows)]


def flip_text(row: FlippedPrediction) -> str:
    """Return one flip in a line: file, label, both predictions, cause."""
    before, now = predicted_labels(row)
    return f"{row['source_b']}  label {label_text(row)}  {before} → {now}  {row['cause']}"


def label_text(row: FlippedPrediction) -> str:
    """Return the label of a flip, by name if it has one."""
    return str(row["label_name"] if row["label_name"] is not None else row["label"])


def predicted_labels(row: FlippedPrediction) -> tuple[str, str]:
    """Return what both sides predicted, by name where it has one; or that the sample failed."""
    return (
        _predicted_label(row["predicted_a"], row["predicted_name_a"], row["failed_a"]),
        _predicted_label(row["predicted_b"], row["predicted_name_b"], row["failed_b"]),
    )


def _predicted_label(predicted: int | None, name: str | None, failed: bool) -> str:
    if predicted is None and failed:
        return "fails"
    return str(predicted if name is None else name)


def _classes(diff: Diff, rows: int) -> list[RenderableType]:
    changed = [row for row in diff.flips.per_class if row["accuracy_a"] != row["accuracy_b"]]
    if not changed:
        return []
    changed.sort(key=lambda row: (row["accuracy_b"] or 0) - (row["accuracy_a"] or 0))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("class", "accuracy a", "accuracy b", "regressions", "fixes"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for row in changed[:rows]:
        cells = (percent(row["accuracy_a"]), percent(row["accuracy_b"]), f"{row['regressions']:,}", f"{row['fixes']:,}")
        table.add_row(Text(clean(row["class"])), *cells)
    return [table]
