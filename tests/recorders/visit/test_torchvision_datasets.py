"""Every dataset class of torchvision that a few small files make: its stages, its files, and its replay."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision_datasets import CASES, COUNT, Case
from torchvision_flow_datasets import FLOWS
from torchvision_packed_datasets import PACKED_DATASETS

import audit


@pytest.mark.parametrize("case", [*CASES, *PACKED_DATASETS, *FLOWS], ids=lambda case: case.name)
def test_classes(case: Case, tmp_path: Path) -> None:
    dataset = case.build(tmp_path / "data")
    count = len(dataset)
    assert count >= COUNT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage", strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=2, collate_fn=list)))
    assert len(run.run.unrecorded or ()) == bool(case.reported)
    assert all(case.reported in said for said in run.run.unrecorded or ())
    with audit.open(tmp_path / "lineage") as lineage:
        stages = lineage.sql("SELECT name FROM stages ORDER BY stage").fetchall()[1:]
        assert tuple(name for (name,) in stages) == case.stages
        query = "SELECT index, source, root FROM sample_sources ORDER BY index, ordinal"
        files: dict[int, list[str]] = {}
        for index, source, root in lineage.sql(query).fetchall():
            files.setdefault(index, []).append(str(Path(root) / source))
        # Some classes list their folder in the order of the file system.
        first = next((of for of in files.values() if of[0].endswith(f"/{case.sources[0]}")), []) if case.sources else []
        assert len(first) == len(case.sources), files
        assert all(file.endswith(f"/{expected}") for file, expected in zip(first, case.sources, strict=True)), files
        sources = lineage.sql("SELECT source FROM samples ORDER BY index").fetchall()
        if not case.sources:
            assert sources == [(f"dataset://{n}",) for n in range(count)]
        assert len(set(sources)) == count
        replayed = lineage.replay(dataset=dataset)
        assert (replayed.checked, replayed.identical) == (count, count), replayed.different


def test_a_transform_that_the_dataset_asks_about_is_as_true_as_it_was(tmp_path: Path) -> None:
    class Empty(list[int]):
        """A transform that is false."""

        def __call__(self, value: object) -> object:
            return value

    for transform in (Empty(), transforms.ToTensor(), None):
        dataset = Asking(transform)
        plain = [dataset[index] for index in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with audit.record(tmp_path / "lineage", strict=True) as run:
                recorded = [pair for batch in run.loader(DataLoader(dataset, collate_fn=list)) for pair in batch]
        assert [asked for _, asked in recorded] == [asked for _, asked in plain]


class Asking(Dataset):  # type: ignore[type-arg]
    """As torchvision's: `if self.transform:` before it is called."""

    def __init__(self, transform: object) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[object, int]:
        image: object = Image.new("RGB", (4, 4), (index, 0, 0))
        asked = bool(self.transform)
        return (self.transform(image) if callable(self.transform) else image), int(asked)
