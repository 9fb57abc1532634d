"""Pictures with more than a class each: boxes around objects, or a mask. The parts that these kinds of dataset share.

An item is (picture, target). A target of boxes is a dict as torchvision's detectors take it: `boxes` (x1, y1, x2, y2) and
`labels`, and `iscrowd` where the annotations know crowds. A mask is a tensor (H, W) of class numbers. Both are
tv_tensors, so that a joint transform (`transforms`) changes picture and target together.
"""

from __future__ import annotations

import hashlib
import os
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from audit.errors import DatasetError
from audit.sources.base import FileDataset, Options
from audit.sources.files import missing_path, size_of, to_printable

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of one picture: boxes (n, 4) as x1, y1, x2, y2 in pixels, class numbers, and which are crowds."""

    boxes: Array
    labels: Array
    crowd: Array | None = None
    #: Keypoints (n, K, 3) as x, y, visibility, and the share of its box that each object covers.
    keypoints: Array | None = None
    shares: Array | None = None


class AnnotatedPictures(FileDataset):
    """Pictures with a target each. A subclass says what the target of a picture is."""

    def __init__(
        self, root: str, names: Sequence[bytes], options: Options, *, classes: list[str] | None, notes: Sequence[str]
    ) -> None:
        super().__init__(root, names, options, classes=classes, notes=notes)
        #: A joint transform: it is given picture and target, and returns both.
        self.transforms: Any = None

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return (picture, target)."""
        at = self._at(index)
        picture = self.loader(self.read(at))
        target = self.target(at, picture)
        if self.transforms is not None:
            picture, target = self.transforms(picture, target)
        if self.transform is not None:
            picture = self.transform(picture)
        return picture, target if self.target_transform is None else self.target_transform(target)

    def target(self, index: int, picture: Any) -> Any:
        """Return the target of a picture, in its coordinates."""
        raise NotImplementedError

    def fingerprint(self, index: int) -> bytes:
        """Return bytes that differ where the annotation differs."""
        raise NotImplementedError

    def listing(self) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield (name, a number that stands for the annotation, size) of every picture in order of name."""
        for at in sorted(range(len(self)), key=self._names.__getitem__):
            number = int.from_bytes(hashlib.sha256(self.fingerprint(at)).digest()[:8], "big")
            yield self._names[at], number, size_of(self._path(self._names[at]))


class BoxedPictures(AnnotatedPictures):
    """Pictures with boxes around objects."""

    def objects(self, index: int, size: tuple[int, int]) -> Objects:
        """Return the objects of a picture of this width and height."""
        raise NotImplementedError

    def target(self, index: int, picture: Any) -> Any:
        """Return the boxes and labels of a picture, as torchvision's detectors take them."""
        import torch
        from torchvision import tv_tensors

        width, height = picture_size(picture)
        found = self.objects(index, (width, height))
        boxes = torch.from_numpy(np.ascontiguousarray(found.boxes, dtype=np.float32).reshape(-1, 4))
        target: dict[str, Any] = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
            "labels": torch.from_numpy(np.ascontiguousarray(found.labels, dtype=np.int64).reshape(-1)),
        }
        if found.crowd is not None:
            target["iscrowd"] = torch.from_numpy(np.ascontiguousarray(found.crowd, dtype=np.int64).reshape(-1))
        if found.keypoints is not None:
            points = torch.from_numpy(np.ascontiguousarray(found.keypoints, dtype=np.float32))
            # A joint transform moves them with the picture; so it does the boxes, of which the area is a share.
            target["keypoints"] = tv_tensors.KeyPoints(points[..., :2], canvas_size=(height, width))
            target["visibility"] = points[..., 2]
        if found.shares is not None:
            target["area_share"] = torch.from_numpy(found.shares)
        return target


def picture_size(picture: Any) -> tuple[int, int]:
    """Return width and height of a decoded picture or array."""
    if hasattr(picture, "shape"):
        return int(picture.shape[1]), int(picture.shape[0])
    width, height = picture.size
    return int(width), int(height)


def parse_spec(spec: str, prefix: str, known: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Return the path in `prefix:PATH?key=value` and its options; raise DatasetError for an unknown option."""
    path, _, query = spec.removeprefix(prefix).partition("?")
    options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DatasetError(
            f"{prefix} has no option {unknown[0]!r}.", hint=f"It takes: {', '.join(known) or 'no options'}."
        )
    path = os.path.expanduser(path)
    if not os.path.exists(path):
        raise missing_path(path)
    return path, options


def shown_path(path: str) -> str:
    """Return a path as it can be printed."""
    return to_printable(os.fsencode(path))
