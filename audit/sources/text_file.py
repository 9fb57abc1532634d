"""A .txt file with one text on each line, unlabelled.

An empty line is an empty text, so that a sample's index is its line number less one. Bytes that are not UTF-8 fail
for their own line only.
"""

from __future__ import annotations

import os

from audit.errors import DatasetError
from audit.sources.base import Options, TextDataset
from audit.sources.files import PackedNames, read_file, to_printable

description = "a .txt file with one text per line"
runs_no_code = True


def recognise(spec: str) -> bool:
    """Return whether it is a file that ends in .txt."""
    return spec.lower().endswith(".txt") and os.path.isfile(spec)


def open_source(spec: str, options: Options) -> TextDataset:
    """Return one sample for each line."""
    shown = to_printable(os.fsencode(spec))
    try:
        data = read_file(os.fsencode(spec)).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DatasetError(
            f"The text file {shown} cannot be read: {error.strerror}.", hint="Make it readable."
        ) from error
    if not data:
        raise DatasetError(f"The text file {shown} is empty.", hint="Put one text on each line.")
    lines = data.removesuffix(b"\n").split(b"\n")
    return TextDataset(spec, PackedNames(line.removesuffix(b"\r") for line in lines), options)
