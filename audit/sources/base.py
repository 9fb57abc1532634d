"""The parts that all kinds of dataset share: how a sample is named, read and decoded.

`FileDataset` is a map-style dataset whose steps are separate methods, looked up on the instance at each call, so
that a recorder can observe each one on its own. Reading and decoding fail in `read` and `loader` and nowhere else:
a bad file is one failed sample, never a dataset that does not open. No torch here: a DataLoader takes any object
with these methods.
"""

from __future__ import annotations

import errno
import hashlib
import operator
import os
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

from audit.registry import Registry
from audit.sources.decode import decode_sample
from audit.sources.files import PackedNames, raw_of, read_file, size_of, to_printable
from audit.split_names import is_split_name
from audit.store.filesystem import local_path

Transform = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a sample came from: a path below `root`, or a URI such as dataset://17."""

    path: str
    root: str | None = None
    raw: bytes | None = None
    """The relative path itself, where `path` had to escape something to be shown."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options with which a dataset is opened."""

    transform: Transform | None = None
    target_transform: Transform | None = None


class DatasetKind(Protocol):
    """One kind of dataset that --dataset accepts: a module with these names.

    A kind whose names are `PREFIX:PATH` also has `path_prefix`, the prefix with its colon; one that takes paths as
    options (`?root=PATH`) has `path_options`, their keys. A recorded name then has absolute paths. One that executes no
    code from the dataset's files and makes no connection has `runs_no_code = True`: a replay then needs no `--trust`.
    """

    description: str

    def recognise(self, spec: str) -> bool:
        """Return whether `spec` names a dataset of this kind; cheap, and never raises."""

    def open_source(self, spec: str, options: Options) -> Any:
        """Return the dataset; raise DatasetError if it cannot be opened."""


SOURCES: Registry[DatasetKind] = Registry("dataset kind", "audit.sources")


def recognise_dataset(spec: str) -> tuple[str, DatasetKind | None]:
    """Return what a name means, without `~` and file://, and the kind that opens it; None if there is no such kind."""
    text = os.path.expanduser(spec)
    text = local_path(text) or text
    return text, next((kind for kind in SOURCES.values() if kind.recognise(text)), None)


