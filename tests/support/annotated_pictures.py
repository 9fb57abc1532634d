"""Small real pictures with boxes and masks drawn by hand, in the formats that annotated datasets have.

The pictures are scikit-learn's two photographs, cut into pieces and made smaller. A piece has known objects: the boxes are
places that were looked up by eye in the photographs, with classes 1 (flower, roof) and 2 (leaf, sky).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

#: (photograph, crop of it, objects as class, x1, y1, x2, y2 in the piece of 96 × 64 pixels).
PIECES = [
    ("flower.jpg", (120, 0, 600, 320), [(1, 10.0, 6.0, 78.0, 60.0)]),
    ("flower.jpg", (0, 107, 480, 427), [(1, 34.0, 0.0, 95.0, 44.0), (2, 2.0, 30.0, 30.0, 62.0)]),
    ("china.jpg", (0, 0, 480, 320), [(1, 20.0, 24.0, 88.0, 52.0), (2, 0.0, 0.0, 96.0, 20.0)]),
    ("china.jpg", (160, 107, 640, 427), []),
]
CLASSES = ["__background__", "thing", "stuff"]
SIZE = (96, 64)


def pieces() -> list[Image.Image]:
    """Return the pictures."""
    import sklearn.datasets

    folder = Path(sklearn.datasets.__file__).parent / "images"
    return [Image.open(folder / name).convert("RGB").crop(box).resize(SIZE) for name, box, _ in PIECES]


def save_pieces(folder: Path) -> list[str]:
    """Write the pictures into a folder and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"piece{number}.png" for number in range(len(PIECES))]
    for name, picture in zip(names, pieces(), strict=True):
        picture.save(folder / name)
    return names


def make_coco(folder: Path) -> Path:
    """Write the pictures and COCO's file of annotations; return the file."""
    names = save_pieces(folder / "images")
    annotations = [
        {"id": number, "image_id": picture + 10, "category_id": kind, "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0}
        for number, (picture, (kind, x1, y1, x2, y2)) in enumerate(
            ((picture, found) for picture, (_, _, objects) in enumerate(PIECES) for found in objects), 1
        )
    ]
    content = {
        "images": [{"id": number + 10, "file_name": name} for number, name in enumerate(names)],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "thing"}, {"id": 2, "name": "stuff"}],
    }
    path = folder / "annotations.json"
    path.write_text(json.dumps(content))
    return path


def make_voc(folder: Path) -> Path:
    """Write the pictures and VOC's annotations; return the folder."""
    (folder / "Annotations").mkdir(parents=True)
    for name, (_, _, objects) in zip(save_pieces(folder / "JPEGImages"), PIECES, strict=True):
        inside = "".join(
            f"<object><name>{CLASSES[kind]}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
            f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
            for kind, x1, y1, x2, y2 in objects
        )
        text = f"<annotation><filename>{name}</filename>{inside}</annotation>"
        (folder / "Annotations" / f"{Path(name).stem}.xml").write_text(text)
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "val.txt").write_text("piece2\npiece0\n")
    return folder


def make_yolo(folder: Path) -> Path:
    """Write the pictures and YOLO's labels; return data.yaml."""
    (folder / "labels" / "val").mkdir(parents=True)
    for name, (_, _, objects) in zip(save_pieces(folder / "images" / "val"), PIECES, strict=True):
        lines = [
            f"{kind - 1} {(x1 + x2) / 2 / SIZE[0]} {(y1 + y2) / 2 / SIZE[1]} {(x2 - x1) / SIZE[0]} {(y2 - y1) / SIZE[1]}\n"
            for kind, x1, y1, x2, y2 in objects
        ]
        if lines:
            (folder / "labels" / "val" / f"{Path(name).stem}.txt").write_text("".join(lines))
    path = folder / "data.yaml"
    path.write_text("path: .\nval: images/val\nnames: {0: thing, 1: stuff}\n")
    return path


def mask_of(objects: list[tuple[int, float, float, float, float]]) -> np.ndarray:
    """Return the mask in which each object fills its box."""
    mask = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    for kind, x1, y1, x2, y2 in objects:
        mask[int(y1) : int(y2), int(x1) : int(x2)] = kind
    return mask


def make_masks(folder: Path) -> Path:
    """Write the pictures and a mask for each; return the folder."""
    (folder / "masks").mkdir(parents=True)
    for name, (_, _, objects) in zip(save_pieces(folder / "images"), PIECES, strict=True):
        Image.fromarray(mask_of(objects)).save(folder / "masks" / name)
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder
