"""Which file an index means, for any dataset that knows.

Ours have `source(index)`. torchvision's folders keep `samples`; Subset and ConcatDataset pass the
question on. A dataset that does not know has the source `dataset://<index>`: of a Subset the index in the dataset it is of,
so that the parts of a random split do not share identities.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch.utils.data import Subset

from audit.recorders.calls.callables import read_attribute
from audit.recorders.calls.requested_items import makes_own_items
from audit.recorders.files.file_lists import folder_of
from audit.recorders.files.hugging_face import (
    TableRow,
    folder_of_files,
    has_columns_of_file,
    media_columns,
    row_files,
    row_values,
    table_row,
)
from audit.recorders.items.item_parts import label_number
from audit.sources.archive import member_name, members_of, read_member, row_bytes
from audit.sources.base import FileDataset
from audit.texts import path_as_utf8


@dataclass(frozen=True, slots=True)
class OriginFile:
    """One file that a sample was read from."""

    source: str
    root: str | None = None
    raw: bytes | None = None
    path: str | None = None
    #: What it is for the sample ("image", "mask"), where somebody says so.
    role: str | None = None
    #: Its digest and length, where they are known already.
    digest: str | None = None
    bytes: int | None = None


@dataclass(slots=True)  # not frozen, which would make the making of one cost four times as much
class Origin:
    """Where a sample came from, and what the dataset says of it before it is read."""

    source: str
    root: str | None = None
    raw: bytes | None = None
    split: str | None = None
    label: int | None = None
    path: str | None = None
    #: The folder that a dataset which does not name its files has as its root.
    folder: str | None = None
    #: What the first file is for the sample, where the dataset says so.
    role: str | None = None
    #: The files beside the first.
    further: tuple[OriginFile, ...] = ()
    #: The dataset that does not tell its files, and the sample's index there.
    owner: Any = None
    number: int = -1
    #: Whether the label is that of a list, and code of the user's own makes the item: it need not have that label.
    is_label_guess: bool = False
    #: Whether a list of the dataset's has the file at this index. The dataset's code may have read another one.
    is_listed: bool = False
    #: Whether the dataset gives its items in order only, so that it may read files of later ones before.
    is_streamed: bool = False
    #: Digest and length of the first file, where they are known already.
    digest: str | None = None
    size: int | None = None


#: Classes whose datasets say where a sample comes from by the list `samples` alone.
_LISTS: set[type] = set()


def origin_of(dataset: Any, index: int) -> Origin:
    """Return the origin of one sample; never raises."""
    try:
        return _origin(dataset, index)
    except Exception:
        return Origin(f"dataset://{index}")


def _origin(dataset: Any, index: int) -> Origin:
    kind = type(dataset).__name__
    if type(dataset) in _LISTS and "source" not in vars(dataset) and (found := _origin_in_samples(dataset, index)):
        return found
    if callable(read_attribute(dataset, "source")):
        source = dataset.source(index)
        split = dataset.split_of(index) if hasattr(dataset, "split_of") else read_attribute(dataset, "split")
        label = dataset.label(index) if callable(read_attribute(dataset, "label")) else None
        if not hasattr(source, "path"):
            return make_named_origin(source, _folder(dataset), split, label, dataset=dataset)
        return Origin(source.path, source.root, source.raw, split, label)
    if isinstance(dataset, Subset) and not makes_own_items(dataset):
        return _origin(dataset.dataset, int(dataset.indices[index]))
    if (row := table_row(dataset, index)) is not None:
        return _origin_of_row(dataset, index, row)
    if kind == "ConcatDataset" and hasattr(dataset, "cumulative_sizes"):
        number = bisect.bisect_right(dataset.cumulative_sizes, index)
        before = dataset.cumulative_sizes[number - 1] if number else 0
        inner = _origin(dataset.datasets[number], index - before)
        # Two of the joined datasets may have a sample of one number: that number identifies nothing here.
        return inner if inner.root is not None else replace(inner, source=f"dataset://{index}")
    found = _origin_in_samples(dataset, index)
    if found is not None and not hasattr(type(dataset), "source") and not hasattr(type(dataset), "__getattr__"):
        _LISTS.add(type(dataset))
    return found or _origin_in_wrapped(dataset, index)


def _origin_of_row(dataset: Any, index: int, row: TableRow) -> Origin:
    """Return the origin of a sample that is a row of a table: the files that the row names, else `FILE#ROW`."""
    unnamed = Origin(f"dataset://{row.number}", owner=dataset, number=index)
    if row.file is None and not media_columns(dataset):
        return unnamed
    values = row_values(dataset, index)
    if files := row_files(dataset, values):
        named = make_named_origin(files if len(files) > 1 else [*files.values()], folder_of_files(dataset))
        named.owner, named.number, named.is_listed = dataset, index, True
        return named
    if row.file is None or any(
        isinstance(value, dict) and value.get("bytes", b"") is None for value in values.values()
    ):
        return unnamed
    folder, name = os.path.split(row.file)
    data = row_bytes(values) if has_columns_of_file(dataset) else read_member(member_name(row.file, str(row.row)))
    digest = hashlib.sha256(data).hexdigest()
    return Origin(member_name(name, str(row.row)), folder, digest=digest, size=len(data))


def find_archived_origin(item: Any) -> Origin | None:
    """Return the origin of an item that says which member of a tar archive it is, as webdataset's do."""
    if not isinstance(item, Mapping) or not isinstance(item.get("__key__"), str):
        return None
    url = item.get("__local_path__") or item.get("__url__")
    path = str(url).removeprefix("file://").removeprefix("file:")
    if not os.path.isfile(path):
        return None
    archive, root = os.path.basename(path), os.path.abspath(os.path.dirname(path))
    known = members_of(path)
    names = {str(field): f"{item['__key__']}.{field}" for field in item if not str(field).startswith("__")}
    files = [_describe_archived_file(root, archive, field, name) for field, name in names.items() if name in known]
    if not files:
        return None
    first, further = files[0], tuple(files[1:])
    return Origin(first.source, first.root, role=first.role, further=further, digest=first.digest, size=first.bytes)


