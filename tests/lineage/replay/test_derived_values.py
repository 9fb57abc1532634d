"""What was not stored is derived again from its source: the very value, or an error that says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import audit
from audit.errors import AuditError

NOISE = "transform = [transforms.RandomCrop(12), transforms.ToTensor(), transforms.RandomErasing(0.5)]"


def test_values_are_those_of_the_file_though_others_were_added(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images, pipeline = pictures(count=5), write_pipeline(NOISE)
    audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0, capture="full", name="stored")
    audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0, capture="digest", name="digests")
    Image.new("RGB", (24, 18)).save(images / "class_0" / "aaa_new.png")
    with audit.open(tmp_path / "lineage") as store:
        # Every index means another file now, and each sample is seeded from the index that it had.
        for index in (0, 4):
            stored, derived = (store.trace(name, index=index) for name in ("stored", "digests"))
            assert not derived.is_stored(3)
            before = torch.get_rng_state()
            assert np.array_equal(np.asarray(derived.value(3)), np.asarray(stored.value(3)))
            assert torch.equal(before, torch.get_rng_state()), "reading a value is observing"
        assert len(store.trace("digests", index=1).export(tmp_path / "out")) > 4
        (images / "class_0" / "img_000.png").unlink()
        with pytest.raises(AuditError, match=r"class_0/img_000\.png"):
            store.trace("digests", index=0).value(3)


def test_files_of_one_name_in_joined_folders_are_distinguished(pictures: Callable[..., Path], tmp_path: Path) -> None:
    first, second = pictures(count=4, name="first"), pictures(count=4, name="second")
    for file in second.rglob("*.png"):
        Image.open(file).transpose(Image.Transpose.ROTATE_180).save(file)

    def joined() -> ConcatDataset[Any]:
        return ConcatDataset([ImageFolder(str(root), transforms.ToTensor()) for root in (first, second)])

    with audit.record(tmp_path / "lineage") as run:
        for _ in run.loader(DataLoader(joined())):
            pass
    (first / "class_0" / "img_000.png").unlink()
    with audit.open(tmp_path / "lineage") as store:
        result = store.replay(dataset=joined(), workers=0)
        assert result.identical == 7
        assert [(item.index, item.reason) for item in result.different] == [(0, "source missing")]
        # Both folders moved: they are reported by the names of their files, and by their places where names are not enough.
        for root in (first, second):
            root.rename(tmp_path / f"moved_{root.name}")
        first, second = tmp_path / "moved_first", tmp_path / "moved_second"
        Image.open(second / "class_0" / "img_003.png").transpose(Image.Transpose.ROTATE_180).save(
            first / "class_0" / "img_000.png"
        )
        assert store.replay(dataset=joined(), workers=0).identical == 7
