"""Operators in a dataset's own code are not calls: what they change is reported all the same."""

from __future__ import annotations

import array
import functools
import itertools
import json
import pickle
import queue
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import sqrt
from PIL import Image, ImageEnhance
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import audit
from audit.recorders.calls.callables import is_library_file
from audit.recorders.calls.unseen_changes import UnseenChanges

VOWELS = re.compile("[aeiou]")


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.rows = torch.arange(48.0).reshape(4, 12)
        self.array = np.arange(48.0).reshape(4, 12)
        self.listed = list(self.rows.clone().unbind())
        self.tf = nn.Flatten(0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make(index), index % 2

    def make(self, index: int) -> Any:
        return self.rows[index]


class Scaled(Rows):
    def make(self, index: int) -> Any:
        return self.rows[index] / 255 - 0.5


class ScaledArray(Rows):
    def make(self, index: int) -> Any:
        x = self.array[index]
        x = x / 255
        return -x


class ScaledBefore(Rows):
    def make(self, index: int) -> Any:
        return self.tf((self.rows[index] / 255)[None])


class ScaledAfter(Rows):
    def make(self, index: int) -> Any:
        return self.tf(self.rows[index][None]) * 2


class Listed(Rows):
    def make(self, index: int) -> Any:
        return self.listed[index + 1 - 1]


class Stacked(Rows):
    def make(self, index: int) -> Any:
        return torch.full((3,), float(index) * 2)


def unrecorded(store: Path, dataset: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=2)))
    return list(run.run.unrecorded or [])


@pytest.mark.parametrize(
    ("dataset", "what", "line"),
    [
        (Scaled, "`load` is the finished item", "return self.rows[index] / 255"),
        (ScaledArray, "`load` is the finished item", "x = x / 255"),
        (ScaledBefore, "before the first stage", "return self.tf((self.rows[index] / 255)"),
        (ScaledAfter, "and the item", ".tf(self.rows[index][None]) * 2"),
    ],
)
def test_operators_are_reported(dataset: Any, what: str, line: str, tmp_path: Path) -> None:
    (text,) = unrecorded(tmp_path / "lineage", dataset())
    number = next(n for n, found in enumerate(Path(__file__).read_text().splitlines(), 1) if line in found)
    assert what in text
    assert f"operators (line {number}" in text
    assert f"{dataset.__name__}.make" in text
    with audit.open(tmp_path / "lineage") as store:
        found = store.check()
        assert found.outcome("stage_coverage").status == "fail"


@pytest.mark.parametrize(
    "dataset", [Rows(), Listed(), Stacked(), TensorDataset(torch.rand(4, 2), torch.zeros(4).long())]
)
def test_what_was_not_changed_is_not_reported(dataset: Any, tmp_path: Path) -> None:
    assert unrecorded(tmp_path / "lineage", dataset) == []


@pytest.mark.parametrize(
    ("path", "is_library"),
    [
        (json.__file__, True),
        (torch.__file__, True),
        ("/home/somebody/.local/lib/python3.11/site-packages/lib.py", True),
        ("/usr/lib/python3/dist-packages/lib.py", True),
        ("/home/somebody/project/lib.py", False),
    ],
)
def test_installed_packages_are_libraries_wherever_they_are(path: str, is_library: bool) -> None:
    assert is_library_file(path) is is_library


def test_the_run_command_tells_it_too(tmp_path: Path) -> None:
    (tmp_path / "pipe.py").write_text(
        "import torch\nclass D:\n    x = torch.ones(2, 3)\n    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return self.x[i] * 3, i\ndef dataset(root): return D()\n"
    )
    run = audit.run(dataset=str(tmp_path), pipeline=str(tmp_path / "pipe.py"), store=str(tmp_path / "lineage"))
    assert "operators (line 5)" in (run.unrecorded or [""])[0]


class Made(Rows):
    """Makes items by one of many ways, none of which is a call that audit can observe."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.grid = torch.arange(48.0).reshape(4, 3, 4)
        self.lists = self.array.tolist()
        self.records = [{"values": row} for row in self.lists]
        self.pickles = [pickle.dumps(row) for row in self.array]
        self.texts = [f"Some words, number {n}" for n in range(4)]
        self.pictures = [Image.new("RGB", (6, 6), (n * 20, 9, 9)) for n in range(4)]

    def __getitem__(self, index: int) -> Any:
        return WAYS[self.how](self, index), index % 2


def assign(row: Any) -> Any:
    x = torch.tensor(row)
    x[2:4] = 0
    return x


def multiply(row: Any) -> Any:
    x = torch.tensor(row)
    x *= 2
    return x


def assign_given(x: Any) -> Any:
    x[2:4] = 0
    return x


def add_in_place(dataset: Any, index: int) -> Any:
    x = dataset.array[index]
    x += 1
    return x


def first_line() -> str:
    with Path(f"{Path(__file__).parent}/{Path(__file__).name}").open() as file:
        return file.readline()


def fill_by_hand() -> Any:
    x = np.zeros(4)
    x[2] = 1
    return x


WAYS: dict[str, Any] = {
    "list": lambda self, n: torch.tensor(self.lists[n]) * 2,
    "listed numbers": lambda self, n: torch.tensor([v / 255 for v in self.lists[n]]),
    "part of a list": lambda self, n: torch.tensor(self.lists[n][::-1]),
    "dict": lambda self, n: torch.tensor(self.records[n]["values"]) + 1,
    "letters": lambda self, n: torch.tensor([ord(letter) for letter in self.texts[n]]),
    "words": lambda self, n: torch.tensor([len(word) for word in self.texts[n].split()]),
    "text": lambda self, n: self.texts[n].lower(),
    "array of a list": lambda self, n: np.array(self.lists[n]) * 2,
    "number": lambda self, n: np.float32(self.lists[n][0]) * 2,
    "assigned": lambda self, n: assign(self.lists[n]),
    "multiplied": lambda self, n: multiply(self.lists[n]),
    "zeros": lambda self, n: fill_by_hand(),
    "held array": lambda self, n: add_in_place(self, n),
    "universal function": lambda self, n: np.sqrt(self.array[n]),
    "imported universal function": lambda self, n: sqrt(self.array[n]),
    "universal function of a list": lambda self, n: np.log1p(self.lists[n]),
    "mask": lambda self, n: self.array[n][self.array[n] > 3],
    "mask of a tensor": lambda self, n: self.rows[n][self.rows[n] > 3],
    "comparison": lambda self, n: self.array[n] > 3,
    "where": lambda self, n: np.where(self.array[n] > 3, 0, self.array[n]),
    "enhanced picture": lambda self, n: ImageEnhance.Brightness(self.pictures[n]).enhance(2.0),
    "nested": lambda self, n: {"a": self.rows[n], "b": [torch.tensor(self.lists[n]) * 2]},
    "stacked numbers": lambda self, n: np.stack([v * 2 for v in self.array[n]]),
    "joined by r_": lambda self, n: np.r_[self.array[n], 1.0],
    "vectorised": lambda self, n: np.vectorize(lambda v: v * 2)(self.array[n]),
    "constructor of a tensor": lambda self, n: torch.Tensor([v * 2 for v in self.lists[n]]),
    "tensor of a new array": lambda self, n: torch.tensor(self.array[n] * 2),
    "tensor of an array of Python": lambda self, n: torch.tensor(array.array("f", [v * 2 for v in self.lists[n]])),
    "list of numbers": lambda self, n: [v * 2 for v in self.lists[n]],
    "mapped list": lambda self, n: list(map(float.hex, self.lists[n])),
    "list of an array": lambda self, n: (self.array[n] * 2).tolist(),
    "list of codes": lambda self, n: [ord(letter) for letter in self.texts[n]],
    "list of codes of a file": lambda self, n: [ord(letter) for letter in first_line()],
    "dict of tokens": lambda self, n: {"ids": [len(word) for word in self.texts[n].split()]},
    "chosen by a list": lambda self, n: self.array[n][[3, 2, 1]],
    "turned by a slice": lambda self, n: self.array[n][::-1],
    "cut by slices": lambda self, n: self.grid[n, 1:, 1:],
    "text of parts": lambda self, n: f"a photo of {self.texts[n]}",
    "text by percent": lambda self, n: "a photo of %s" % self.texts[n],  # noqa: UP031
    "text by format": lambda self, n: "a photo of {}".format(self.texts[n]),  # noqa: UP032
    "joined texts": lambda self, n: self.texts[n] + " and more",
    "part of a text": lambda self, n: self.texts[n][::-1],
    "text by a pattern": lambda self, n: VOWELS.sub("_", self.texts[n]),
    "bytes of a text": lambda self, n: self.texts[n].encode(),
}


@pytest.mark.parametrize("how", WAYS)
def test_values_that_the_items_code_makes_are_reported(how: str, tmp_path: Path) -> None:
    dataset = Made(how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path, strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=None, collate_fn=lambda item: item)))
    (text,) = run.run.unrecorded or [""]
    assert "`load` is the finished item" in text
    assert "test_operators.py" in text


def labelled(dataset: Made, index: int) -> Any:
    x = torch.tensor(dataset.lists[index])
    label = index - 1
    assert label < 4
    return x


RAW: dict[str, Any] = {
    "held list": lambda self, n: torch.tensor(self.lists[n]),
    "list in a dict": lambda self, n: torch.tensor(self.records[n]["values"]),
    "numbers for the label": labelled,
    "random": lambda self, n: torch.randn(3),
    "generated": lambda self, n: torch.arange(3) + 10 * n,
    "a stage that changes its input": lambda self, n: assign_given(torch.tensor(self.lists[n])),
    "a stage that changes its array": lambda self, n: assign_given(np.full(6, n)),
    "text": lambda self, n: self.texts[n],
    "picture": lambda self, n: self.pictures[n],
    "dict": lambda self, n: {"a": self.rows[n], "b": self.texts[n]},
    "list": lambda self, n: self.lists[n],
    "listed columns": lambda self, n: [self.lists[n][0], self.lists[n][2]],
    "row": lambda self, n: self.array[n],
    "window": lambda self, n: self.array[:, n : n + 3],
    "window of a tensor": lambda self, n: self.rows[n : n + 2],
    "column": lambda self, n: self.grid[:, n % 3, 1],
    "line of a file": lambda self, n: first_line(),
    "random array": lambda self, n: np.random.rand(3),
    "random generator": lambda self, n: np.random.default_rng(n).normal(size=3),
    "pickled array": lambda self, n: pickle.loads(self.pickles[n]),
    "names beside a picture": lambda self, n: {"x": self.pictures[n], "name": f"{n}.png", "size": [6, 6]},
}


@pytest.mark.parametrize("how", RAW)
def test_values_that_the_dataset_holds_are_not_reported(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WAYS, how, RAW[how])
    dataset = Made(how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path, strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=None, collate_fn=lambda item: item)))
    assert run.run.unrecorded == []


class Prefetched(Dataset):  # type: ignore[type-arg]
    """Items that a thread makes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if self.kind == "future":
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lambda: torch.full((3,), index / 2)).result(), index % 2
        waiting: Any = queue.SimpleQueue() if self.kind == "simple" else queue.Queue()
        threading.Thread(target=lambda: waiting.put(torch.full((3,), index / 2))).start()
        return waiting.get(), index % 2


@pytest.mark.parametrize("kind", ["queue", "simple", "future"])
def test_what_another_thread_made_is_said(kind: str, tmp_path: Path) -> None:
    (text,) = unrecorded(tmp_path, Prefetched(kind))
    assert "which waits for another thread" in text
    assert "Prefetched.__getitem__" in text


class Mosaic(Rows):
    """Joins two values, each of which a stage made."""

    def make(self, index: int) -> Any:
        return torch.cat([self.tf(self.rows[index][None]), self.tf(self.rows[index - 1][None])])


def test_a_second_value_is_not_called_a_change_of_the_first(tmp_path: Path) -> None:
    texts = unrecorded(tmp_path, Mosaic())
    assert not any("changes between call.tf and call.tf#2" in text for text in texts)
    assert any("the value changes between call.tf#2 (Flatten) and the item" in text for text in texts)
    assert any("call.tf#2 was given a value that no stage returned, after call.tf" in text for text in texts)


class Later(Rows):
    """Takes another branch from its fourth item on."""

    def __len__(self) -> int:
        return 8

    def make(self, index: int) -> Any:
        row = self.rows[index % 4]
        if index >= 3:
            row = row * 2
        return row


class LaterArray(Later):
    def make(self, index: int) -> Any:
        row = self.array[index % 4]
        return row if index < 3 else np.flip(row).copy()


