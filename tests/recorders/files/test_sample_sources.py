"""Every file that a sample was read from is in `sample_sources`, whatever code opened it."""

from __future__ import annotations

import hashlib
import io
import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torchvision
from cv2 import imread
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import audit
from audit.report.trace_text import trace_tree

COUNT = 4


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)).save(path)
    return path


class Files(Dataset):  # type: ignore[type-arg]
    """Pictures with a mask each, read by one of several readers."""

    def __init__(self, root: Path, read: str = "pillow") -> None:
        self.folder = root
        self.read = read
        self.images = [picture(root / "images" / f"{n}.png", n) for n in range(COUNT)]
        self.masks = [picture(root / "masks" / f"{n}.png", n + 100) for n in range(COUNT)]
        (root / "notes.json").write_text("{}")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        (self.folder / "notes.json").read_text()
        return READERS[self.read](self.images[index]), READERS[self.read](self.masks[index])


READERS: dict[str, Any] = {
    "pillow": lambda path: np.asarray(Image.open(path)),
    "cv2": lambda path: cv2.imread(str(path)),
    "imread": lambda path: imread(filename=str(path)),
    "read_image": lambda path: torchvision.io.read_image(str(path)),
    "read_file": lambda path: torchvision.io.decode_image(torchvision.io.read_file(str(path))),
    "decode_image": lambda path: torchvision.io.decode_image(path),
}


def record(store: Path, dataset: Any, workers: int = 0, *, loader: dict[str, Any] | None = None, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, strict=True) as run:
            made = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=list, **(loader or {}))
            list(run.loader(made, **options))
    return sources_of(store)


def sources_of(store: Path) -> list[list[tuple[Any, ...]]]:
    with audit.open(store) as lineage:
        query = "SELECT index, ordinal, role, source, root, digest, bytes FROM sample_sources ORDER BY ALL"
        rows = lineage.sql(query, run="latest").fetchall()
        first = dict(lineage.sql("SELECT index, source FROM samples", run="latest").fetchall())
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(max(first) + 1)]
    for index, ordinal, role, source, root, digest, size in rows:
        assert ordinal == len(found[index])
        content = (Path(root) / source).read_bytes()
        assert (digest, size) == (hashlib.sha256(content).hexdigest(), len(content))
        assert ordinal or source == first[index] or first[index].startswith("dataset://")
        found[index].append((role, str(Path(root) / source)))
    return found


@pytest.mark.parametrize("read", READERS)
def test_every_file_that_is_opened(tmp_path: Path, read: str) -> None:
    dataset = Files(tmp_path / "data", read)
    reader = cv2.imread
    found = record(tmp_path / "lineage", dataset)
    notes = str(tmp_path / "data" / "notes.json")
    for index, files in enumerate(found):
        assert sorted(files[1:]) == sorted([(None, str(dataset.masks[index])), (None, notes)])
        assert files[0] == (None, str(dataset.images[index]))
    assert cv2.imread is reader is imread, "nothing stays behind"


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.workers
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_workers(tmp_path: Path, method: str) -> None:
    dataset = Files(tmp_path / "data", "pillow" if method == "spawn" else "cv2")
    subset = Subset(dataset, [3, 1])
    found = record(tmp_path / "lineage", subset, 1, loader={"multiprocessing_context": method})
    assert [files[0][1] for files in found] == [str(dataset.images[3]), str(dataset.images[1])]
    assert all(len(files) == 3 for files in found), found


def test_replay_names_each_file_that_changed(tmp_path: Path) -> None:
    dataset = Files(tmp_path / "data")
    record(tmp_path / "lineage", dataset)
    with audit.open(tmp_path / "lineage") as store:
        assert store.replay("latest", dataset=dataset).identical == COUNT
        picture(dataset.masks[2], 999)
        (different,) = store.replay("latest", dataset=dataset).different
        assert (different.index, different.reason) == (2, "source changed")
        assert "2.png" in (different.detail or "")
        picture(dataset.masks[2], 102)
        dataset.masks[1].unlink()
        (missing,) = [one for one in store.replay("latest", dataset=dataset).different if one.index == 1]
        assert missing.reason == "source missing"
        picture(dataset.masks[1], 101)
        (dataset.folder / "notes.json").write_text('{"a": 1}')
        reasons = {one.reason for one in store.replay("latest", dataset=dataset).different}
        assert reasons == {"source changed"}


def test_trace_shows_all_of_them(tmp_path: Path) -> None:
    dataset = Files(tmp_path / "data")
    record(tmp_path / "lineage", dataset)
    picture(dataset.masks[1], 999)
    with audit.open(tmp_path / "lineage") as store:
        trace = store.trace(index=1)
        found = trace.as_json()["sources"]
        assert [(row["ordinal"], row["path"], row["state"]) for row in found] == [
            (0, "1.png", "unchanged"),
            (1, "notes.json", "unchanged"),
            (2, "1.png", "changed"),
        ]
        shown = io.StringIO()
        Console(width=200, file=shown).print(trace_tree(trace))
        assert "notes.json" in shown.getvalue()


class Arrays(Dataset):  # type: ignore[type-arg]
    """An array in a file for each sample, named by the dataset's own list, or one file for all."""

    def __init__(self, root: Path, shared: bool) -> None:
        root.mkdir(parents=True)
        self.paths = [str(root / f"{n}.npy") for n in range(COUNT)]
        for n, path in enumerate(self.paths):
            np.save(path, np.full((3, 2), n))
        self.shared = str(root / "all.npy") if shared else None
        np.save(root / "all.npy", np.arange(COUNT))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.shared is not None:
            return np.load(self.shared)[index : index + 1], 0
        return np.load(self.paths[index]), 0


def test_a_file_that_the_dataset_lists_is_the_source(tmp_path: Path) -> None:
    record(tmp_path / "lineage", Subset(Arrays(tmp_path / "data", shared=False), [2, 0]))
    with audit.open(tmp_path / "lineage") as store:
        found = store.sql("SELECT source FROM samples ORDER BY index").fetchall()
    assert found == [("2.npy",), ("0.npy",)]


def test_a_file_of_all_samples_is_no_identity(tmp_path: Path) -> None:
    found = record(tmp_path / "lineage", Arrays(tmp_path / "data", shared=True))
    assert found == [[(None, str(tmp_path / "data" / "all.npy"))]] * COUNT
    with audit.open(tmp_path / "lineage") as store:
        sources = store.sql("SELECT source FROM samples ORDER BY index").fetchall()
    assert sources == [(f"dataset://{n}",) for n in range(COUNT)]


class Named(Files):
    def __getitem__(self, index: int) -> Any:
        return np.full(3, index), 0

    def source(self, index: int) -> Any:
        return {"image": self.images[index], "mask": self.masks[index]}


def test_a_dataset_names_them_by_role(tmp_path: Path) -> None:
    dataset = Named(tmp_path / "data")
    found = record(tmp_path / "lineage", dataset)
    assert found[1] == [("image", str(dataset.images[1])), ("mask", str(dataset.masks[1]))]


class Memory(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), index), 0


@pytest.mark.parametrize("form", ["function", "function of the item", "mapping", "list"])
def test_a_loader_names_them(tmp_path: Path, form: str) -> None:
    files = [
        {"image": picture(tmp_path / f"{n}.png", n), "notes": picture(tmp_path / f"m{n}.png", n)} for n in range(4)
    ]
    source: Any = {
        "function": files.__getitem__,
        "function of the item": lambda index, item: files[int(item[0][0])],
        "mapping": dict(enumerate(files)),
        "list": files,
    }[form]
    found = record(tmp_path / "lineage", Memory(), source=source)
    assert found[3] == [("image", str(tmp_path / "3.png")), ("notes", str(tmp_path / "m3.png"))]


def test_a_loader_that_names_none_says_so(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage") as run:
            list(run.loader(DataLoader(Memory()), source={}.__getitem__))
    assert any("source=" in text for text in run.run.warnings)


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Reads pictures in order; with a buffer, others than the one that it gives."""

    def __init__(self, root: Path, buffer: int) -> None:
        self.paths = [picture(root / f"{n}.png", n) for n in range(COUNT)]
        self.buffer = buffer

    def __iter__(self) -> Iterator[Any]:
        kept: list[Any] = []
        for path in self.paths:
            kept.append((np.asarray(Image.open(path)), 0))
            if len(kept) > self.buffer:
                yield kept.pop(random.randrange(len(kept)))
        yield from kept


def test_a_stream_that_reads_in_order(tmp_path: Path) -> None:
    dataset = Stream(tmp_path / "data", 0)
    assert record(tmp_path / "lineage", dataset) == [[(None, str(path))] for path in dataset.paths]


def test_a_stream_that_reads_ahead_has_no_files(tmp_path: Path) -> None:
    assert record(tmp_path / "lineage", Stream(tmp_path / "data", 2)) == [[]] * COUNT
    with audit.open(tmp_path / "lineage") as store:
        sources = store.sql("SELECT source FROM samples ORDER BY index").fetchall()
    assert sources == [(f"dataset://{n}",) for n in range(COUNT)]


def test_the_run_command_records_them_too(tmp_path: Path) -> None:
    (tmp_path / "pipe.py").write_text(
        "from pathlib import Path\nimport numpy as np, torch\nfrom PIL import Image\n"
        "class D:\n"
        "    def __init__(self, root): self.root = Path(root)\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i):\n"
        "        a, b = (np.asarray(Image.open(self.root / f'{k}{i}.png')) for k in 'ab')\n"
        "        return torch.from_numpy(a.copy()), int(b[0, 0, 0] > 9)\n"
        "def dataset(root): return D(root)\n"
    )
    for n in range(2):
        picture(tmp_path / "data" / f"a{n}.png", n)
        picture(tmp_path / "data" / f"b{n}.png", n)
    run = audit.run(dataset=str(tmp_path / "data"), pipeline=str(tmp_path / "pipe.py"), store=str(tmp_path / "lineage"))
    assert run.status == "complete", json.dumps(run.warnings)
    names = [[Path(path).name for _, path in files] for files in sources_of(tmp_path / "lineage")]
    assert names == [["a0.png", "b0.png"], ["a1.png", "b1.png"]]


def test_members_of_a_tar_archive(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shard, pixels = tmp_path / "shard-000.tar", np.zeros((4, 4, 3), np.uint8)
    with webdataset.TarWriter(str(shard)) as writer:
        for n in range(COUNT):
            writer.write({"__key__": f"k{n}", "png": pixels + n, "cls": n % 2})
    dataset = webdataset.WebDataset(str(shard), shardshuffle=False).decode("pil")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage", strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=2, collate_fn=list), label="cls"))
    with audit.open(tmp_path / "lineage") as store:
        found = store.sql("SELECT index, source, root, label FROM samples ORDER BY index").fetchall()
        assert [(n, root, label) for n, _, root, label in found] == [(n, str(tmp_path), n % 2) for n in range(COUNT)]
        assert {Path(source).stem for _, source, *_ in found} == {f"shard-000.tar#k{n}" for n in range(COUNT)}
        roles = store.sql("SELECT role, source FROM sample_sources WHERE index = 1 ORDER BY ordinal").fetchall()
        assert sorted(roles) == [("cls", "shard-000.tar#k1.cls"), ("png", "shard-000.tar#k1.png")]
        assert store.trace(index=2).source_state == "unchanged"
        assert store.trace(index=2).source_states == ["unchanged", "unchanged"]
        shard.write_bytes(shard.read_bytes().replace(b"PNG", b"GNP"))
        assert "changed" in store.trace(index=2).source_states
