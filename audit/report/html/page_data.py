"""A run or a trace as plain data, from which HTML pages, JSON, reports and notebooks are rendered.

Nothing here knows how it will be shown, and nothing here asks the store for more than the functions of
`lineage` answer.
"""

from __future__ import annotations

import base64
import io
import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from audit.class_names import show_class
from audit.columns import columns_of
from audit.lineage.queries.browsing import summaries
from audit.lineage.queries.overview import ConfusionCell, RunCounts, calibration_error
from audit.lineage.queries.task_results import TaskResults
from audit.lineage.stage_overlays import StageOverlay
from audit.lineage.trace import Trace, TracedStage
from audit.picture_formats import open_picture
from audit.plainjson import JsonObject
from audit.records import Run
from audit.report.html.confusion import ClassOrder, cell_condition, confusion_view, predicted_name
from audit.report.html.previews import excerpt
from audit.tables import StageOutputRow, VisitRow
from audit.values import Preview
from audit.values.overlay import mask_layer

if TYPE_CHECKING:
    from PIL import Image

_LISTED_CONFUSIONS = 60
_LISTED_CLASSES = 100
_BARS = 8
_VISIT = columns_of(VisitRow)


def run_view(run: Run) -> JsonObject:
    """Return a run's row with what its pages show on top."""
    row = run.as_json()
    row["title"] = run.name or run.run_id
    row["wrong"] = run.wrong if run.graded else None
    row["recipe"] = None
    return row


def counts_view(counts: RunCounts, order: ClassOrder = "label", *, task: TaskResults | None = None) -> JsonObject:
    """Return the counts of one epoch, with the confusion matrix in the order that is asked for, and the task's results."""
    names = {number: name or "(no name)" for number, name in counts["classes"].items()}
    wrong = [cell for cell in counts["confusion"] if cell["label"] != cell["predicted"]]
    wrong.sort(key=lambda cell: -cell["count"])
    per_class = sorted(
        counts["per_class"], key=lambda row: (row["recall"] if row["recall"] is not None else 2.0, row["label"])
    )
    return {
        **{key: value for key, value in counts.items() if key != "confusion"},
        "classes": len(names),
        "calibration_error": calibration_error(counts["confidence"]),
        **confusion_view(counts["confusion"], names, order),
        "confusions": [_name_confusion(cell, names) for cell in wrong[:_LISTED_CONFUSIONS]],
        "more_confusions": max(0, len(wrong) - _LISTED_CONFUSIONS),
        "per_class": [
            {
                **row,
                "name": names.get(row["label"], str(row["label"])),
                "where": f"label = {row['label']} AND NOT correct",
            }
            for row in per_class[:_LISTED_CLASSES]
        ],
        "more_classes": max(0, len(per_class) - _LISTED_CLASSES),
        "task": asdict(task) if task is not None else None,
    }


class NamedConfusion(ConfusionCell):
    """A cell of the confusion matrix with the names of its classes, and the SQL that picks its samples."""

    label_name: str
    predicted_name: str
    where: str


def _name_confusion(cell: ConfusionCell, names: dict[int, str]) -> NamedConfusion:
    label, predicted = cell["label"], cell["predicted"]
    return NamedConfusion(
        **cell,
        label_name=names.get(label, str(label)),
        predicted_name=predicted_name(predicted, names),
        where=cell_condition(label, predicted),
    )


Picture = Callable[[int], str]


def trace_view(trace: Trace, *, picture: Picture | None = None) -> JsonObject:
    """Return one visit from its source to its prediction. `picture` gives the address of a stage's preview picture."""
    view = trace.as_json()
    before: _ShownValue | None = None
    overlays = {overlay.stage: overlay for overlay in trace.overlays}
    for stage, row in zip(view["stages"], trace.stages, strict=True):
        preview = trace.preview(row["stage"])
        stage.update({name: value for name, value in row.items() if name not in stage and name not in _VISIT})
        stage["drew"] = _drawn_values(stage["params"])
        stage.update(_preview(preview, row["stage"], picture))
        stage["overlay"] = overlay_view(overlays.get(row["stage"]))
        stage["difference"] = _difference(before, (row, preview))
        stage["moved"] = _changes(before[0], row) if before else []
        before = (row, preview)
    view["run"] = run_view(trace.run)
    view["bars"] = _bars(trace)
    view["sequence"] = _sequence(trace)
    key = (view["epoch"], view["index"], view["visit"])
    view["said"] = summaries(trace.reader, trace.run, [key]).get(key)
    if trace.prediction is not None and view["label"] is None:
        view["label"], view["label_name"] = trace.prediction["label"], trace.prediction["label_name"]
    view["command"] = _command(trace)
    view["epochs"] = None
    return view


