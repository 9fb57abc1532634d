"""Writes docs/DATASETS.md from the datasets that test_calls.py and test_torchvision_datasets.py record and replay.

PYTHONPATH=tests/support python tests/support/datasets_page.py
"""

from __future__ import annotations

from pathlib import Path

from dataset_shapes import SHAPES, Shape
from further_shapes import FURTHER
from torch.utils.data import IterableDataset
from torchvision_datasets import CASES, Case
from torchvision_flow_datasets import FLOWS
from torchvision_packed_datasets import NOT_BUILT, PACKED_DATASETS

PAGE = Path(__file__).parents[2] / "docs" / "DATASETS.md"
_INTRODUCTION = """# Datasets

This page shows what a recording finds in a dataset: its stages, its source files, and whether a replay gives the same values.
Each row of the tables is a test. The test also checks that recording changes neither the items nor the random numbers.

Run `audit doctor FILE.py:dataset` to see what a recording will hold, and what it will miss, before a long run.

## Stages

A *stage* is a call that is given a value of the sample (a picture, a tensor, an array or a text) and returns one. These are
not stages:

- operators (`x / 255`),
- methods of the value (`image.rotate`),
- functions written in C that the dataset's code calls directly (`torch.from_numpy`).

To record such a step, put it into a function or method, or use `audit.stage`.

If a transform runs twice in one visit, each call has its own output. Their paths are `1` and `1#2`. Stages of the label have paths that begin with
`target.`, and so have those of a second and third view of the same form (`(anchor, positive, negative)`): the first view is the model's input. If the
dataset's own code changes an output afterwards, as `torch.from_numpy(mask)` does, nothing shows that the output led to the label: its path stays `1#2`,
and the change is reported.

### Changes that are not stages are reported

audit reports every change of a value that it saw, and that no stage explains, with the function, file and line: in `runs.unrecorded`, in a
warning at the end of the run, and in the check `stage_coverage`.

In each process the first item is observed more closely (with `sys.setprofile` and a `TorchFunctionMode`), so that audit also sees operators,
`x[i] = …` and C functions. A value counts as loaded, and not as changed, in these cases:

- the dataset holds it, or it is a row or slice of a value that the dataset holds;
- a function of a library returned it that was given no other value (`np.load(path)`);
- a C function may have read it, and nothing changed it since;
- `image.convert`, a copy or a change of the class finished the loading.

All else is reported: `image.rotate(15)` or `np.rot90(array)` before the first stage, and a text, a picture, or an array of two axes or more that is in the
item beside its value, such as a mask that no stage returned. A vector beside the value may be a label, so it is not looked at.

If the dataset's own code has branches, audit observes more items in this way: after 1, 2, 4, 8… more items, and later after every 512 items.

Between these items, audit watches for code of the dataset that the first item did not run: a branch, one side of `a if b else c`, another method.
From Python 3.12 on it uses `sys.monitoring`, which costs nothing for code that ran before. Where new code runs, audit compares the variables of its function
before and after it. A new value that was made of an old one, or by operators, is reported with the line, even if one item of millions takes that
branch. Not reported: what happens inside a stage, a value that is only counted or logged, another row that the dataset holds, another file that is
read instead.

What this watching does not see:

- **Python 3.11** shows only afterwards that code has run for the first time, without its values. audit then reports that a value *may* change in this line.
  It does not see code that ran before the recording or in about the first dozen items of a process, values in attributes (`self.x = self.x * 2`), and what a method
  changes that is called for fewer than eight items.
- **`__getitems__` of your own:** its code is not watched. If it makes samples in whole batches, audit says that it does not know their stages.
- **Another thread** that makes the items, as for the buffer of Hugging Face's `IterableDataset.shuffle`: its calls are not observed. This is reported.
- **Another tool**, such as a debugger or a coverage tool, may already use what is needed. This is reported.
- If two recordings of one process watch code, and one of them ends, the other goes on at the next item that is observed closely.

### Datasets without indexes

A dataset without indexes may run its stages for items that come later: it fills a buffer that it shuffles, or gathers batches. An output is recorded for an
item only if the item contains it. Otherwise only the item is recorded (as `load`), for this visit and for later ones like it, and `runs.unrecorded` says so.
Put such a transform after the buffer, or into a collate function.

## Source files

The *sources* of a sample are the files that it was read from. All of them are in the table `sample_sources`; the first is `samples.source`. audit knows them in three ways:

1. The dataset names them: torchvision's `samples`, or a method `source(index)` that returns a path, a list of paths, or a mapping by role.
2. You name them: `run.loader(loader, source=…)` takes a function of the index (or of the index and the item), or a mapping by index.
3. audit observes which files are opened while the item is made, also by `cv2.imread`, `cv2.VideoCapture`, `torchvision.io`,
   `pyarrow` (Parquet, Feather, CSV), `load_file` and `safe_open` of safetensors, `sqlite3.connect` and `lmdb.open`. A package that an item imports first is observed from then on.

Observed files have priority over lists: if a dataset has a list `samples` but opens another picture, that picture is the source. A
dataset of your own may wrap another one and take its items in any order: the source is that of the item it asked for. An item made of several (a pair, a mix)
has the first one's file as its source, or `dataset://N` with its own number if there are no files. If the dataset returns a replacement for an item
that cannot be read, the source is the replacement's file.

The source is written as a path below the first of these folders that there is:

1. the dataset's `root`,
2. the folder that all files of its list have in common (or, if it lists a folder for each sample, as for the frames of a video, all those folders),
3. a folder that the dataset holds.

A dataset that holds none of these has only file names as sources. Their folders are in `samples.root`, and `audit diff` pairs samples of one name by what was loaded.

The first picture, sound or video that is opened is the source. Any other file (`.npy`, `.pt`, `.txt`, `.json`) may be read for many samples. It is the source only if one
of these shows that it belongs to one sample:

1. the dataset has a list or table with an entry for each sample, which names the file for this index and no other;
2. the file is one of a list that has at least as many files as there are samples;
3. the last number in its name is the index, or the number that a list of the dataset has for this index alone, and there are such files for the first and the last sample, too.

Otherwise the file is in `sample_sources`, and the source is `dataset://N`. That only one item has opened a file so far does not suffice: a later
item may open it, and rows are written meanwhile. A dataset that keeps its items in memory after the first epoch opens no file later: those visits have the
source `dataset://N`, unless the dataset names its files.

Files that stay open, and threads:

- A file that is opened once and kept open is in `sample_sources` for each sample that reads from it by a method of a `ZipFile`, a `TarFile`, an `h5py.Dataset`
  or an `np.memmap`, or from an open file of Python's whose position moved.
- What is read through other objects that stay open (LMDB, SQLite, `mmap`, video readers) is not seen, and audit says so. On Linux it notices any file that was opened during the
  recording and stays open, unless it is a picture, sound or video.
- If `pyarrow.parquet.read_table` is given a folder and no `filters`, all its files are sources. Which files of a folder `pyarrow.dataset` reads, or `read_table`
  with `filters`, is not seen, and audit says so.
- A file that a thread opens belongs to the item that starts the thread and waits for its end, or to the item that the thread makes. Other threads, such as
  those of a pool that began before the recording, may read ahead for later items.
- A dataset without indexes may read a file for several items.

If audit does not know which samples were read from a file, it says so in `runs.unrecorded` and in a warning, which name the attribute or the file.

A part of a file is named too: a member of a tar archive (`shard.tar#0001.jpg`), or a row of a Parquet or Arrow file (`rows.parquet#7`).
A row of a Hugging Face dataset that names files for its pictures, sounds or videos has these files as its sources. Other rows of one on disk have a source such
as `rows.arrow#7`; those of one in memory have the number of their row (`dataset://7`).

A sampler may ask for an item by a tuple, a mapping or a name (`dataset[(index, size)]`): a replay asks for the same. The number of a sample is the key, or the first number of
the tuple; an item with any other key has the number -1, and is known by its source.

## Stages outside the dataset

A **collate function** of your own is the stage `batch.collate`: each sample's output is its part of the batch, with the padding. audit compares the batch with the
items. It assigns a row to a sample if the row contains the values of this sample, and of no other: unchanged, in another precision, padded, cut off, or scaled and shifted. Scaled rows
count only if one factor and one offset for each channel give every value of the whole batch, to the last digits of `float32`. So functions that
sort, drop, stack, pad or normalise are recorded truthfully, and so are torchvision's MixUp and CutMix in a collate function. `list` and `zip` are not stages, nor is torch's own `default_collate`.

A function that changes the values in another way (it tokenises text, masks tokens, or mixes samples by code of its own) leaves nothing to compare. audit then stores neither its output nor
predictions for its batches: `runs.unrecorded`, a warning and `calls.reason` name the function. If row n of the batch is sample n, say so: put `@audit.stage` above the function, or give
`collate_fn=audit.stage(collator)`.

A **transform of whole batches** after the loader (torchvision's v2 or kornia on tensors) is recorded if you name it:

<!-- not run: a part of a loop -->
```python
augment = run.stage(kornia.augmentation.RandomHorizontalFlip())
for x, y in loader:
    logits = model(augment(x))
```

Its path is `batch.NAME`. `run.stage` says that row n of its output is the sample in row n of its input. If audit cannot tell which samples a call was given, it stores nothing for it and
says so in `runs.unrecorded`. Outputs of these stages depend on the other samples of the batch: `audit replay` makes single samples, so it lists these outputs under `not_compared`.

## Where a dataset may keep its transforms

These are recorded in a loop of your own (`run.loader`, `run.dataset`). The first stage is always `load`.

| shape | stages (path) | not seen | replay |
| --- | --- | --- | --- |
"""
_TORCHVISION = """
## Datasets of torchvision

Each is built from a few small files, with `transform=ToTensor()` where it takes one. Files are those of one sample; the first is its source.

| class | stages | files | replay |
| --- | --- | --- | --- |
"""


