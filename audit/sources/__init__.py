"""The kinds of dataset that `--dataset` accepts, one file for each, which begins with what it opens. `SOURCES` below lists them.

    base              FileDataset, Source, and the table of kinds
    annotated_pictures, manifest_tables   what several kinds share
    scan              what is in a folder
    files             names as bytes and as text, bytes of a file
    decode            bytes to picture, array, text
    builder           functions that build a dataset, for a replay
    trust             whose code may run
    absolute_names    names that mean the same in another folder

A plugin adds a kind with an entry point in the group `audit.sources`: a module, or an object, with the names of
`DatasetKind`. Nothing here imports torch before a kind that needs it is opened.
"""

from __future__ import annotations

import os
from typing import Any

from audit.errors import DatasetError
from audit.sources import (
    class_folders,
    coco,
    flat_folder,
    huggingface,
    manifest,
    mask_folders,
    python,
    remote,
    tensors,
    text_file,
    torchvision_named,
    voc,
    yolo,
)
from audit.sources.base import (
    SOURCES,
    DatasetKind,
    FileDataset,
    Options,
    Source,
    TextDataset,
    Transform,
    dataset_digest,
    recognise_dataset,
)
from audit.sources.decode import sample_suffixes
from audit.sources.files import missing_path, to_printable

__all__ = [
    "SOURCES",
    "DatasetKind",
    "FileDataset",
    "Options",
    "Source",
    "TextDataset",
    "dataset_digest",
    "open_dataset",
]

# In the order of recognition: kinds with a prefix first, and the flat folder after the class folders.
SOURCES.add("torchvision", torchvision_named)
SOURCES.add("hf", huggingface)
SOURCES.add("coco", coco)
SOURCES.add("voc", voc)
SOURCES.add("yolo", yolo)
SOURCES.add("masks", mask_folders)
SOURCES.add("remote", remote)
SOURCES.add("class-folders", class_folders)
SOURCES.add("flat-folder", flat_folder)
SOURCES.add("manifest", manifest)
SOURCES.add("text-file", text_file)
SOURCES.add("tensors", tensors)
SOURCES.add("python", python)


def open_dataset(
    spec: str | os.PathLike[str],
    *,
    transform: Transform | None = None,
    target_transform: Transform | None = None,
) -> Any:
    """Return the map-style dataset that `spec` names; raise DatasetError with a hint if it cannot be used.

    Pictures come in their own mode.
    """
    text, found = recognise_dataset(os.fspath(spec))
    if not text:
        raise DatasetError(
            "The dataset's name is empty.", hint="Pass a folder, a manifest, or another kind of dataset."
        )
    if "\0" in text:
        raise DatasetError(
            "The dataset's name contains a NUL byte, which no path can have.", hint="Check how the name is built."
        )
    options = Options(transform, target_transform)
    if found is not None:
        return found.open_source(text, options)
    if not os.path.exists(text):
        if "://" in text:  # an address that may hold a password: refused without repeating it
            return remote.open_source(text, options)
        raise missing_path(text)
    if os.fsencode(os.path.splitext(text)[1].lower()) in sample_suffixes():
        folder = os.path.dirname(text) or "."
        raise DatasetError(
            f"{to_printable(os.fsencode(text))} is a single sample, not a dataset.",
            hint=f"Pass its folder ({to_printable(os.fsencode(folder))}), or a .csv file with a column path.",
        )
    taken = "; ".join(candidate.description for candidate in SOURCES.values())
    raise DatasetError(
        f"{to_printable(os.fsencode(text))} is not a known kind of dataset.",
        hint=f"Pass one of: {taken}.",
    )