def _describe_archived_file(root: str, archive: str, role: str, member: str) -> OriginFile:
    data = read_member(member_name(os.path.join(root, archive), member))
    source = member_name(archive, member)
    return OriginFile(source, root, None, None, role, hashlib.sha256(data).hexdigest(), len(data))


def find_source(source: Any, index: int, item: Any) -> Any:
    """Return what `source=` of a loader names for a sample: by a function of the index, or by a mapping or sequence."""
    if not callable(source):
        return source.get(index) if isinstance(source, Mapping) else source[index]
    return source(index, item) if _takes_item(source) else source(index)


def _takes_item(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in places and one.default is inspect.Parameter.empty for one in parameters) >= 2


def make_named_origin(
    source: Any, folder: str | None, split: Any = None, label: int | None = None, *, dataset: Any = None
) -> Origin:
    """Return the origin by what somebody calls its source: a path, several, or a mapping by role."""
    pairs: list[tuple[str | None, Any]]
    if isinstance(source, Mapping):
        pairs = [(str(role), path) for role, path in source.items()]
    else:
        pairs = [(None, path) for path in (source if isinstance(source, (list, tuple)) else [source])]
    files = [_describe_named_file(path, folder, role, dataset) for role, path in pairs if path is not None]
    if not files:
        raise ValueError("no source is named")
    first, given = files[0], split if isinstance(split, str) else None
    return Origin(
        first.source, first.root, first.raw, given, label, first.path, folder, first.role, further=tuple(files[1:])
    )


def _describe_named_file(path: Any, folder: str | None, role: str | None, dataset: Any) -> OriginFile:
    if isinstance(path, str) and "://" in path:
        return OriginFile(path, role=role)
    return replace(file_below(os.path.abspath(os.fsdecode(path)), folder, dataset), role=role)


def file_below(path: str, folder: str | None, dataset: Any) -> OriginFile:
    """Return a file as it is stored: below the dataset's folder or that of its list of files, else below its own folder."""
    root = os.path.abspath(folder) if folder is not None else ""
    if not root or not path.startswith(os.path.join(root, "")):
        root = os.path.abspath(folder_of(dataset, path) or os.path.dirname(path))
    relative = os.path.relpath(path, root)
    return OriginFile(path_as_utf8(relative), root, raw_path(relative), path)


class ListedFile(NamedTuple):
    """What a dataset's list of files says of one sample."""

    path: str
    root: Any
    label: int | None
    #: The name of the file in the list, where that is what is stored; else its path as seen from `root` is.
    name: str | None = None
    split: str | None = None

    def origin(self, owner: Any, number: int) -> Origin:
        """Return it as the origin of a sample, which has this number in the dataset."""
        path, root, label = self[:3]
        folder = absolute_folder(os.path.dirname(path) if root is None else root)
        relative = self.name or relative_path(path, folder, root)
        printable, raw, split = path_as_utf8(relative), raw_path(relative), self.split
        is_guess = makes_own_items(owner)
        return Origin(
            printable, folder, raw, split, label, path, folder, None, (), owner, number, is_guess, is_listed=True
        )


