"""List a folder's samples: each file once per path that leads to it, always in the same order, without opening any.

The order is that of torchvision's folder datasets: directories by path, then the files in each by name (both by
bytes). Links to directories are followed, but not into a directory that is its own ancestor, which torchvision
lists 41 times. Hidden entries are skipped; files of other types are counted, so that the caller can say what was
left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from audit.errors import DatasetError
from audit.sources.decode import TEXT, sample_suffixes
from audit.sources.files import to_printable

MOST_PATHS = 100
"""How many paths may lead to one directory; links between a few dozen directories can create an astronomical number of paths."""

Identity = tuple[int, int]
Chain = tuple[Identity, "Chain | None"]


@dataclass(slots=True)
class Directory:
    """One directory's samples: names of pictures or arrays, and of texts, each joined with NUL bytes to save memory."""

    path: bytes
    samples: bytes = b""
    texts: bytes = b""

    @property
    def top_folder(self) -> bytes:
        """Return the first component of its path: the class, in a folder of class folders."""
        return self.path.partition(b"/")[0]

    def names(self, texts: bool) -> Iterator[bytes]:
        """Return the paths of its samples, relative to the scanned folder."""
        prefix = self.path + b"/" if self.path else b""
        joined = self.texts if texts else self.samples
        return (prefix + name for name in joined.split(b"\0") if name)


@dataclass(slots=True)
class Scan:
    """The content of one folder."""

    root: bytes
    directories: list[Directory] = field(default_factory=list)
    ignored: Counter[bytes] = field(default_factory=Counter)
    hidden: int = 0
    loops: list[bytes] = field(default_factory=list)

    @property
    def texts(self) -> bool:
        """Return whether the samples are texts: only if there is no picture and no array."""
        return not any(found.samples for found in self.directories) and any(found.texts for found in self.directories)

    def notes(self) -> list[str]:
        """Return one sentence for each kind of entry that was left out."""
        notes = [
            f"The link {to_printable(path)} points to a folder that contains it, and was not followed."
            for path in self.loops
        ]
        ignored = Counter(self.ignored)
        if not self.texts:
            ignored[TEXT.encode()] += sum(len(found.texts.split(b"\0")) for found in self.directories if found.texts)
        if total := ignored.total():
            notes.append(f"{total} files do not have the ending of a picture and were left out: {kinds(ignored)}.")
        if self.hidden:
            notes.append(f"{self.hidden} hidden files or folders were left out.")
        return notes


def scan(root: str) -> Scan:
    """Return the content of a folder; raise DatasetError if a directory cannot be listed."""
    found = Scan(os.fsencode(root))
    status = os.stat(root)
    pending: list[tuple[bytes, Chain]] = [(b"", ((status.st_dev, status.st_ino), None))]
    paths: Counter[Identity] = Counter()
    while pending:
        path, chain = pending.pop()
        paths[chain[0]] += 1
        if paths[chain[0]] > MOST_PATHS:
            raise DatasetError(
                f"More than {MOST_PATHS} paths lead to one folder through links: {_printable_path(found, path)} is one of them.",
                hint="Remove the links, or pass a folder without them.",
            )
        for name, identity in _list(found, path):
            below = path + b"/" + name if path else name
            if _is_within(identity, chain):
                found.loops.append(below)
            else:
                pending.append((below, (identity, chain)))
    found.directories.sort(key=lambda directory: directory.path)
    found.loops.sort()
    return found


def _list(found: Scan, path: bytes) -> list[tuple[bytes, Identity]]:
    """Add one directory's files to `found`, and return its subdirectories."""
    samples: list[bytes] = []
    texts: list[bytes] = []
    below: list[tuple[bytes, Identity]] = []
    suffixes, text = sample_suffixes(), TEXT.encode()
    try:
        with os.scandir(os.path.join(found.root, path)) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(b"."):
                    found.hidden += 1
                elif is_folder(entry):
                    status = entry.stat()
                    below.append((name, (status.st_dev, status.st_ino)))
                elif (suffix := suffix_of(name)) in suffixes:
                    samples.append(name)
                elif suffix == text:
                    texts.append(name)
                else:
                    found.ignored[suffix] += 1
    except OSError as error:
        raise DatasetError(
            f"The folder {_printable_path(found, path)} cannot be listed: {error.strerror}.",
            hint="Make it readable, or move it out of the dataset.",
        ) from error
    found.directories.append(Directory(path, b"\0".join(sorted(samples)), b"\0".join(sorted(texts))))
    return below


def is_folder(entry: os.DirEntry[bytes]) -> bool:
    """Return whether it is a directory or a link to one; a broken link counts as a file, and fails when read."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def suffix_of(name: bytes) -> bytes:
    """Return the name's ending in lower case, such as b".png"."""
    return os.path.splitext(name)[1].lower()


def kinds(counts: Counter[bytes]) -> str:
    """Return the commonest endings with their counts, for a sentence."""
    most = sorted(((count, suffix) for suffix, count in counts.items() if count), key=lambda pair: (-pair[0], pair[1]))
    shown = [f"{to_printable(suffix) or 'no ending'} {count}" for count, suffix in most[:5]]
    return ", ".join([*shown, "…"] if len(most) > 5 else shown)


def _is_within(identity: Identity, chain: Chain | None) -> bool:
    while chain is not None:
        if chain[0] == identity:
            return True
        chain = chain[1]
    return False


def _printable_path(found: Scan, path: bytes) -> str:
    return to_printable(os.path.join(found.root, path) if path else found.root)
