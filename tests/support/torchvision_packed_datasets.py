"""Datasets of torchvision in formats of their own (archives, lists with checksums, optical flow, stereo), from a few small files."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision_datasets import COUNT, TF, Case, idx, pictures, text

NAMES = ["0.jpg", "1.jpg"]


def build_unchecked(kind: Any, *args: Any, **options: Any) -> Any:
    """Build a class without comparing the checksums of the files, which are those of the real ones."""
    home = "torchvision.datasets.utils" if kind is datasets.USPS else kind.__module__
    with patch(f"{home}.check_integrity", lambda *_, **__: True):
        return kind(*args, **options)


def matrix(path: Path, **values: Any) -> None:
    from scipy.io import savemat  # type: ignore[import-untyped]

    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, values)


def pixels(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def emnist(root: Path) -> Any:
    raw = root / "EMNIST" / "raw"
    for part in ("train", "test"):
        idx(raw / f"emnist-digits-{part}-images-idx3-ubyte", pixels(COUNT, 28, 28))
        idx(raw / f"emnist-digits-{part}-labels-idx1-ubyte", np.arange(COUNT))
    return datasets.EMNIST(str(root), "digits", transform=TF)


def qmnist(root: Path) -> Any:
    processed = root / "QMNIST" / "raw"
    idx(processed / "qmnist-train-images-idx3-ubyte", pixels(COUNT, 28, 28))
    labels = np.zeros((COUNT, 8), dtype=">i4")
    header = b"\x00\x00\x0c\x02" + np.array(labels.shape, dtype=">i4").tobytes()
    (processed / "qmnist-train-labels-idx2-int").write_bytes(header + labels.tobytes())
    return datasets.QMNIST(str(root), "train", transform=TF)


def usps(root: Path) -> Any:
    import bz2

    lines = "".join(
        f"{n + 1} " + " ".join(f"{k}:{(k % 7) / 7 - n}" for k in range(1, 257)) + "\n" for n in range(COUNT)
    )
    root.mkdir(parents=True)
    (root / "usps.bz2").write_bytes(bz2.compress(lines.encode()))
    return build_unchecked(datasets.USPS, str(root), transform=TF)


def svhn(root: Path) -> Any:
    matrix(root / "train_32x32.mat", X=pixels(32, 32, 3, COUNT), y=np.array([[1], [2]]))
    return build_unchecked(datasets.SVHN, str(root), transform=TF)


def stl(root: Path) -> Any:
    base = root / "stl10_binary"
    base.mkdir(parents=True)
    (base / "train_X.bin").write_bytes(pixels(COUNT, 3, 96, 96).tobytes())
    (base / "train_y.bin").write_bytes(bytes([1, 2]))
    text(base / "class_names.txt", "a\nb\n")
    return build_unchecked(datasets.STL10, str(root), transform=TF)


def cifar(kind: Any) -> Callable[[Path], Any]:
    def build(root: Path) -> Any:
        base = root / kind.base_folder
        base.mkdir(parents=True)
        key = "fine_labels" if kind is datasets.CIFAR100 else "labels"
        for name, _ in kind.test_list:
            (base / name).write_bytes(pickle.dumps({"data": pixels(COUNT, 3072), key: [0, 1]}))
        (base / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: ["a", "b"]}))
        return build_unchecked(kind, str(root), train=False, transform=TF)

    return build


def semeion(root: Path) -> Any:
    rows = np.concatenate([np.tile([0.0, 1.0], (COUNT, 128)), np.eye(10)[:COUNT]], axis=1)
    root.mkdir(parents=True)
    np.savetxt(root / "semeion.data", rows)
    return build_unchecked(datasets.SEMEION, str(root), transform=TF, download=False)


def sbu(root: Path) -> Any:
    pictures(root / "dataset", NAMES)
    text(root / "dataset" / "SBU_captioned_photo_dataset_urls.txt", "http://a/0.jpg\nhttp://a/1.jpg\n")
    text(root / "dataset" / "SBU_captioned_photo_dataset_captions.txt", "one\ntwo\n")
    return build_unchecked(datasets.SBU, str(root), transform=TF, download=False)


def lfw(kind: Any) -> Callable[[Path], Any]:
    def build(root: Path) -> Any:
        base = root / "lfw-py"
        pictures(
            base / "lfw_funneled", ["Ann/Ann_0001.jpg", "Ann/Ann_0002.jpg", "Bob/Bob_0001.jpg", "Bob/Bob_0002.jpg"]
        )
        text(base / "lfw-names.txt", "Ann 2\nBob 2\n")
        text(base / "peopleDevTrain.txt", "2\nAnn\t1\nBob\t1\n")
        text(base / "pairsDevTrain.txt", "1\nAnn\t1\t2\nBob\t1\tAnn\t1\n")
        return build_unchecked(kind, str(root), split="train", transform=TF)

    return build


def celeba(root: Path) -> Any:
    base = root / "celeba"
    pictures(base / "img_align_celeba", NAMES)
    text(base / "list_eval_partition.txt", "0.jpg 0\n1.jpg 0\n")
    text(base / "identity_CelebA.txt", "0.jpg 1\n1.jpg 2\n")
    for name in ("list_bbox_celeba.txt", "list_landmarks_align_celeba.txt", "list_attr_celeba.txt"):
        text(base / name, "2\nx y\n0.jpg 1 -1\n1.jpg 1 1\n")
    return build_unchecked(datasets.CelebA, str(root), transform=TF)


def wider_face(root: Path) -> Any:
    base = root / "widerface"
    pictures(base / "WIDER_train" / "images", NAMES)
    for folder in ("WIDER_val", "WIDER_test", "wider_face_split"):
        (base / folder).mkdir()
    box = "1 1 2 2 0 0 0 0 0 0"
    text(base / "wider_face_split" / "wider_face_train_bbx_gt.txt", f"0.jpg\n1\n{box}\n1.jpg\n1\n{box}\n")
    return datasets.WIDERFace(str(root), transform=TF)


def flickr(root: Path) -> Any:
    pictures(root, NAMES)
    text(root / "captions.token", "0.jpg#0\tone\n1.jpg#0\ttwo\n")
    return datasets.Flickr30k(str(root), str(root / "captions.token"), transform=TF)


def flickr_page(root: Path) -> Any:
    pictures(root, ["a_0.jpg", "b_1.jpg"])
    rows = "".join(f"<tr><td><a>http://x/{name}/</a><ul><li>words</li></ul></td></tr>" for name in "ab")
    text(root / "page.html", f"<table>{rows}</table>")
    return datasets.Flickr8k(str(root), str(root / "page.html"), transform=TF)


def places(root: Path) -> Any:
    pictures(root / "data_large_standard", NAMES)
    text(root / "categories_places365.txt", "/a 0\n/b 1\n")
    text(root / "places365_train_standard.txt", "/0.jpg 0\n/1.jpg 1\n")
    return build_unchecked(datasets.Places365, str(root), transform=TF)


def inaturalist(root: Path) -> Any:
    pictures(root / "2021_train", [f"{n:05d}_a_b_c_d_e_f_g/{n}.jpg" for n in range(COUNT)])
    return datasets.INaturalist(str(root), transform=TF)


def imagenet(root: Path) -> Any:
    pictures(root / "train", ["n01/0.JPEG", "n02/1.JPEG"])
    torch.save(({"n01": ("a",), "n02": ("b",)}, ["n01", "n02"]), root / "meta.bin")
    return build_unchecked(datasets.ImageNet, str(root), transform=TF)


def imagenette(root: Path) -> Any:
    pictures(root / "imagenette2" / "train", ["n01440764/0.JPEG", "n02102040/1.JPEG"])
    return datasets.Imagenette(str(root), transform=TF)


def omniglot(root: Path) -> Any:
    pictures(root / "omniglot-py" / "images_background" / "Latin" / "character01", ["0.png", "1.png"])
    return build_unchecked(datasets.Omniglot, str(root), transform=TF)


def flowers(root: Path) -> Any:
    base = root / "flowers-102"
    pictures(base / "jpg", ["image_00001.jpg", "image_00002.jpg"])
    matrix(base / "setid.mat", trnid=[1, 2], valid=[1, 2], tstid=[1, 2])
    matrix(base / "imagelabels.mat", labels=[1, 2])
    return build_unchecked(datasets.Flowers102, str(root), transform=TF)


def cars(root: Path) -> Any:
    base = root / "stanford_cars"
    pictures(base / "cars_train", NAMES)
    rows = np.array([(name, n + 1) for n, name in enumerate(NAMES)], dtype=[("fname", "O"), ("class", "O")])
    matrix(base / "devkit" / "cars_train_annos.mat", annotations=rows)
    matrix(base / "devkit" / "cars_meta.mat", class_names=np.array(["a", "b"], dtype=object))
    return datasets.StanfordCars(str(root), transform=TF)


def fer(root: Path) -> Any:
    faces = "".join(f'{n},"{" ".join(["7"] * 2304)}"\n' for n in range(COUNT))
    text(root / "fer2013" / "train.csv", "emotion,pixels\n" + faces)
    return build_unchecked(datasets.FER2013, str(root), transform=TF)


def moving_mnist(root: Path) -> Any:
    (root / "MovingMNIST").mkdir(parents=True)
    np.save(root / "MovingMNIST" / "mnist_test_seq.npy", pixels(20, COUNT, 8, 8))
    return datasets.MovingMNIST(str(root), transform=torch.nn.Flatten())


def caltech101(root: Path) -> Any:
    base = root / "caltech101"
    pictures(base / "101_ObjectCategories", ["ant/image_0001.jpg", "bee/image_0001.jpg"])
    for folder in ("101_ObjectCategories/BACKGROUND_Google", "Annotations"):
        (base / folder).mkdir(parents=True)
    return datasets.Caltech101(str(root), transform=TF)


def photo_tour(root: Path) -> Any:
    root.mkdir(parents=True)
    patches = torch.from_numpy(pixels(COUNT, 8, 8))
    torch.save((patches, torch.arange(COUNT), torch.zeros(COUNT, 3, dtype=torch.long)), root / "liberty.pt")
    return datasets.PhotoTour(str(root), "liberty", transform=torch.nn.Flatten())


def boundaries(root: Path) -> Any:
    pictures(root / "img", [f"{number}.jpg" for number in range(COUNT)])
    for number in range(COUNT):
        matrix(root / "cls" / f"{number}.mat", GTcls={"Segmentation": np.full((8, 10), number, np.uint8)})
    text(root / "train.txt", "\n".join(map(str, range(COUNT))))
    return datasets.SBDataset(str(root), mode="segmentation")


def pcam(root: Path) -> Any:
    h5py = pytest.importorskip("h5py")
    (root / "pcam").mkdir(parents=True)
    for name, content in (("x", pixels(COUNT, 8, 10, 3)), ("y", np.arange(COUNT).reshape(COUNT, 1, 1, 1))):
        with h5py.File(root / "pcam" / f"camelyonpatch_level_2_split_train_{name}.h5", "w") as file:
            file[name] = content
    return datasets.PCAM(str(root), transform=TF)


def lsun(root: Path) -> Any:
    lmdb = pytest.importorskip("lmdb")
    pictures(root / "files", [f"{number}.png" for number in range(COUNT)])
    place = root / "tower_train_lmdb"
    place.mkdir()
    with lmdb.open(str(place)) as environment, environment.begin(write=True) as writing:
        for number in range(COUNT):
            writing.put(str(number).encode(), (root / "files" / f"{number}.png").read_bytes())
    with contextlib.chdir(root):  # it writes a list of its keys there
        return datasets.LSUN(str(root), ["tower_train"], transform=TF)


PACKED_DATASETS = [
    Case("EMNIST", emnist),
    Case("QMNIST", qmnist),
    Case("USPS", usps),
    Case("SVHN", svhn),
    Case("STL10", stl),
    Case("CIFAR10", cifar(datasets.CIFAR10)),
    Case("CIFAR100", cifar(datasets.CIFAR100)),
    Case("SEMEION", semeion),
    Case("FER2013", fer),
    Case("MovingMNIST", moving_mnist, stages=("Flatten",)),
    Case("PhotoTour", photo_tour, stages=("Flatten",)),
    Case("PCAM", pcam, tuple(f"camelyonpatch_level_2_split_train_{name}.h5" for name in "xy")),
    Case("LSUN", lsun, reported="dbs[0].env (Environment) stays open"),
    Case("SBU", sbu, ("0.jpg",)),
    Case("SBDataset", boundaries, ("img/0.jpg", "cls/0.mat"), ()),
    Case("LFWPeople", lfw(datasets.LFWPeople), ("Ann_0001.jpg",)),
    Case("LFWPairs", lfw(datasets.LFWPairs), ("Ann_0001.jpg", "Ann_0002.jpg"), ("ToTensor", "ToTensor")),
    Case("CelebA", celeba, ("img_align_celeba/0.jpg",)),
    Case("WIDERFace", wider_face, ("images/0.jpg",)),
    Case("Flickr30k", flickr, ("0.jpg",)),
    Case("Flickr8k", flickr_page, ("a_0.jpg",)),
    Case("Places365", places, ("0.jpg",)),
    Case("INaturalist", inaturalist, ("00000_a_b_c_d_e_f_g/0.jpg",)),
    Case("ImageNet", imagenet, ("n01/0.JPEG",)),
    Case("Imagenette", imagenette, ("n01440764/0.JPEG",)),
    Case("Omniglot", omniglot, ("character01/0.png",)),
    Case("Flowers102", flowers, ("image_00001.jpg",)),
    Case("StanfordCars", cars, ("0.jpg",)),
    Case("Caltech101", caltech101, ("ant/image_0001.jpg",)),
]
#: Classes that are not built here, and why.
NOT_BUILT = {
    "Kinetics, HMDB51, UCF101": "they need torchcodec and FFmpeg",
}
