"""CVAT: chosen samples as "CVAT for images 1.1", with labels and predictions as tags or boxes. No package is needed.

`annotations.xml` is uploaded to a task that holds the pictures; `images.txt` lists their paths, one on each line, to create
the task with. Every tag and box has the attribute `origin` (`recorded` or `predicted`); predictions have `confidence` too.
Pictures that are not local files are left out, because CVAT matches annotations to pictures by file name; so is a file whose
name has a line break.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from audit.integrations import run_facts as facts
from audit.integrations.labelled_pictures import LabelledPicture, class_names, common_root, read_labelled_pictures
from audit.records import Run
from audit.store.read.reader import Reader

_ORIGINS = ("recorded", "predicted")


def export(reader: Reader, run: Run, folder: Path, samples: list[dict[str, Any]]) -> list[Path]:
    """Write the annotations and the list of pictures."""
    found = read_labelled_pictures(reader, run, samples)
    pictures = [picture for picture in found if picture.is_file and len(picture.place.splitlines()) == 1]
    root = common_root(pictures)
    document = Xml.Element("annotations")
    _text(document, "version", "1.1")
    document.append(_meta(run, pictures))
    for number, picture in enumerate(pictures):
        document.append(_image(number, picture, root))
    Xml.indent(document)
    annotations, listed = folder / "annotations.xml", folder / "images.txt"
    Xml.ElementTree(document).write(annotations, encoding="utf-8", xml_declaration=True)
    listed.write_text("".join(f"{picture.place}\n" for picture in pictures), encoding="utf-8")
    return facts.WrittenFiles([annotations, listed], left_out=len(samples) - len(pictures))


def _meta(run: Run, pictures: list[LabelledPicture]) -> Xml.Element:
    meta = Xml.Element("meta")
    task = Xml.SubElement(meta, "task")
    _text(task, "name", _replace_control_characters(run.name or run.run_id))
    _text(task, "size", str(len(pictures)))
    _text(task, "mode", "annotation")
    labels = Xml.SubElement(task, "labels")
    kind = "rectangle" if any(picture.boxes for picture in pictures) else "tag"
    for name in class_names(run, pictures):
        label = Xml.SubElement(labels, "label")
        _text(label, "name", _replace_control_characters(name))
        _text(label, "type", kind)
        attributes = Xml.SubElement(label, "attributes")
        _declare(attributes, "origin", "select", "\n".join(_ORIGINS), "recorded")
        _declare(attributes, "confidence", "text", "", "")
    return meta


def _declare(parent: Xml.Element, name: str, kind: str, values: str, default: str) -> None:
    attribute = Xml.SubElement(parent, "attribute")
    _text(attribute, "name", name)
    _text(attribute, "mutable", "False")
    _text(attribute, "input_type", kind)
    _text(attribute, "default_value", default)
    _text(attribute, "values", values)


def _image(number: int, picture: LabelledPicture, root: str) -> Xml.Element:
    name = _replace_control_characters(os.path.relpath(picture.place, root))
    size = {"width": str(picture.width), "height": str(picture.height)}
    image = Xml.Element("image", {"id": str(number), "name": name, **size})
    if picture.boxes:
        for box in picture.boxes:
            corners = (("xtl", box.x1), ("ytl", box.y1), ("xbr", box.x2), ("ybr", box.y2))
            shape = Xml.SubElement(image, "box", {"label": _replace_control_characters(box.label)})
            shape.attrib |= {side: f"{value:.2f}" for side, value in corners}
            shape.attrib |= {"occluded": "0", "z_order": "0"}
            _origin(shape, "recorded" if box.score is None else "predicted", box.score)
        return image
    for label, origin, score in (
        (picture.label, "recorded", None),
        (picture.predicted_name, "predicted", picture.row["confidence"]),
    ):
        if label is not None:
            _origin(Xml.SubElement(image, "tag", {"label": _replace_control_characters(label)}), origin, score)
    return image


def _origin(shape: Xml.Element, origin: str, score: float | None) -> None:
    shape.set("source", "manual" if origin == "recorded" else "auto")
    _text(shape, "attribute", origin, name="origin")
    if facts.finite_or_none(score) is not None:
        _text(shape, "attribute", f"{score:.4f}", name="confidence")


def _text(parent: Xml.Element, tag: str, text: str, **attributes: str) -> None:
    Xml.SubElement(parent, tag, attributes).text = text


def _replace_control_characters(text: str) -> str:
    """Return the text without the control characters that XML 1.0 cannot hold."""
    return "".join(c if c >= " " or c in "\t\n" else "�" for c in text)
