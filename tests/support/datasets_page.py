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
from torchvision_packed_datasets import NOT_BUILT, PACKED

PAGE = Path(__file__).parents[2] / "docs" / "DATASETS.md"
_INTRODUCTION = """# Datasets

This page shows what a recording finds in a dataset: its stages, its source files, and whether a replay gives the same values.
Each row of the tables is a test. The test also checks that recording changes neither the items nor the random numbers.

A *stage* is a call that is given a value of the sample (a picture, a tensor, an array or a text) and returns one. These are
not stages: operators (`x / 255`), methods of the value (`image.convert`), and functions written in C that the dataset's code
calls directly (`torch.from_numpy`). To record such a step, put it into a function or method, or use `audit.stage`.

In each process the first item is made with a profile function and a torch function mode, which see operators, assignments to items and
functions in C. What it gives counts as loaded if the dataset holds it (or what it is a row or window of), if a function of a library returned it that was given no other value (`np.load(path)`), or if a function
in C may have read it and nothing changed it since. So `image.rotate(15)` or `np.rot90(array)` before the first stage is reported with its line; `image.convert`, copies and changes of the class are not, as they finish the
loading. All else is reported, also a text, a picture, or an array of two axes or more in the item beside its value, such as a mask that no stage returned. A vector beside the value may be a label: it is not looked at.
If the dataset's own code that ran has branches, this is done again after 1, 2, 4, 8… more items, and then after each 512.

Between these, audit watches for code of the dataset's own that the first item did not run (`sys.monitoring`, from Python 3.12 on): a branch, one side of `a if b else c`,
another method. What ran before costs nothing. Where such code runs, the variables of its function are compared before and after it. A value that is new, and was made of one
that was there or by operators, is reported with the line, even if a single item of millions takes that branch. What a stage does inside is its own. A value that is only
counted or logged, another row that the dataset holds, and another file that is read instead are not changes. Datasets with a `__getitems__` of their own are not watched so: audit says that it does not know the stages of samples
that are made in whole batches. If two recordings of one process watch code, and one of them ends, the other one goes on with its next item whose calls are listed.

Python 3.11 only shows afterwards which code has run for the first time, without its values. There audit reports that a value *may* change in such a line, and does not see: code that ran before
the recording or in about the first dozen items of a process, values in attributes (`self.x = self.x * 2`), and what a method changes that is called for less than eight items.
No version of Python shows it if a tool for coverage or debugging holds what is needed; that is reported, too.

audit reports every change that it did not see as a stage, with the function, file and line: in `runs.unrecorded`, in a
warning at the end of the run, and in the check `stage_coverage`. Run `audit doctor FILE.py:dataset` to see this before a
long run.

The *sources* of a sample are the files that it was read from. audit takes them from the dataset if it names them: torchvision's
`samples`, or a method `source(index)` that returns a path, a list of paths, or a mapping by role. Otherwise it observes which files
are opened while the item is made, also by `cv2.imread` and `torchvision.io`. `run.loader(loader, source=…)` names them from outside:
a function of the index (or of the index and the item), or a mapping by index. All files are in the table `sample_sources`.

What is observed comes before what a list says: if a dataset has a list `samples`, but opens another picture, that picture is the source.
A dataset of your own that wraps another one may take its items in any order, so audit observes which item it asks for: the source is that item's. An item made of
several (a pair, a mix) has the first one's file as its source, or `dataset://N` with its own number if there are no files. Where an item is given instead of
another one that cannot be read, the source is the one that was given.

A source is a path below the dataset's `root`, else below the folder that all files of its list have in common, else below a folder that the dataset holds,
else a file name: so files of one name in several folders are different sources. Where the dataset lists a folder for each sample, as for the frames of a video, it is below the folder of those. A dataset that holds none of these has
only file names as sources; their folders are in `samples.root`, and `audit diff` pairs samples of one name by what was loaded.

The first picture, sound or video that is opened is the source. Any other file (`.npy`, `.pt`, `.txt`, `.json`) may be read for many samples, so it is the source only if it
is known to belong to one: the dataset has a list or table with an entry for each sample that names the file for this index and no other; or the file is one of a list that has at least as many
files as there are samples; or the last number in its name is the index, or the number that a list of the dataset has for the index alone, and there are such files for the first and the last sample, too. That an item
opened one file, and no other item did so far, does not suffice: a later one may, and rows are written meanwhile. Otherwise the file is in `sample_sources`, and the source is `dataset://N`. A dataset that
keeps its items in memory after the first epoch opens no file later: those visits have the source `dataset://N`, unless the dataset names its files.

A file that is opened once and kept open is in `sample_sources` for each sample that reads from it: from a `ZipFile`, a `TarFile`, an `h5py.Dataset` or an `np.memmap` by a
method, from an open file of Python's if its position moved. What is read through other objects that stay open (LMDB, SQLite, `mmap`, video readers) is not seen, and audit says so. On Linux this holds for whatever
holds the file, such as a number of `os.open`, if the file was opened during the recording and is not a picture, sound or video.
Files that are opened in threads belong to the item that starts the threads and joins them, or that the thread makes for a batch; a thread that goes on, or that began before the recording,
may read ahead. A dataset without indexes may read a file for several items. Where audit does not know which samples were read from a file, it says so in `runs.unrecorded` and in a warning, which name the attribute or the file.

A sampler may ask for an item by a tuple, a mapping or a name (`dataset[(index, size)]`): a replay asks for the same. The number of a sample is the key, or the first number of
the tuple; an item with any other key has the number -1, and is known by its source.

A part of a file is named too: a member of a tar archive (`shard.tar#0001.jpg`), or a row of a Parquet or Arrow file (`rows.parquet#7`).
Rows of a Hugging Face dataset on disk have such sources; those of one in memory have the number of their row (`dataset://7`).

A dataset without indexes may run its stages for items that come later: it fills a buffer that it shuffles, or gathers batches. An output is recorded for an item only if the
item holds it. Where stages run several times and the item does not hold what each of them returned, only the item is recorded (as `load`) for this visit and for later ones like it, and
`runs.unrecorded` says so. Put such a transform behind the buffer, or into a collate function.

If a transform runs twice in one visit, each call has its own output: `1` and `1#2`. If code of the dataset's own changes an output afterwards, as `torch.from_numpy(mask)` does, nothing shows that it led to the label: the stage stays `1#2`, and the change is reported. Stages of the label have paths that begin with `target.`, and so have those of a
second and third view of the same form (`(anchor, positive, negative)`): the first view is the model's input.

## Stages outside the dataset

A **collate function** of your own is the stage `batch.collate`: each sample's output is its part of the batch, with the padding. audit compares the batch with the
items: a row is a sample's if it holds the sample's values as they are, in another precision, padded, cut off, or scaled and shifted, and no other sample's. Scaled rows
count only if one factor and one summand for each channel give every value of the whole batch, to the last digits of `float32`. So functions that
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
    classes = "".join(f"{_torchvision_row(case)}\n" for case in [*CASES, *PACKED, *FLOWS])
    missing = "".join(f"- {names}: {reason}.\n" for names, reason in NOT_BUILT.items())
    return f"{_INTRODUCTION}{shapes}{_TORCHVISION}{classes}\nNot tested:\n\n{missing}"


def _torchvision_row(case: Case) -> str:
    files = ", ".join(f"`{name}`" for name in case.sources) or "none: it is kept in memory"
    return f"| {case.name} | {', '.join(case.stages) or '–'} | {files} | identical |"


def _row(shape: Shape) -> str:
    stages = ", ".join(f"{_text(name)} (`{path}`)" for path, name in shape.stages)
    replayed = "in order only" if isinstance(shape.build(), IterableDataset) else "identical"
    return f"| {_text(shape.name)} | {stages or '–'} | {f'`{shape.unseen}`' if shape.unseen else ''} | {replayed} |"


def _text(name: str) -> str:
    return f"`{name}`" if "_" in name or "<" in name else name


if __name__ == "__main__":
    PAGE.write_text(datasets_page(), encoding="utf-8")
