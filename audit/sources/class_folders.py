"""A folder of class folders: root/<class>/**/picture.

Classes are the folder names in text order, as torchvision sorts them ("1", "10", "2"), and a label is the class's
place in that order. A class without pictures is still a class, else every label after it would move. It refuses a
folder of splits (train/, test/), where each split would become a class.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator

from audit.errors import DatasetError
from audit.sources.base import FileDataset, Options
from audit.sources.decode import TEXT, sample_suffixes
from audit.sources.files import PackedNames, to_printable
from audit.sources.flat_folder import empty_folder_error
from audit.sources.scan import Directory, Scan, is_folder, scan, suffix_of
from audit.split_names import SPLIT_NAMES

description = "a folder of class folders, such as images/cat/1.jpg"
runs_no_code = True


def recognise(spec: str) -> bool:
    """Return whether its folders hold pictures; or texts, if there is no picture at the top."""
    if not os.path.isdir(spec):
        return False
    try:
        top, within = _endings(os.fsencode(spec))
    except OSError:
        return False  # the scan of the flat folder raises the error
    pictures = sample_suffixes()
    return bool(within & pictures) or (not top & pictures and TEXT.encode() in within)


def open_source(spec: str, options: Options) -> FileDataset:
    """Return the labelled pictures of every class folder, in torchvision's order."""
    return arrange(spec, scan(spec), options)


def arrange(spec: str, found: Scan, options: Options, make: Callable[..., FileDataset] = FileDataset) -> FileDataset:
    """Return the dataset of a folder that was already scanned, on disk or in a bucket; `make` builds it."""
    _refuse_splits(spec, found)
    texts = found.texts
    tops = {found_in.top_folder for found_in in found.directories if found_in.path}
    order = {top: label for label, top in enumerate(sorted(tops, key=os.fsdecode))}
    labels = array("q")

    def samples() -> Iterator[bytes]:
        inside = (directory for directory in found.directories if directory.path)
        for directory in sorted(inside, key=lambda directory: (order[directory.top_folder], directory.path)):
            for name in directory.names(texts):
                labels.append(order[directory.top_folder])
                yield name

    names = PackedNames(samples())
    if not names:
        raise empty_folder_error(spec, found)
    notes = [*found.notes(), *_notes(found, order, labels, texts)]
    classes = [to_printable(top) for top in order]
    return make(spec, names, options, labels=labels, classes=classes, texts=texts, notes=notes)


def _notes(found: Scan, order: dict[bytes, int], labels: array[int], texts: bool) -> list[str]:
    notes = []
    filled = set(labels)
    if empty := [to_printable(top) for top, label in order.items() if label not in filled]:
        notes.append(f"These class folders have no pictures, but count as classes: {', '.join(empty)}.")
    if len(order) == 1:
        only = to_printable(next(iter(order)))
        notes.append(
            f"There is one class folder, {only}: every label is 0. If {only} is not a class, pass that folder as the dataset."
        )
    beside = next((sum(1 for _ in d.names(texts)) for d in found.directories if not d.path), 0)
    if beside:
        notes.append(f"{beside} files next to the class folders belong to no class and were left out.")
    return notes


def _refuse_splits(spec: str, found: Scan) -> None:
    """Raise DatasetError for a folder of splits (train/, test/) that each contain class folders."""
    holding: dict[bytes, list[Directory]] = {}
    for directory in found.directories:
        if directory.path and (directory.samples or directory.texts):
            holding.setdefault(directory.top_folder, []).append(directory)
    nested = all(directory.path != top for top, inside in holding.items() for directory in inside)
    splits = [name for name in SPLIT_NAMES for top in sorted(holding) if os.fsdecode(top).lower() == name]
    if not nested or not splits:
        return
    tops = [to_printable(top) for top in sorted(holding)]
    chosen = next(to_printable(top) for top in sorted(holding) if os.fsdecode(top).lower() == splits[0])
    raise DatasetError(
        f"The folder {to_printable(os.fsencode(spec))} contains splits instead of classes: {', '.join(tops)}.",
        hint=f"Did you mean {to_printable(os.fsencode(os.path.join(spec, chosen)))}?",
    )


def _endings(root: bytes) -> tuple[set[bytes], set[bytes]]:
    """Return the endings of the files at the top of the folder, and of those in its folders until a picture is found."""
    top: set[bytes] = set()
    within: set[bytes] = set()
    seen: set[tuple[int, int]] = set()
    pending = [root]
    while pending and not within & sample_suffixes():
        path = pending.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                if not is_folder(entry):
                    (top if path == root else within).add(suffix_of(entry.name))
                elif (identity := _identity(entry)) not in seen:
                    seen.add(identity)
                    pending.append(entry.path)
    return top, within


def _identity(entry: os.DirEntry[bytes]) -> tuple[int, int]:
    status = entry.stat()
    return status.st_dev, status.st_ino
