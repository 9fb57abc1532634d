"""Datasets of torchvision built from a few small files, with what a recording must find in each."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision import datasets, transforms

COUNT = 2


@dataclass(frozen=True)
class Case:
    """One class, how it is built in a folder, and the files of its first sample, from the folder on."""

    name: str
    build: Callable[[Path], Any]
    #: All files that the first sample is read from, its source first; none for one that is kept in memory.
    sources: tuple[str, ...] = ()
    stages: tuple[str, ...] = ("ToTensor",)
    #: What the run says of files that are not seen.
    reported: str = ""


def picture(path: Path, seed: int = 0, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def pictures(root: Path, names: list[str], mode: str = "RGB") -> None:
    for number, name in enumerate(names):
        picture(root / name, number, mode)


TF = transforms.ToTensor()


def image_folder(root: Path) -> Any:
    pictures(root, ["cat/0.png", "dog/1.png"])
    return datasets.ImageFolder(str(root), transform=TF)


def dataset_folder(root: Path) -> Any:
    pictures(root, ["cat/0.png", "dog/1.png"])
    return datasets.DatasetFolder(str(root), loader=datasets.folder.pil_loader, extensions=(".png",), transform=TF)


def coco(kind: Any) -> Callable[[Path], Any]:
    def build(root: Path) -> Any:
        images = [{"id": n, "file_name": f"{n:03d}.jpg"} for n in range(COUNT)]
        pictures(root, [str(image["file_name"]) for image in images])
        notes = [{"id": n, "image_id": n, "bbox": [0, 0, 2, 2], "category_id": 1, "caption": "a"} for n in range(COUNT)]
        text(root / "a.json", json.dumps({"images": images, "annotations": notes, "categories": [{"id": 1}]}))
        return kind(str(root), str(root / "a.json"), transform=TF)

    return build


def idx(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">I", 0x0800 + array.ndim) + b"".join(struct.pack(">I", size) for size in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())
    with gzip.open(f"{path}.gz", "wb") as packed:
        packed.write(path.read_bytes())


def mnist(kind: Any) -> Callable[[Path], Any]:
    def build(root: Path) -> Any:
        raw = root / kind.__name__ / "raw"
        for part in ("train", "t10k"):
            idx(raw / f"{part}-images-idx3-ubyte", np.arange(COUNT * 784).reshape(COUNT, 28, 28) % 256)
            idx(raw / f"{part}-labels-idx1-ubyte", np.arange(COUNT))
        return kind(str(root), transform=TF)

    return build


def voc(kind: Any) -> Callable[[Path], Any]:
    def build(root: Path) -> Any:
        base, names = root / "VOCdevkit" / "VOC2012", ["2007_0", "2007_1"]
        pictures(base / "JPEGImages", [f"{name}.jpg" for name in names])
        pictures(base / "SegmentationClass", [f"{name}.png" for name in names], "P")
        for name in names:
            text(base / "Annotations" / f"{name}.xml", "<annotation><object><name>a</name></object></annotation>")
        for folder in ("Segmentation", "Main"):
            text(base / "ImageSets" / folder / "train.txt", "\n".join(names))
        return kind(str(root), transform=TF)

    return build


def pet(root: Path) -> Any:
    base, names = root / "oxford-iiit-pet", ["Abyssinian_1", "Abyssinian_2"]
    pictures(base / "images", [f"{name}.jpg" for name in names])
    pictures(base / "annotations" / "trimaps", [f"{name}.png" for name in names], "L")
    text(base / "annotations" / "trainval.txt", "".join(f"{name} 1 1 1\n" for name in names))
    return datasets.OxfordIIITPet(str(root), target_types="segmentation", transform=TF)


def kitti(root: Path) -> Any:
    base = root / "Kitti" / "raw" / "training"
    pictures(base / "image_2", ["000000.png", "000001.png"])
    for number in range(COUNT):
        text(base / "label_2" / f"00000{number}.txt", "Car 0 0 0 1 1 2 2 1 1 1 0 0 0 0\n")
    return datasets.Kitti(str(root), transform=TF)


def dtd(root: Path) -> Any:
    base = root / "dtd" / "dtd"
    pictures(base / "images", ["banded/0.jpg", "dotted/1.jpg"])
    text(base / "labels" / "train1.txt", "banded/0.jpg\ndotted/1.jpg\n")
    return datasets.DTD(str(root), transform=TF)


def food(root: Path) -> Any:
    base = root / "food-101"
    pictures(base / "images", ["pie/0.jpg", "soup/1.jpg"])
    text(base / "meta" / "train.json", json.dumps({"pie": ["pie/0"], "soup": ["soup/1"]}))
    return datasets.Food101(str(root), transform=TF)


def folder_of(kind: Any, base: str) -> Callable[[Path], Any]:
    def build(root: Path) -> Any:
        pictures(root / base, ["a/0.jpg", "b/1.jpg"])
        return kind(str(root), transform=TF)

    return build


def sst(root: Path) -> Any:
    pictures(root / "rendered-sst2" / "train", ["negative/0.png", "positive/1.png"])
    return datasets.RenderedSST2(str(root), transform=TF)


def aircraft(root: Path) -> Any:
    base = root / "fgvc-aircraft-2013b" / "data"
    pictures(base / "images", ["0.jpg", "1.jpg"])
    text(base / "variants.txt", "A1\nB2\n")
    text(base / "images_variant_trainval.txt", "0 A1\n1 B2\n")
    return datasets.FGVCAircraft(str(root), transform=TF)


def sun(root: Path) -> Any:
    base = root / "SUN397"
    pictures(base, ["a/abbey/sun_0.jpg", "b/barn/sun_1.jpg"])
    text(base / "ClassName.txt", "/a/abbey\n/b/barn\n")
    return datasets.SUN397(str(root), transform=TF)


def gtsrb(root: Path) -> Any:
    pictures(root / "gtsrb" / "GTSRB" / "Training", ["00000/0.ppm", "00001/1.ppm"])
    return datasets.GTSRB(str(root), transform=TF)


def clevr(root: Path) -> Any:
    base = root / "clevr" / "CLEVR_v1.0"
    pictures(base / "images" / "train", ["0.png", "1.png"])
    scenes = [{"image_filename": f"{n}.png", "objects": [1] * n} for n in range(COUNT)]
    text(base / "scenes" / "CLEVR_train_scenes.json", json.dumps({"scenes": scenes}))
    return datasets.CLEVRClassification(str(root), transform=TF)


def caltech(root: Path) -> Any:
    pictures(root / "caltech256" / "256_ObjectCategories", ["001.a/001_0001.jpg", "002.b/002_0001.jpg"])
    return datasets.Caltech256(str(root), transform=TF)


def cityscapes(root: Path) -> Any:
    for number in range(COUNT):
        stem = f"ulm/ulm_00000{number}_000019"
        picture(root / "leftImg8bit" / "train" / f"{stem}_leftImg8bit.png", number)
        picture(root / "gtFine" / "train" / f"{stem}_gtFine_labelIds.png", number, "L")
    return datasets.Cityscapes(str(root), target_type="semantic", transform=TF)


def fake(root: Path) -> Any:
    return datasets.FakeData(COUNT, (3, 8, 10), 2, transform=TF)


CASES = [
    Case("ImageFolder", image_folder, ("cat/0.png",)),
    Case("DatasetFolder", dataset_folder, ("cat/0.png",)),
    Case("CocoDetection", coco(datasets.CocoDetection), ("000.jpg",)),
    Case("CocoCaptions", coco(datasets.CocoCaptions), ("000.jpg",)),
    Case("VOCSegmentation", voc(datasets.VOCSegmentation), ("JPEGImages/2007_0.jpg", "SegmentationClass/2007_0.png")),
    Case("VOCDetection", voc(datasets.VOCDetection), ("JPEGImages/2007_0.jpg", "Annotations/2007_0.xml")),
    Case("OxfordIIITPet", pet, ("images/Abyssinian_1.jpg", "trimaps/Abyssinian_1.png")),
    Case("Cityscapes", cityscapes, ("ulm_000000_000019_leftImg8bit.png", "ulm_000000_000019_gtFine_labelIds.png")),
    Case("Kitti", kitti, ("image_2/000000.png", "label_2/000000.txt")),
    Case("DTD", dtd, ("banded/0.jpg",)),
    Case("Food101", food, ("pie/0.jpg",)),
    Case("EuroSAT", folder_of(datasets.EuroSAT, "eurosat/2750"), ("a/0.jpg",)),
    Case("Country211", folder_of(datasets.Country211, "country211/train"), ("a/0.jpg",)),
    Case("RenderedSST2", sst, ("negative/0.png",)),
    Case("FGVCAircraft", aircraft, ("images/0.jpg",)),
    Case("SUN397", sun, ("a/abbey/sun_0.jpg",)),
    Case("GTSRB", gtsrb, ("00000/0.ppm",)),
    Case("CLEVRClassification", clevr, ("train/0.png",)),
    Case("Caltech256", caltech, ("001.a/001_0001.jpg",)),
    Case("MNIST", mnist(datasets.MNIST)),
    Case("FashionMNIST", mnist(datasets.FashionMNIST)),
    Case("KMNIST", mnist(datasets.KMNIST)),
    Case("FakeData", fake),
]