#: More boxes than this hide the picture; the table of boxes has all.
_DRAWN_BOXES = 200


def overlay_view(found: StageOverlay | None) -> JsonObject | None:
    """Return the boxes and masks over a stage's picture as plain data, the masks as one transparent picture."""
    if found is None:
        return None
    boxes = [
        {
            **{name: round(getattr(box, name), 3) for name in ("x1", "y1", "x2", "y2")},
            "kind": box.kind,
            "name": box.class_name if box.class_name is not None else str(box.class_number),
            "score": box.score,
            "outcome": box.outcome,
            "colour": "off" if box.outcome in ("fn", "fp") else box.kind,
            "points": _visible_points(box.keypoints),
        }
        for box in found.boxes
        if math.isfinite(box.x1 + box.y1 + box.x2 + box.y2) and box.x2 > box.x1 and box.y2 > box.y1
    ]
    boxes.sort(key=lambda box: (box["kind"] != "target", -(box["score"] or 0.0)))
    masks = {one.kind: one.mask for one in found.masks}
    layer = None
    if masks:
        out = io.BytesIO()
        mask_layer(masks.get("target"), masks.get("predicted")).save(out, "PNG", optimize=True)
        layer = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return {"width": found.width, "height": found.height, "boxes": boxes[:_DRAWN_BOXES], "mask": layer}


def _visible_points(keypoints: Sequence[float] | None) -> list[tuple[float, float]]:
    """Return the places of an object's keypoints that are marked, of those (x, y, visibility) that it has."""
    given = list(keypoints or ())
    places = zip(given[::3], given[1::3], given[2::3], strict=False)
    return [(round(x, 3), round(y, 3)) for x, y, seen in places if seen > 0 and math.isfinite(x + y)]


class ShownPreview(TypedDict):
    """How a page shows a stage's output: a picture, a text, or nothing."""

    shows: Literal["nothing", "picture", "text"]
    picture: str | None
    text: str | None


def _preview(preview: Preview | None, stage: int, picture: Picture | None) -> ShownPreview:
    if preview is None:
        return {"shows": "nothing", "picture": None, "text": None}
    if preview.media_type.startswith("image/"):
        return {"shows": "picture", "picture": picture(stage) if picture else None, "text": None}
    return {"shows": "text", "picture": None, "text": excerpt(preview)}


def _drawn_values(params: Any) -> list[dict[str, str]]:
    if not isinstance(params, dict):
        return []
    return [{"name": str(name), "value": _shorten(value)} for name, value in params.items()][:12]


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(_round(value), ensure_ascii=False)
    return text if len(text) <= 48 else text[:47] + "…"


def _round(value: Any) -> Any:
    """Return the value with four digits for every number; the JSON has the exact numbers."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_round(item) for item in value]
    return {name: _round(item) for name, item in value.items()} if isinstance(value, dict) else value


#: A stage's output, and what was stored of it to show.
_ShownValue = tuple[TracedStage, Preview | None]


def _difference(before: _ShownValue | None, now: _ShownValue) -> float | None:
    """Return the difference of the small pictures before and after: 0 is equal, 1 is black against white.

    None where they cannot be compared: a preview of values that have no black and white of their own is stretched.
    """
    if before is None or before[1] is None or now[1] is None:
        return None
    if not (before[1].media_type.startswith("image/") and now[1].media_type.startswith("image/")):
        return None
    if before[0]["digest"] == now[0]["digest"]:
        return 0.0
    scales = _levels(before[0]), _levels(now[0])
    if scales[0] is None or scales[1] is None:
        return None
    from PIL import Image, ImageChops, ImageStat

    try:
        with open_picture(before[1].data) as x, open_picture(now[1].data) as y:
            first = _undo_stretch(x.convert("L").resize((32, 32)), *scales[0])
            second = _undo_stretch(y.convert("L").resize((32, 32)), *scales[1])
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return float(ImageStat.Stat(ImageChops.difference(first, second)).mean[0]) / 255


def _levels(row: StageOutputRow) -> tuple[float, float] | None:
    """Return the levels, from 0 to 255, of what a stage's preview shows as black and as white; None if it has none."""
    least, greatest, kind = row["min"], row["max"], row["dtype"] or ""
    if kind in ("uint8", "bool") or least is None or greatest is None:
        return 0.0, 255.0
    if least < 0 or not 0.05 < greatest <= 1:
        return None if kind else (0.0, 255.0)
    return 255.0 * least, 255.0 * greatest


