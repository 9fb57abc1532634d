"""Datasets of torchvision for optical flow and stereo, built from a few small files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import datasets
from torchvision_datasets import COUNT, Case, picture, pictures, text


def flow(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    size = np.array([10, 8], dtype="<i4").tobytes()
    path.write_bytes(b"PIEH" + size + np.ones((8, 10, 2), dtype="<f4").tobytes())


def write_portable(path: Path, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = b"Pf" if channels == 1 else b"PF"
    path.write_bytes(kind + b"\n10 8\n-1.0\n" + np.ones((8, 10, channels), dtype="<f4").tobytes())


def sintel(root: Path) -> Any:
    base = root / "Sintel" / "training"
    pictures(base / "clean" / "alley", ["f_1.png", "f_2.png", "f_3.png"])
    for number in (1, 2):
        flow(base / "flow" / "alley" / f"f_{number}.flo")
    return datasets.Sintel(str(root), pass_name="clean")


def chairs(root: Path) -> Any:
    pictures(root / "FlyingChairs" / "data", [f"{n}_img{k}.ppm" for n in range(COUNT) for k in (1, 2)])
    for number in range(COUNT):
        flow(root / "FlyingChairs" / "data" / f"{number}_flow.flo")
    text(root / "FlyingChairs" / "FlyingChairs_train_val.txt", "1\n1\n")
    return datasets.FlyingChairs(str(root))


def things(root: Path) -> Any:
    base = root / "FlyingThings3D"
    pictures(base / "frames_cleanpass" / "TRAIN" / "A" / "0" / "left", ["0.png", "1.png"])
    for direction in ("into_future", "into_past"):
        for number in (0, 1):
            write_portable(
                base / "optical_flow" / "TRAIN" / "A" / "0" / direction / "left" / f"{number}.pfm", channels=3
            )
    return datasets.FlyingThings3D(str(root))


def cre(root: Path) -> Any:
    for number, scene in enumerate(("shapenet", "reflective", "tree", "hole")):
        for side in ("left", "right"):
            picture(root / "CREStereo" / scene / f"0_{side}.jpg", number)
            picture(root / "CREStereo" / scene / f"0_{side}.disp.png", number, "L")
    return datasets.CREStereo(str(root))


def stereo(kind: Any, base: str, files: list[str], *args: Any) -> Callable[[Path], Any]:
    """Build a class from the files of two scenes; `{}` is the scene."""

    def build(root: Path) -> Any:
        for scene in ("0", "1"):
            for number, name in enumerate(files):
                path = root / base / name.format(scene)
                if path.suffix == ".pfm":
                    write_portable(path)
                else:
                    is_map = any(part in name for part in ("disp", "mask", "occlusions", "outofframe", "depth"))
                    is_map = is_map and "disparities" not in name
                    picture(path, number + 7 * int(scene), "L" if is_map else "RGB")
        return kind(str(root), *args)

    return build


def kitti_flow(root: Path) -> Any:
    import cv2

    base = root / "KittiFlow" / "training"
    for number in range(COUNT):
        pictures(base / "image_2", [f"{number}_10.png", f"{number}_11.png"])
        (base / "flow_occ").mkdir(exist_ok=True)
        cv2.imwrite(str(base / "flow_occ" / f"{number}_10.png"), np.full((8, 10, 3), 1 << 15, dtype=np.uint16))
    return datasets.KittiFlow(str(root))


def hd1k(root: Path) -> Any:
    import cv2

    base = root / "hd1k"
    pictures(base / "hd1k_input" / "image_2", [f"000000_{number}.png" for number in range(COUNT + 1)])
    (base / "hd1k_flow_gt" / "flow_occ").mkdir(parents=True)
    for number in range(COUNT + 1):
        path = base / "hd1k_flow_gt" / "flow_occ" / f"000000_{number}.png"
        cv2.imwrite(str(path), np.full((8, 10, 3), 1 << 15, dtype=np.uint16))
    return datasets.HD1K(str(root))


def falling_things(root: Path) -> Any:
    folder = root / "FallingThings" / "mixed" / "kitchen"
    for number in range(COUNT):
        for side in ("left", "right"):
            picture(folder / f"{number}.{side}.jpg", number)
            picture(folder / f"{number}.{side}.depth.png", number, "L")
    text(folder / "_camera_settings.json", '{"camera_settings": [{"intrinsic_settings": {"fx": 768.2}}]}')
    return datasets.FallingThingsStereo(str(root), variant="mixed")


#: Class, folder, files of one scene (`{}` is its name) in the order in which they are read, further arguments.
STEREO: list[Any] = [
    (
        datasets.CarlaStereo,
        "carla-highres/trainingF",
        ["{}/im0.png", "{}/im1.png", "{}/disp0GT.pfm", "{}/disp1GT.pfm"],
    ),
    (
        datasets.Kitti2015Stereo,
        "Kitti2015/training",
        ["image_2/{}.png", "image_3/{}.png", "disp_occ_0/{}.png", "disp_occ_1/{}.png"],
    ),
    (
        datasets.Kitti2012Stereo,
        "Kitti2012/training",
        ["colored_0/{}_10.png", "colored_1/{}_10.png", "disp_noc/{}.png"],
    ),
    (datasets.InStereo2k, "InStereo2k/train", ["{}/left.png", "{}/right.png", "{}/left_disp.png", "{}/right_disp.png"]),
    (
        datasets.SceneFlowStereo,
        "SceneFlow/Monkaa",
        [
            "frames_cleanpass/{}/left/0.png",
            "frames_cleanpass/{}/right/0.png",
            "disparity/{}/left/0.pfm",
            "disparity/{}/right/0.pfm",
        ],
        "Monkaa",
        "clean",
    ),
    (
        datasets.SintelStereo,
        "Sintel/training",
        [
            "clean_left/{}/0.png",
            "clean_right/{}/0.png",
            "disparities/{}/0.png",
            "occlusions/{}/0.png",
            "outofframe/{}/0.png",
        ],
        "clean",
    ),
    (
        datasets.ETH3DStereo,
        "ETH3D",
        [
            "two_view_training/{}/im0.png",
            "two_view_training/{}/im1.png",
            "two_view_training_gt/{}/disp0GT.pfm",
            "two_view_training_gt/{}/mask0nocc.png",
        ],
    ),
    (
        datasets.Middlebury2014Stereo,
        "Middlebury2014/train",
        [
            "Adirondack{}-perfect/im0.png",
            "Adirondack{}-perfect/im1.png",
            "Adirondack{}-perfect/disp0.pfm",
            "Adirondack{}-perfect/disp1.pfm",
        ],
    ),
]

FLOWS = [
    Case("Sintel", sintel, ("f_1.png", "f_2.png", "f_1.flo"), ()),
    Case("FlyingChairs", chairs, ("0_img1.ppm", "0_img2.ppm", "0_flow.flo"), ()),
    Case("FlyingThings3D", things, ("left/0.png", "left/1.png", "into_future/left/0.pfm"), ()),
    Case("KittiFlow", kitti_flow, ("0_10.png", "0_11.png", "flow_occ/0_10.png"), ()),
    Case("HD1K", hd1k, ("image_2/000000_0.png", "image_2/000000_1.png", "flow_occ/000000_0.png"), ()),
    Case(
        "FallingThingsStereo",
        falling_things,
        ("0.left.jpg", "0.right.jpg", "0.left.depth.png", "_camera_settings.json", "0.right.depth.png"),
        (),
    ),
    Case(
        "CREStereo",
        cre,
        (
            "shapenet/0_left.jpg",
            "shapenet/0_right.jpg",
            "shapenet/0_left.disp.png",
            "shapenet/0_right.disp.png",
        ),
        (),
    ),
    *(
        Case(kind.__name__, stereo(kind, base, files, *args), tuple(name.format("0") for name in files), ())
        for kind, base, files, *args in STEREO
    ),
]
