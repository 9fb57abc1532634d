"""Label Studio: chosen samples as tasks, with the model's predictions as pre-annotations. No package is needed.

`tasks.json` is imported into a project, `label_config.xml` is the project's labelling interface, and `label-studio.env` has
the two settings with which Label Studio serves the pictures from where they are. Each task has up to two predictions: that of
the model, and the recorded label. A person accepts or corrects one of them; nothing here counts as annotated.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from audit import plainjson
from audit.integrations import run_facts as facts
from audit.integrations.labelled_pictures import (
    LabelledBox,
    LabelledPicture,
    class_names,
    common_root,
    read_labelled_pictures,
)
from audit.records import Run
from audit.store.read.reader import Reader

_FACTS = ("index", "epoch", "visit", "split", "source", "correct", "loss", "confidence", "tags", "notes")


def export(reader: Reader, run: Run, folder: Path, samples: list[dict[str, Any]]) -> list[Path]:
    """Write the tasks, the labelling interface, and the settings that serve the pictures."""
    pictures = read_labelled_pictures(reader, run, samples)
    root = common_root(pictures)
    detection = any(picture.boxes for picture in pictures)
    files = {
        "tasks.json": plainjson.dumps([_task(run, picture, root, detection) for picture in pictures], indent=1) + "\n",
        "label_config.xml": _label_config(class_names(run, pictures), detection),
        "label-studio.env": "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true\n"
        f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={shlex.quote(root)}\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return facts.WrittenFiles((folder / name for name in files), left_out=len(samples) - len(pictures))


def _task(run: Run, picture: LabelledPicture, root: str, detection: bool) -> dict[str, Any]:
    known = {name: plainjson.as_plain_json(picture.row[name]) for name in _FACTS if picture.row[name] is not None}
    return {
        "data": {"image": _address(picture, root), "label": picture.label or ""},
        "meta": {"audit.run_id": run.run_id, **known},
        "predictions": _box_predictions(run, picture) if detection else _class_predictions(run, picture),
    }


def _address(picture: LabelledPicture, root: str) -> str:
    if not picture.is_file:
        return picture.place
    return "/data/local-files/?d=" + quote(os.path.relpath(picture.place, root))


def _class_predictions(run: Run, picture: LabelledPicture) -> list[dict[str, Any]]:
    found = []
    if picture.predicted_name is not None:
        score = facts.finite_or_none(picture.row["confidence"])
        found.append(_prediction(_model_name(run), [_choice(picture.predicted_name)], score))
    if picture.label is not None:
        found.append(_prediction("recorded label", [_choice(picture.label)], None))
    return found


def _box_predictions(run: Run, picture: LabelledPicture) -> list[dict[str, Any]]:
    found = []
    for version, boxes in (
        (_model_name(run), [box for box in picture.boxes if box.score is not None]),
        ("recorded label", [box for box in picture.boxes if box.score is None]),
    ):
        if boxes:
            scores = [box.score for box in boxes if facts.finite_or_none(box.score) is not None]
            mean = sum(map(float, scores)) / len(scores) if scores else None  # type: ignore[arg-type]
            found.append(_prediction(version, [_rectangle(box, picture) for box in boxes], mean))
    return found


def _model_name(run: Run) -> str:
    return run.arch or (os.path.basename(run.model) if run.model else "model")


def _prediction(version: str, results: list[dict[str, Any]], score: float | None) -> dict[str, Any]:
    numbered = [{"id": f"audit-{place}", **result} for place, result in enumerate(results)]
    return {"model_version": version, "result": numbered, **({"score": score} if score is not None else {})}


def _choice(name: str) -> dict[str, Any]:
    return {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [name]}}


def _rectangle(box: LabelledBox, picture: LabelledPicture) -> dict[str, Any]:
    """Return one box; Label Studio measures in percent of the picture's width and height."""
    x1, x2 = (100 * min(max(x, 0), picture.width) / picture.width for x in (box.x1, box.x2))
    y1, y2 = (100 * min(max(y, 0), picture.height) / picture.height for y in (box.y1, box.y2))
    score = facts.finite_or_none(box.score)
    return {
        "from_name": "box",
        "to_name": "image",
        "type": "rectanglelabels",
        "original_width": picture.width,
        "original_height": picture.height,
        "image_rotation": 0,
        "value": {
            "x": x1,
            "y": y1,
            "width": x2 - x1,
            "height": y2 - y1,
            "rotation": 0,
            "rectanglelabels": [box.label],
        },
        **({"score": score} if score is not None else {}),
    }


def _label_config(names: list[str], detection: bool) -> str:
    """Return the labelling interface: one choice for each picture, or rectangles."""
    control, item, name = ("RectangleLabels", "Label", "box") if detection else ("Choices", "Choice", "class")
    choose = "" if detection else ' choice="single"'
    items = "".join(f"    <{item} value={quoteattr(label)}/>\n" for label in names)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        '  <Header value="Recorded label: $label"/>\n'
        f'  <{control} name="{name}" toName="image"{choose}>\n{items}  </{control}>\n</View>\n'
    )