def _undo_stretch(picture: Image.Image, black: float, white: float) -> Image.Image:
    levels = [round(black + level * (white - black) / 255) for level in range(256)]
    return picture.point(levels * len(picture.getbands()))


def true_picture(row: StageOutputRow, preview: Preview | None) -> Image.Image | None:
    """Return the picture of a preview of values between 0 and 1, as bright as they are; None for all other previews.

    A preview of floats is stretched from the least to the greatest, and would look brighter than the same picture before it was scaled.
    """
    scale = _levels(row)
    if preview is None or not preview.media_type.startswith("image/") or scale in (None, (0.0, 255.0)):
        return None
    from PIL import Image

    assert scale is not None
    try:
        with open_picture(preview.data) as opened:
            return _undo_stretch(opened.convert("L" if opened.mode == "L" else "RGB"), *scale)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None


def _changes(before: TracedStage, stage: TracedStage) -> list[str]:
    """Return what changed in kind, type, mode or shape, in words."""
    pairs = [("", before["kind"], stage["kind"]), ("", before["dtype"], stage["dtype"])]
    if stage["kind"] == before["kind"]:
        # Modes of two kinds cannot be compared.
        pairs.append(("mode ", before["mode"], stage["mode"]))
    words = [f"{title}{old} → {new}" for title, old, new in pairs if old and new and old != new]
    if stage["shape"] != before["shape"] and stage["shape"] and before["shape"]:
        words.append("×".join(map(str, before["shape"])) + " → " + "×".join(map(str, stage["shape"])))
    return words


class ProbabilityBar(TypedDict):
    """One class of a prediction."""

    number: int
    name: str
    share: float | None
    logit: float | None
    is_label: bool
    is_predicted: bool


#: Tokens beyond these are in the table `tokens`.
_TOKENS = 2_000


def _sequence(trace: Trace) -> JsonObject | None:
    """Return the tokens of a sequence with their losses, and the counts and perplexity of all; None if it has none."""
    if not trace.tokens:
        return None
    losses = [row["loss"] for row in trace.tokens if row["loss"] is not None and math.isfinite(row["loss"])]
    graded = [row for row in trace.tokens if row["correct"] is not None]
    mean = sum(losses) / len(losses) if losses else None
    return {
        "tokens": [{**row, "heat": _heat(row["loss"])} for row in trace.tokens[:_TOKENS]],
        "more": max(0, len(trace.tokens) - _TOKENS),
        "graded": len(graded),
        "right": sum(bool(row["correct"]) for row in graded),
        "loss": mean,
        "perplexity": math.exp(min(mean, 700.0)) if mean is not None else None,
    }


def _heat(loss: float | None) -> int:
    """Return a colour from 0 to 8: a loss of 4 or more, a probability below two percent, is the hottest."""
    return 0 if loss is None or not math.isfinite(loss) else max(0, min(8, 2 * int(loss)))


def _bars(trace: Trace) -> list[ProbabilityBar]:
    """Return the likeliest classes, and always the label's class; of several labels, those of the highest probabilities."""
    if trace.prediction is None:
        return []
    shares = trace.prediction["probabilities"] or []
    logits = trace.prediction["logits"] or []
    classes = trace.run.classes or []
    order = sorted(range(len(shares)), key=lambda n: -shares[n] if math.isfinite(shares[n]) else 2.0)
    shown = order[:_BARS]
    label = trace.prediction["label"] if trace.prediction["label"] is not None else trace.sample["label"]
    labels, predicted = {label}, {trace.prediction["predicted"]}
    if trace.run.task == "multilabel":
        labels = {n for n, wanted in enumerate(trace.prediction["target"] or ()) if wanted > 0.5}
        predicted = {n for n, share in enumerate(shares) if share > 0.5}
    shown += [n for n in order if n in labels and n not in shown][:_BARS]
    return [
        {
            "number": n,
            "name": show_class(classes, n),
            "share": shares[n] if math.isfinite(shares[n]) else None,
            "logit": logits[n] if n < len(logits) and math.isfinite(logits[n]) else None,
            "is_label": n in labels,
            "is_predicted": n in predicted,
        }
        for n in shown
    ]


def _command(trace: Trace) -> str:
    sample = trace.sample
    words = ["audit", "trace", trace.run.run_id, str(sample["index"])]
    if sample["epoch"]:
        words += ["--epoch", str(sample["epoch"])]
    if sample["visit"]:
        words += ["--visit", str(sample["visit"])]
    return shlex.join([*words, "--store", trace.reader.location])
