"""A trace as a tree, as a terminal shows it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from audit.class_names import name_class, show_class
from audit.lineage.trace import Trace, TracedStage
from audit.report.clean_text import clean
from audit.report.terminal_pictures import half_blocks
from audit.tables import OutputRow, PredictionRow, TokenRow

_BAR = 24
_MOST_CLASSES = 5
_MOST_OUTPUTS = 12


def trace_tree(trace: Trace, *, pictures: bool = False) -> RenderableType:
    """Show source → every stage → logits → prediction as a tree."""
    sample = trace.sample
    title = Text.assemble(
        ("sample ", "dim"), (str(sample["index"]), "bold"), ("  run ", "dim"), clean(trace.run.name or trace.run.run_id)
    )
    if sample["epoch"] or sample["visit"]:
        title.append(f"  epoch {sample['epoch']}, visit {sample['visit']}", "dim")
    tree = Tree(title, guide_style="dim")
    tree.add(_source(trace))
    for row in trace.stages:
        branch = tree.add(_stage(row))
        if pictures and row["changed"] and (picture := half_blocks(trace.preview(row["stage"]))) is not None:
            branch.add(picture)
    if sample["status"] == "failed":
        tree.add(Text.assemble((f"failed at {clean(sample['failed_stage'])}: ", "bold red"), clean(sample["error"])))
    if trace.prediction is not None:
        tree.add(_prediction(trace))
    for prediction in trace.other_predictions:
        tree.add(_verdict(prediction, named=True))
    for output in trace.outputs[:_MOST_OUTPUTS]:
        tree.add(_output(output))
    if len(trace.outputs) > _MOST_OUTPUTS:
        tree.add(Text(f"{len(trace.outputs) - _MOST_OUTPUTS} more outputs: audit trace --json", "dim"))
    return tree


def _output(row: OutputRow) -> Text:
    """Return what a model with several outputs returned at one port."""
    shape = "×".join(map(str, row["shape"])) or "one number"
    text = Text.assemble(("output  ", "dim"), (clean(row["port"]), "bold"), f"  {clean(row['dtype'])} {shape}")
    if row["min"] is not None:
        text.append(f"  [{row['min']:.4g}, {row['max']:.4g}] mean {row['mean']:.4g} std {row['std']:.4g}", "dim")
    if row["nonfinite"]:
        text.append(f"  {row['nonfinite']} non-finite", "bold red")
    if row["index"] is None:
        text.append("  of the whole call", "dim")
    elif row["axis"] is None:
        text.append("  entry at the sample's place", "dim")
    return text


def _source(trace: Trace) -> Text:
    sample = trace.sample
    text = Text.assemble(("source  ", "dim"), (clean(sample["source"]), "bold"))
    if sample["source_bytes"] is not None:
        text.append(f"  {sample['source_bytes']:,} bytes", "dim")
    if sample["source_digest"]:
        text.append(f"  sha256 {sample['source_digest'][:12]}…", "dim")
    _add_state(text, trace.source_state)
    for row, state in zip(trace.sources, trace.source_states, strict=True):
        if row["ordinal"] or row["source"] != sample["source"]:
            text.append(f"\n{clean(row['role'] or 'file'):<7} ", "dim")
            text.append(clean(row["source"]))
            _add_state(text, state)
    if sample["label"] is not None:
        text.append(f"\nlabel   {_class_text(sample['label'], sample['label_name'])}")
        if sample["batch_label"] not in (None, sample["label"]):
            name = name_class(trace.run.classes, sample["batch_label"])
            text.append(f"  {_class_text(sample['batch_label'], name)} in the batch", "bold red")
    return text


def _add_state(text: Text, state: str | None) -> None:
    if state is not None:
        styles = {"unchanged": "green", "changed": "bold red", "missing": "bold red", "not read": "yellow"}
        text.append(f"  {state}", styles[state])


def _class_text(number: int | None, name: str | None) -> str:
    if number is None:
        return "none"
    return f"{number} ({clean(name)})" if name is not None and str(number) != name else str(number)


def _stage(row: TracedStage) -> Text:
    shape = "×".join(str(length) for length in row["shape"]) if row["shape"] else "—"
    what = _describe_joint(row["target"]) or f"{row['kind']} {clean(row['mode'] or row['dtype'] or '')} {shape}"
    text = Text.assemble(
        (f"{row['path'] or row['stage']:<3} ", "dim"), (f"{clean(row['name'])}", "bold cyan"), f"  {what}"
    )
    if row["min"] is not None:
        text.append(f"  [{row['min']:.4g}, {row['max']:.4g}] mean {row['mean']:.4g} std {row['std']:.4g}", "dim")
    if row["nonfinite"]:
        text.append(f"  {row['nonfinite']} non-finite", "bold red")
    if row["params"]:
        drawn = ", ".join(f"{key}={_shorten(value)}" for key, value in json.loads(row["params"]).items())
        text.append(f"  drew {clean(drawn)}", "magenta")
    if not row["changed"]:
        text.append("  unchanged", "dim")
    if row["digest"] is not None:
        text.append(f"  {row['digest'][:8]}", "dim")
    return text


def _describe_joint(target: str | None) -> str | None:
    """Return a picture with its target in a few words; None for every other output."""
    if not target:
        return None
    said = json.loads(target)
    parts = [f"picture {said['height']}×{said['width']}"]
    if "boxes" in said:
        count = len(said["boxes"])
        shown = "; ".join(" ".join("—" if n is None else f"{n:.4g}" for n in box) for box in said["boxes"][:3])
        parts.append(f"{count} box{'es' * (count != 1)}" + (f" ({shown}{'; …' if count > 3 else ''})" if count else ""))
    if "mask" in said:
        parts.append(f"mask of {len(said['mask'])} classes")
    return ", ".join(parts)


def _shorten(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _prediction(trace: Trace) -> RenderableType:
    row = trace.prediction
    assert row is not None
    if trace.boxes:
        return _boxes(trace)
    if trace.tokens:
        return _tokens(trace)
    if trace.run.task == "segmentation" and row["head"] is None:
        return _mask(trace)
    head = _verdict(row, named=bool(trace.other_predictions))
    bars = Table.grid(padding=(0, 1))
    classes = trace.run.classes or []
    shown, logits = row["probabilities"] or [], row["logits"] or []
    order = sorted(range(len(shown)), key=lambda n: -(shown[n] if shown[n] == shown[n] else -1))[:_MOST_CLASSES]
    for number in order:
        name = show_class(classes, number)
        share = shown[number] if shown[number] == shown[number] else 0.0
        mark = "←" if number == (trace.sample["label"] if row["label"] is None else row["label"]) else ""
        logit = logits[number] if number < len(logits) else float("nan")
        bars.add_row(
            Text(clean(name)),
            Text("█" * round(share * _BAR), "cyan"),
            f"{share:.2%}",
            Text(f"logit {logit:.4g}", "dim"),
            mark,
        )
    return Group(head, bars)


def _tokens(trace: Trace) -> RenderableType:
    """Return the tokens of a sequence: how many are right, the perplexity, and those that were expected least."""
    row = trace.prediction
    assert row is not None
    graded = [token for token in trace.tokens if token["correct"] is not None]
    head = Text.assemble(("predicted  ", "dim"), (f"{len(trace.tokens)} tokens", "bold"))
    if graded:
        head.append(f"  {sum(bool(token['correct']) for token in graded)} of {len(graded)} right", "dim")
    if row["loss"] is not None:
        head.append(f"  loss {row['loss']:.4g}  perplexity {math.exp(min(row['loss'], 700.0)):.4g}", "dim")
    table = Table.grid(padding=(0, 1))
    for token in sorted(graded, key=lambda token: -(token["loss"] or 0.0))[:_MOST_CLASSES]:
        said = f"wanted {token['target']}, predicted {token['predicted']}"
        table.add_row(Text(f"position {token['position']}", "dim"), said, Text(_token_loss(token), "dim"))
    return Group(head, table)


def _token_loss(token: TokenRow) -> str:
    return f"loss {token['loss']:.4g}" if token["loss"] is not None else ""


def _mask(trace: Trace) -> RenderableType:
    """Return a predicted mask: its mean IoU, and the IoU of each class, the worst first."""
    row, scores = trace.prediction, trace.mask_scores
    assert row is not None
    head = Text.assemble(("predicted  ", "dim"), ("a mask", "bold"))
    head.append(
        f"  mean IoU {sum(one['iou'] for one in scores) / len(scores):.3f}" if scores else "  not graded", "dim"
    )
    if row["loss"] is not None:
        head.append(f"  loss {row['loss']:.4g}", "dim")
    table = Table.grid(padding=(0, 1))
    for one in sorted(scores, key=lambda one: one["iou"])[:_MOST_CLASSES]:
        table.add_row(Text(_class_text(one["class_"], one["class_name"])), Text(f"IoU {one['iou']:.3f}", "dim"))
    return Group(head, table)


def _boxes(trace: Trace) -> RenderableType:
    """Return the boxes of a detector: how many were found, and each with its outcome, the surest first."""
    targets = [row for row in trace.boxes if row["kind"] == "target"]
    predicted = [row for row in trace.boxes if row["kind"] == "predicted"]
    found = sum(row["outcome"] == "tp" for row in targets)
    head = Text.assemble(("predicted  ", "dim"), (f"{len(predicted)} boxes", "bold"))
    head.append(f"  {found} of {len(targets)} objects found", "dim")
    table = Table.grid(padding=(0, 1))
    shown = sorted(predicted, key=lambda row: -(row["score"] or 0.0))[:_MOST_CLASSES]
    for row in [*targets, *shown]:
        colour = {"tp": "green", "fn": "bold red", "fp": "red"}.get(row["outcome"] or "", "dim")
        score = f"{row['score']:.1%}" if row["score"] is not None else "target"
        place = f"{row['x1']:.0f}, {row['y1']:.0f} – {row['x2']:.0f}, {row['y2']:.0f}"
        name = clean(row["class_name"] or str(row["class_"]))
        points = ""
        if row["keypoints"] is not None:
            points = f"{sum(seen > 0 for seen in row['keypoints'][2::3])} keypoints"
            points += f", OKS {row['oks']:.3f}" if row["oks"] is not None else ""
        table.add_row(Text(name), score, Text(place, "dim"), Text(row["outcome"] or "", colour), Text(points, "dim"))
    return Group(head, table)


def _numbers_text(numbers: Sequence[float] | None) -> str:
    """Return the first numbers of a list."""
    known = list(numbers or ())
    return ", ".join(f"{number:.4g}" for number in known[:_MOST_CLASSES]) + (
        ", …" if len(known) > _MOST_CLASSES else ""
    )


def _verdict(row: PredictionRow, *, named: bool) -> Text:
    """Return one model's prediction in one line; with its name if there are several."""
    verdict = {True: ("correct", "bold green"), False: ("wrong", "bold red"), None: ("", "dim")}[row["correct"]]
    is_measured = row["predicted"] is None and row["output"] is not None
    shown = _numbers_text(row["output"]) if is_measured else _class_text(row["predicted"], row["predicted_name"])
    head = Text.assemble(("predicted  ", "dim"), (shown, "bold"), "  ")
    if is_measured and row["target"] is not None:
        head.append(f"target {_numbers_text(row['target'])}", "dim")
    head.append(*verdict)
    if row["confidence"] is not None:
        head.append(f"  confidence {row['confidence']:.1%}", "dim")
    if row["loss"] is not None:
        head.append(f"  loss {row['loss']:.4g}", "dim")
    if named:
        output = f" {clean(row['head'])}" if row["head"] is not None else ""
        head.append(f"  {clean(row['model'] or 'model')}{output}, call {row['call'] or 0}", "dim")
    if row["operations"]:
        head.append(f"  input changed by {clean(', '.join(row['operations']))}", "dim")
    return head