class LaterBefore(Later):
    def make(self, index: int) -> Any:
        return self.tf(super().make(index)[None])


class Failing(Later):
    """A stage that fails, where the dataset's own code does something else instead."""

    def crop(self, row: Any) -> Any:
        if row[0] > 12:
            raise ValueError("too large")
        return row[:6]

    def make(self, index: int) -> Any:
        row = self.rows[index % 4]
        try:
            row = self.crop(row)
        except ValueError:
            row = row[6:] - 1
        return self.tf(row[None])


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *((Later, "no stage was seen"), (LaterArray, "no stage was seen"), (LaterBefore, "before the first stage")),
        (Failing, "call.tf was given a value that no stage returned, after load"),
    ],
)
def test_a_branch_that_a_later_item_takes_is_reported(kind: Any, what: str, tmp_path: Path) -> None:
    assert any(what in text and "test_operators.py" in text for text in unrecorded(tmp_path / "lineage", kind()))


class Texts(Rows):
    """Gives two texts, of which it may change the second."""

    form: Any = None

    def __init__(self) -> None:
        self.first = [f"the first text {n}" for n in range(4)]
        self.second = [f"the second text {n}" for n in range(4)]

    def __getitem__(self, index: int) -> Any:
        return type(self).form(self.first[index], self.second[index])


@pytest.mark.parametrize(
    ("make", "is_reported"),
    [
        (lambda self, n: {"text": self.first[n], "context": self.second[n].upper()}, True),
        (lambda self, n: {"text": self.first[n], "context": self.second[n] + " and more"}, True),
        (lambda self, n: (self.first[n], self.second[n].replace("second", "other"), 1), True),
        (lambda self, n: {"text": self.first[n], "context": self.second[n]}, False),
        (lambda self, n: (self.first[n], self.second[n], 1), False),
    ],
)
def test_a_second_text_that_is_changed_is_reported(make: Any, is_reported: bool, tmp_path: Path) -> None:
    kind = type("Texts", (Texts,), {"__getitem__": make})
    texts = unrecorded(tmp_path / "lineage", kind())
    assert any("a text of the item was changed" in text for text in texts) == is_reported, texts


@pytest.mark.parametrize(
    "form",
    [
        lambda a, b: {"text": a, "context": b.upper()},
        lambda a, b: {"text": a, "context": b + " and more"},
        lambda a, b: (a, b.replace("second", "other"), 1),
        lambda a, b: {"text": a, "context": b},
        lambda a, b: (a, b, 1),
    ],
)
def test_a_second_text_that_a_stage_returned_is_not_reported(form: Any, tmp_path: Path) -> None:
    kind = type("Texts", (Texts,), {"form": staticmethod(form)})
    assert unrecorded(tmp_path / "lineage", kind()) == []
    with audit.open(tmp_path / "lineage") as store:
        assert ("<lambda>",) in store.sql("SELECT name FROM stages").fetchall()


class Branching(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.values = torch.arange(6.0).reshape(3, 2)

    def __getitem__(self, index: int) -> Any:
        return self.values[index % 3] * 2 if index > 1100 else self.values[index % 3]


def test_branches_are_looked_for_again_and_again() -> None:
    dataset = Branching()
    changes = UnseenChanges(dataset)
    listed = []
    for index in range(1700):
        make = functools.partial(dataset.__getitem__, index)
        if not changes.is_listed:
            listed.append(index)
        value = make() if changes.is_listed else changes.run(make)
        changes.add_visit(value, value, [], is_load_only=True)
    assert listed[:5] == [0, 2, 5, 10, 19]
    assert max(after - before for before, after in itertools.pairwise(listed)) == 513
    (sentence,) = changes.take()
    assert "operators" in sentence


def cut(x: Any) -> Any:
    return x[1:].contiguous().abs()


class Partly(Dataset):  # type: ignore[type-arg]
    """A function in C that a partial calls is not seen; the method that calls it is named."""

    scale = staticmethod(functools.partial(torch.mul, other=2.0))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.scale(cut(torch.full((3,), float(index)))), index


def test_the_method_that_makes_the_items_is_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="did not see every change"), audit.record(tmp_path / "lineage") as run:
        list(run.loader(DataLoader(Partly())))
    assert any("between call.cut" in text and "Partly.__getitem__ (" in text for text in run.run.unrecorded or [])