def datasets_page() -> str:
    """Return the whole page."""
    shapes = "".join(f"{_row(shape)}\n" for shape in [*SHAPES, *FURTHER])
    classes = "".join(f"{_torchvision_row(case)}\n" for case in [*CASES, *PACKED_DATASETS, *FLOWS])
    missing = "".join(f"- {names}: {reason}.\n" for names, reason in NOT_BUILT.items())
    return f"{_INTRODUCTION}{shapes}{_TORCHVISION}{classes}\nNot tested:\n\n{missing}"


def _torchvision_row(case: Case) -> str:
    unseen = f"not seen; the run says that `{case.reported.partition(' ')[0]}` stays open" if case.reported else ""
    files = ", ".join(f"`{name}`" for name in case.sources) or unseen or "none: it is kept in memory"
    return f"| {case.name} | {', '.join(case.stages) or '–'} | {files} | identical |"


def _row(shape: Shape) -> str:
    stages = ", ".join(f"{_text(name)} (`{path}`)" for path, name in shape.stages)
    replayed = "in order only" if isinstance(shape.build(), IterableDataset) else "identical"
    return f"| {_text(shape.name)} | {stages or '–'} | {f'`{shape.unseen}`' if shape.unseen else ''} | {replayed} |"


def _text(name: str) -> str:
    return f"`{name}`" if "_" in name or "<" in name else name


if __name__ == "__main__":
    PAGE.write_text(datasets_page(), encoding="utf-8")
