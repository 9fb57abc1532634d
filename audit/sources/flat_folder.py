"""A folder of pictures without labels, with or without folders below it.

It refuses a folder without samples, and says what the folder contains.
"""

from __future__ import annotations

import os
from collections import Counter

from audit.errors import DatasetError
from audit.sources.base import FileDataset, Options
from audit.sources.files import PackedNames, to_printable
from audit.sources.scan import Scan, kinds, scan

description = "a folder of pictures, unlabelled"
runs_no_code = True

_MANIFESTS = (".csv", ".tsv", ".jsonl", ".parquet")


def recognise(spec: str) -> bool:
    """Return whether it is a folder; class folders are recognised first."""
    return os.path.isdir(spec)


def open_source(spec: str, options: Options) -> FileDataset:
    """Return every picture below the folder, unlabelled."""
    found = scan(spec)
    texts = found.texts
    names = PackedNames(name for directory in found.directories for name in directory.names(texts))
    if not names:
        raise empty_folder_error(spec, found)
    return FileDataset(spec, names, options, texts=texts, notes=found.notes())


def empty_folder_error(spec: str, found: Scan) -> DatasetError:
    """Return the error for a folder without samples, with a hint that depends on its content."""
    shown = to_printable(os.fsencode(spec))
    ignored: Counter[bytes] = found.ignored
    if not ignored:
        folders = len(found.directories) - 1
        within = f" but {folders} folders without files" if folders else ""
        hidden = f" ({found.hidden} hidden entries were ignored)" if found.hidden else ""
        return DatasetError(
            f"The folder {shown} contains nothing{within}{hidden}.",
            hint="Put pictures into it, or pass another folder.",
        )
    held = f"{ignored.total()} files, but none that is a picture, an array or a text: {kinds(ignored)}"
    message = f"The folder {shown} holds {held}."
    entries = sorted(os.listdir(spec))
    if "dataset_info.json" in entries or "dataset_dict.json" in entries:
        return DatasetError(message, hint=f"It looks like a saved Hugging Face dataset: did you mean hf:{shown}?")
    manifest = next((name for name in entries if name.lower().endswith(_MANIFESTS)), None)
    if manifest is not None:
        return DatasetError(message, hint=f"Did you mean {to_printable(os.fsencode(os.path.join(spec, manifest)))}?")
    if any(os.fsdecode(ending).lower() in (".heic", ".heif") for ending in ignored):
        return DatasetError(message, hint="Pillow does not read HEIC by itself: convert the pictures to JPEG or PNG.")
    return DatasetError(message, hint="Pass a folder of pictures, or a .py file that builds the Dataset.")