def find_listed_file(dataset: Any, index: int) -> ListedFile | None:
    """Return the file of a sample where the class of the dataset is known to name it by a list alone."""
    if type(dataset) in _LISTS and "source" not in vars(dataset):
        return _file_in_samples(dataset, index)
    if type(dataset) is FileDataset and (name := dataset.plain_name(index)) is not None:
        path = os.path.join(dataset.root, name)
        return ListedFile(path, dataset.root, dataset.label(index), name, dataset.split_of(index))
    return None


def _file_in_samples(dataset: Any, index: int) -> ListedFile | None:
    """Return the file of a sample by the list `samples` that torchvision's folders keep."""
    samples = getattr(dataset, "samples", None)
    entry = samples[index] if isinstance(samples, list) and samples else None
    if not isinstance(entry, tuple) or not isinstance(entry[0], str):
        return None
    path, label = entry if len(entry) == 2 else (entry[0], entry[1] if len(entry) > 2 else None)
    return ListedFile(path, getattr(dataset, "root", None), label if isinstance(label, int) else None)


def _origin_in_samples(dataset: Any, index: int) -> Origin | None:
    """Return the origin by the list `samples`."""
    found = _file_in_samples(dataset, index)
    return None if found is None else found.origin(dataset, index)


def _origin_in_wrapped(dataset: Any, index: int) -> Origin:
    is_users = makes_own_items(dataset)
    wrapped = read_attribute(dataset, "dataset")
    # A wrapper of the user's own may number its items in another way: what it asks for tells (see requested_items.py).
    if not is_users and wrapped is not None and hasattr(wrapped, "__getitem__") and len(wrapped) == len(dataset):
        return _origin(wrapped, index)
    label, folder = _target(dataset, index), _folder(dataset)
    return Origin(f"dataset://{index}", None, None, None, label, None, folder, None, (), dataset, index, is_users)


def _folder(dataset: Any) -> str | None:
    root = read_attribute(dataset, "root")
    return os.fspath(root) if isinstance(root, (str, os.PathLike)) else None


def _target(dataset: Any, index: int) -> int | None:
    """Return what the dataset's own list of targets says, as torchvision's datasets have one."""
    targets: Any = read_attribute(dataset, "targets")
    if not isinstance(targets, (list, tuple)) and not hasattr(targets, "shape"):
        return None
    return label_number(targets[index]) if len(targets) == len(dataset) else None


def absolute_folder(folder: Any) -> str:
    """Return `os.path.abspath` of a folder; computed once for one that is absolute already, as that of a dataset is."""
    if type(folder) is str and folder.startswith("/"):
        return _normal_folder(folder)
    return str(os.path.abspath(folder))


@functools.lru_cache(64)
def _normal_folder(folder: str) -> str:
    return os.path.abspath(folder)


def relative_path(path: str, root: str, given: Any = None) -> str:
    """Return a path as seen from `root`, which is absolute; `given` is the folder as the list of files has it."""
    found = _path_below(path, root)
    if found is None and isinstance(given, (str, os.PathLike)):
        found = _path_below(path, str(os.fspath(given)))
    return found or os.path.relpath(os.path.abspath(path), root)


def _path_below(path: str, folder: str) -> str | None:
    """Return what follows a folder in the path of a file; None where the file does not lie below it, under a name without detours."""
    after = path.removeprefix(folder.rstrip("/"))
    below = after.lstrip("/")
    is_plain = len(after) < len(path) and len(below) < len(after) and not (below.startswith(".") or below.endswith("/"))
    return below if below and is_plain and "//" not in below and "/." not in below else None


def raw_path(path: str) -> bytes | None:
    """Return the bytes of a path whose text is not exactly them; None for all others."""
    if path.isascii():
        return None
    data = os.fsencode(path)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    return None


def class_names(dataset: Any) -> list[str] | None:
    """Return the dataset's own class names, in label order, through wrappers."""
    for _ in range(20):
        names = read_attribute(dataset, "classes")
        if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
            return list(names)
        inner = read_attribute(dataset, "datasets")
        dataset = inner[0] if isinstance(inner, list) and inner else read_attribute(dataset, "dataset")
        if dataset is None:
            return None
    return None