class FileDataset:
    """Samples that are files below one folder, with or without a label each."""

    def __init__(
        self,
        root: str,
        names: Sequence[bytes],
        options: Options | None = None,
        *,
        labels: Sequence[int] | None = None,
        classes: list[str] | None = None,
        splits: Sequence[str | None] | None = None,
        texts: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        options = options or Options()
        self.root = os.path.abspath(root)
        #: What paths begin with; made once, as each sample asks for it.
        self._folder = os.path.join(os.fsencode(self.root), b"")
        self._has_plain_root = to_printable(os.fsencode(self.root)) == self.root
        self.classes = classes
        self.transform = options.transform
        self.target_transform = options.target_transform
        self.texts = texts
        self.notes = tuple(notes)
        self._names = names if isinstance(names, PackedNames) else PackedNames(names)
        self._count = len(self._names)
        self._labels = None if labels is None else array("q", labels)
        self._split_names = list(dict.fromkeys(splits or ()))
        codes = {name: code for code, name in enumerate(self._split_names)}
        self._split_codes = array("q", (codes[name] for name in splits or ()))
        only = self._split_names[0] if len(self._split_names) == 1 else None
        self.split = only if splits else _split_of_folder(self.root)

    @property
    def present_labels(self) -> frozenset[int] | None:
        """The labels that samples have; None if they have none."""
        return None if self._labels is None else frozenset(self._labels)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return (value, label), or only the value if there are no labels."""
        at = self._at(index)
        value = self.loader(self.read(at))
        if self.transform is not None:
            value = self.transform(value)
        label = self.label(at)
        if label is None:
            return value
        return value, label if self.target_transform is None else self.target_transform(label)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes is not None else ""
        return f"<{type(self).__name__} {to_printable(os.fsencode(self.root))}: {len(self)} samples{classes}>"

    def source(self, index: SupportsIndex) -> Source:
        """Return the source of the sample."""
        at = self._at(index)
        name = self._names[at]
        if not name:
            return Source(f"dataset://{at}")
        shown = to_printable(name)
        return Source(shown, to_printable(os.fsencode(self.root)), raw_of(name, shown))

    def plain_name(self, index: int) -> str | None:
        """Return the name of a sample's file where that is stored as it is, and so is the folder's; else None."""
        name = self._names[index].decode("utf-8", "surrogateescape")
        is_plain = name.isascii() and name.isprintable() and "\\" not in name
        return name if name and is_plain and self._has_plain_root else None

    @property
    def has_labels(self) -> bool:
        """Whether the samples have labels."""
        return self._labels is not None

    def label(self, index: SupportsIndex) -> int | None:
        """Return the sample's class index, or None in a dataset without labels."""
        return None if self._labels is None else self._labels[self._at(index)]

    def split_of(self, index: SupportsIndex) -> str | None:
        """Return the split that the sample belongs to, or None if it is unknown."""
        return self._split_names[self._split_codes[self._at(index)]] if self._split_codes else self.split

    def read(self, index: SupportsIndex) -> bytes:
        """Return the bytes of the sample's file; raise OSError if it cannot be read."""
        name = self._names[self._at(index)]
        if not name:
            raise FileNotFoundError(errno.ENOENT, "the manifest has no path for this sample")
        return read_file(self._path(name))

    def loader(self, data: bytes) -> Any:
        """Decode the bytes (stage 0): return a picture, array or text."""
        return data.decode("utf-8") if self.texts else decode_sample(data)

    def listing(self) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield (name, label, size) of every sample in order of name, without reading the files."""
        for at in sorted(range(len(self)), key=self._names.__getitem__):
            name = self._names[at]
            yield name, self.label(at), size_of(self._path(name)) if name else -1

    def _path(self, name: bytes) -> bytes:
        return name if name.startswith(b"/") else self._folder + name

    def _at(self, index: SupportsIndex) -> int:
        if type(index) is int and 0 <= index < self._count:
            return index  # nearly always, and asked several times for each sample
        at = operator.index(index)
        at = at + self._count if at < 0 else at
        if not 0 <= at < self._count:
            raise IndexError(f"index {index} is outside a dataset of {self._count} samples")
        return at


class TextDataset(FileDataset):
    """Texts that are part of the dataset itself; the source of each is dataset://<index>."""

    def __init__(
        self,
        root: str,
        texts: Sequence[bytes],
        options: Options | None = None,
        *,
        missing: Collection[int] = (),
        **more: Any,
    ) -> None:
        super().__init__(root, texts, options, texts=True, **more)
        self._missing = frozenset(missing)

    def source(self, index: SupportsIndex) -> Source:
        """Return the sample's place in the dataset, because it has no file."""
        return Source(f"dataset://{self._at(index)}")

    def read(self, index: SupportsIndex) -> bytes:
        """Return the text's bytes; raise OSError if its row has none."""
        at = self._at(index)
        if at in self._missing:
            raise OSError(errno.ENODATA, "the row has no text")
        return self._names[at]

    def loader(self, data: bytes) -> Any:
        """Decode the text (stage 0). A lone surrogate, which JSON can express and UTF-8 cannot, is kept."""
        return data.decode("utf-8", "surrogatepass")

    def listing(self) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield (text, label, length) of every sample, in order of text."""
        for at in sorted(range(len(self)), key=self._names.__getitem__):
            yield self._names[at], self.label(at), len(self._names[at])


def dataset_digest(dataset: Any) -> str:
    """Return the SHA-256 of the names, labels and sizes of the dataset's files, or else of its type and length."""
    digest = hashlib.sha256()
    if isinstance(dataset, FileDataset):
        digest.update(repr((type(dataset).__name__, dataset.classes)).encode())
        for name, label, size in dataset.listing():
            digest.update(b"%d:%s,%s,%d;" % (len(name), name, str(label).encode(), size))
        return digest.hexdigest()
    kind = type(dataset)
    length = len(dataset) if hasattr(dataset, "__len__") else None
    # A module whose name was taken in this process has its path behind an "@" (usercode/loading.py).
    module = kind.__module__.partition("@")[0]
    digest.update(f"{module}.{kind.__qualname__}:{length}".encode())
    return digest.hexdigest()


def _split_of_folder(root: str) -> str | None:
    name = os.path.basename(root)
    return name if is_split_name(name) else None
