"""Decides whether a file that was read for a sample belongs to that sample alone, from lists of the dataset or from the file's name.

A file may be read for every sample. It identifies one only if the dataset lists it for the index, if it is one of a list that has at
least as many files as there are samples, or if its name is the index and there is such a file for each sample.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from audit.recorders.calls.callables import dict_of

_MOST_ENTRIES = 200_000
_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_MOST_LISTS = 32
_MOST_FOLDERS = 8


class _ListedNames(NamedTuple):
    """The texts of a list."""

    held: Any
    length: int
    #: How often each occurs.
    counts: dict[str, int]
    #: By the stems of file names in them; None for a stem of several.
    by_stem: dict[str, str | None]
    #: The least and the greatest of the absolute paths among them: what both begin with, all do.
    ends: list[str]


#: By the id of a list, what was in it when it was looked at.
_known: dict[int, _ListedNames] = {}


def is_of_one_sample(dataset: Any, index: int, path: str) -> bool:
    """Return whether a file is that of one sample, which has this index in the dataset."""
    return is_listed(dataset, index, path) or _is_among_files(dataset, path) or _is_numbered(dataset, index, path)


def is_listed(dataset: Any, index: int, path: str) -> bool:
    """Return whether a list of the dataset, with one entry for each sample, names the path for this index and no other."""
    count = _length_of(dataset)
    if not 0 <= index < count:
        return False
    return any(_names_path(held, index, path) for held in _lists_of(dataset) if len(held) == count)


def folder_of(dataset: Any, path: str) -> str | None:
    """Return the folder below which the dataset has its files, if it names this one: files in two folders may have one name."""
    for held in _lists_of(dataset):
        names = _names_in(held)
        if path in names.counts:
            return os.path.commonpath([os.path.dirname(end) for end in names.ends])
        parts = path.split(os.sep)
        for place in range(len(parts) - 2, max(len(parts) - _MOST_FOLDERS, 1), -1):
            if os.sep.join(parts[place:]) in names.counts:
                return os.sep.join(parts[:place])
        for place in range(len(parts) - 1, max(len(parts) - _MOST_FOLDERS, 1), -1):
            # The folder of a sample, such as one with the frames of a video.
            if os.sep.join(parts[:place]) in names.counts:
                return os.path.commonpath([os.path.dirname(end) for end in names.ends])
    folders = (os.fsdecode(held) for held in dict_of(dataset).values() if isinstance(held, (str, os.PathLike)))
    return min((folder for folder in folders if folder and _is_below(path, folder)), key=len, default=None)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, "")) or (
        not folder.startswith(os.sep) and path.startswith(os.path.join(os.path.abspath(folder), ""))
    )


def _is_among_files(dataset: Any, path: str) -> bool:
    """Return whether the dataset has a list of files, no fewer than samples, in which this one occurs once."""
    count = _length_of(dataset)
    return count > 1 and any(
        _has_file(_names_in(held).by_stem, path) for held in _lists_of(dataset) if len(held) >= count
    )


def _has_file(names: Mapping[str, str | None], path: str) -> bool:
    name = names.get(_stem(path))
    if not name or not _is_name_of(name, path):
        return False
    start = path.rindex(name) if name in path else 0
    # Another text of the list is a file, too, if it is put in the place of this one.
    others = (other for other in names.values() if other and other != name)
    return any(os.path.exists(f"{path[:start]}{other}{path[start + len(name) :]}") for other in islice(others, 3))


def _is_numbered(dataset: Any, index: int, path: str) -> bool:
    """Return whether the last number in a file's name is the sample's, and the first and last samples have such files, too."""
    folder, name = os.path.split(path)
    found, count = _NUMBER.search(os.path.splitext(name)[0]), _length_of(dataset)
    if found is None or count < 2:
        return False
    numbers = next(_numbers_with(dataset, index, int(found[0]), count), None)
    if numbers is None:
        return False
    if any(_names_in(held).by_stem.get(_stem(path), "") is None for held in _lists_of(dataset)):
        return False  # a list names such a file more than once
    width = len(found[0])

    def exists(number: int) -> bool:
        return os.path.exists(os.path.join(folder, f"{name[: found.start()]}{number:0{width}}{name[found.end() :]}"))

    return exists(numbers[0]) and exists(numbers[1])


def _numbers_with(dataset: Any, index: int, number: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the first and the last sample, where this one has that number: its index, or its number in a list."""
    if number == index:
        yield 0, count - 1
    for held in dict_of(dataset).values():
        if not isinstance(held, (list, tuple)) or len(held) != count or not 0 <= index < count:
            continue
        are_numbers = all(type(one) is int for one in (held[0], held[index], held[-1]))
        if are_numbers and held[index] == number and held.count(number) == 1:
            yield held[0], held[-1]


def _length_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception:
        return 0


def _lists_of(dataset: Any) -> Iterator[Any]:
    """Yield the lists, arrays and tables that the dataset holds."""
    for held in list(dict_of(dataset).values()):
        is_table = type(held).__module__.partition(".")[0] in ("numpy", "pandas")
        if isinstance(held, (list, tuple)) or (is_table and _holds_texts(held)):
            yield held


def _holds_texts(held: Any) -> bool:
    if getattr(held, "ndim", 0) not in (1, 2):
        return False
    return hasattr(held, "columns") or held.dtype.kind not in "biufcmM"


def _entry(held: Any, place: int) -> Any:
    # A table of pandas is indexed by its columns, unless one asks for the place.
    found = held.iloc[place] if hasattr(held, "iloc") else held[place]
    return found if not hasattr(found, "tolist") else found.tolist()


def _names_path(held: Any, place: int, path: str) -> bool:
    named = [name for name in _texts_in(_entry(held, place)) if _is_name_of(name, path)]
    return any(_names_in(held).counts.get(name) == 1 for name in named)


def _texts_in(entry: Any) -> Iterator[str]:
    if isinstance(entry, (str, os.PathLike)):
        yield os.fsdecode(entry)
    elif isinstance(entry, (Mapping, list, tuple)):
        parts: Iterable[Any] = entry.values() if isinstance(entry, Mapping) else entry
        yield from (os.fsdecode(part) for part in parts if isinstance(part, (str, os.PathLike)))


def _is_name_of(name: str, path: str) -> bool:
    """Return whether a text is the path, the end of it, or the same without the extension."""
    if not name:
        return False
    whole = os.path.splitext(path)[0]
    return os.path.abspath(name) == path or path.endswith(os.sep + name) or whole.endswith(os.sep + name)


def _names_in(held: Any) -> _ListedNames:
    known = _known.get(id(held))
    if known is not None and known.held is held and known.length == len(held):
        return known
    names = _known[id(held)] = _ListedNames(held, len(held), {}, {}, [])
    for text in _all_texts(held):
        names.counts[text] = names.counts.get(text, 0) + 1
        if text.startswith(os.sep):
            names.ends[:] = [min(text, *names.ends[:1]), max(text, *names.ends[1:])] if names.ends else [text, text]
        stem = _stem(text)
        names.by_stem[stem] = None if stem in names.by_stem else text
    if len(_known) > _MOST_LISTS:
        del _known[next(iter(_known))]
    return names


def _all_texts(held: Any) -> Iterator[str]:
    columns = [held[name] for name in held.columns] if hasattr(held, "columns") else [held]
    for column in columns:
        if isinstance(column, (list, tuple)) or column.dtype.kind not in "biufcmM":
            for entry in islice(column, _MOST_ENTRIES):
                yield from _texts_in(entry)


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
