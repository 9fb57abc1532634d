"""A folder of pictures in a bucket: s3://bucket/images/, gs:// or az://.

Class folders and flat folders are recognised, ordered and labelled as on a disk, so that a copy of a folder is the same dataset
wherever it lies. Listing reads no object; each sample is one GET, made in the process that needs it. Messages never
carry a service's own text, and a location with credentials in it is refused: both would end up in the store.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator
from functools import partial
from typing import Any, SupportsIndex

from audit.errors import DatasetError, StoreError, UsageError
from audit.sources.base import FileDataset, Options
from audit.sources.class_folders import arrange
from audit.sources.decode import TEXT, sample_suffixes
from audit.sources.files import PackedNames, to_printable
from audit.sources.scan import Directory, Scan, kinds, suffix_of
from audit.store.bucket.filesystem import client_for
from audit.store.bucket.location import ObjectLocation, is_remote, parse_location
from audit.store.bucket.retry import retry_request

description = "a folder in a bucket, such as s3://bucket/images"


def recognise(spec: str) -> bool:
    """Return whether it is an address of an object store."""
    return is_remote(spec)


def open_source(spec: str, options: Options) -> FileDataset:
    """Return the pictures below the location; labelled if they are in class folders."""
    try:
        place = parse_location(spec, "dataset")
    except UsageError as error:
        raise DatasetError(error.message, hint=error.hint).as_usage() from None
    sizes: dict[bytes, int] = {}
    found = _scan(place, sizes)
    if not any(directory.samples or directory.texts for directory in found.directories):
        held = f"{found.ignored.total()} objects, but no picture, array or text: {kinds(found.ignored)}"
        raise DatasetError(
            f"{place} contains {held if found.ignored else 'nothing'}.", hint="Check the bucket and the prefix."
        )
    make = partial(RemoteDataset, sizes=sizes)
    texts = found.texts
    if any(directory.path and (directory.texts if texts else directory.samples) for directory in found.directories):
        return arrange(str(place), found, options, make)
    names = PackedNames(name for directory in found.directories for name in directory.names(texts))
    return make(str(place), names, options, texts=texts, notes=found.notes())


class RemoteDataset(FileDataset):
    """Samples that are objects below one prefix."""

    def __init__(
        self,
        root: str,
        names: PackedNames,
        options: Options | None = None,
        *,
        sizes: dict[bytes, int] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(root, names, options, **more)
        self.root = root
        # An array instead of the dictionary: workers copy the memory that they touch.
        self._sizes = array("q", ((sizes or {}).get(name, -1) for name in self._names))

    def read(self, index: SupportsIndex) -> bytes:
        """Return the bytes of the sample's object, with one GET; raise OSError if it cannot be read."""
        return read_object(self.root, self._names[self._at(index)])

    def listing(self) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield (name, label, size) of every sample, as when the dataset was opened."""
        for at in sorted(range(len(self)), key=self._names.__getitem__):
            yield self._names[at], self.label(at), self._sizes[at]


def read_object(root: str, name: bytes) -> bytes:
    """Return all bytes of one object below a location; raise OSError with audit's own text if that fails."""
    place = parse_location(root, "dataset")
    shown = f"{place}/{to_printable(name)}"
    try:
        key = "/".join(part for part in (place.prefix, name.decode("utf-8")) if part)
        client = client_for(place, "dataset")
        return retry_request(partial(client.get, key), "The object could not be read").data
    except (FileNotFoundError, UnicodeDecodeError):
        raise FileNotFoundError(errno.ENOENT, "There is no such object", shown) from None
    except StoreError as error:
        raise OSError(errno.EIO, error.message, shown) from None


def _scan(place: ObjectLocation, sizes: dict[bytes, int]) -> Scan:
    """Return the content of the location in the form of `scan`; add the sizes to `sizes`."""
    found = Scan(str(place).encode())
    samples: dict[bytes, list[bytes]] = {b"": []}
    texts: dict[bytes, list[bytes]] = {}
    top = f"{place.prefix}/" if place.prefix else ""
    for key, size in _objects(place, top):
        name = key[len(top) :].encode()
        folder, _, last = name.rpartition(b"/")
        if not last or any(part.startswith(b".") for part in name.split(b"/")):
            found.hidden += bool(last)
            continue
        samples.setdefault(folder, [])
        if (suffix := suffix_of(last)) in sample_suffixes():
            samples[folder].append(last)
        elif suffix == TEXT.encode():
            texts.setdefault(folder, []).append(last)
        else:
            found.ignored[suffix] += 1
            continue
        sizes[name] = size
    for folder in sorted(samples):
        joined = (b"\0".join(sorted(names)) for names in (samples[folder], texts.get(folder, [])))
        found.directories.append(Directory(folder, *joined))
    return found


def _objects(place: ObjectLocation, top: str) -> list[tuple[str, int]]:
    client = client_for(place, "dataset")
    try:
        return retry_request(lambda: [*client.entries(top)], f"{place} could not be listed")
    except FileNotFoundError:
        return []
    except StoreError as error:
        raise DatasetError(error.message, hint=error.hint) from None
