"""`hf:PATH` or `hf:PATH?split=test`: a Hugging Face dataset that `save_to_disk` wrote. Needs the extra `hf`.

Its column of pictures or texts becomes the sample and its column of labels the label. The stored bytes of a picture
are read first and decoded after, by the `datasets` package's own rules (it turns pictures by their EXIF
orientation), so that what is hashed is what is decoded. It fetches nothing from the hub.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any, SupportsIndex
from urllib.parse import parse_qsl

from audit.errors import DatasetError, MissingExtra
from audit.sources.base import FileDataset, Options, Source
from audit.sources.files import nearest_path, read_file, to_printable
from audit.sources.manifest import LABEL_COLUMNS

description = "hf:PATH, a Hugging Face dataset saved on disk"

path_prefix = "hf:"
_EXTRA_LABELS = ("labels", "fine_label", "coarse_label")


def recognise(spec: str) -> bool:
    """Return whether it starts with hf:."""
    return spec.startswith(path_prefix)


def open_source(spec: str, options: Options) -> HuggingFaceItems:
    """Return the saved dataset's pictures or texts, with their labels."""
    path, _, query = spec.removeprefix(path_prefix).partition("?")
    path = os.path.expanduser(path)
    if not os.path.exists(path):
        raise DatasetError(
            f"There is no folder {path}. hf: reads a dataset that was saved on this machine; audit does not download "
            "from the Hugging Face Hub.",
            hint=f"Save it with datasets.load_dataset(…).save_to_disk(PATH). {nearest_path(path)}",
        ).as_usage()
    split = dict(parse_qsl(query)).get("split")
    rows, split = _choose(_load(path, spec), split, spec)
    if not len(rows):
        raise DatasetError(f"The dataset {spec} has no rows.", hint="Choose another split or folder.")
    return HuggingFaceItems(path, rows, _sample_column(rows, spec), options, split)


class HuggingFaceItems(FileDataset):
    """Rows of a Hugging Face dataset; the source of each is dataset://<index>."""

    def __init__(self, root: str, rows: Any, column: str, options: Options, split: str | None) -> None:
        import datasets

        feature = rows.features[column]
        self._pictures = isinstance(feature, datasets.Image)
        labels, classes = _labels(rows)
        super().__init__(root, [b""] * len(rows), options, labels=labels, classes=classes, texts=not self._pictures)
        self.split = split
        self._column = column
        self._feature = feature
        raw = rows.select_columns([column]).with_format(None)
        self._rows = raw.cast_column(column, datasets.Image(decode=False)) if self._pictures else raw

    def source(self, index: SupportsIndex) -> Source:
        """Return the sample's place in the dataset."""
        return Source(f"dataset://{self._at(index)}")

    def read(self, index: SupportsIndex) -> bytes:
        """Return the stored bytes of the picture or text; raise OSError if the row has none."""
        value = self._rows[self._at(index)][self._column]
        if value is None:
            raise OSError(errno.ENODATA, f"the row has no {self._column}")
        if not self._pictures:
            return str(value).encode("utf-8", "surrogatepass")
        stored: bytes | None = value["bytes"]
        if stored is not None:
            return stored
        if value["path"] is None:
            raise OSError(errno.ENODATA, "the picture has neither bytes nor a path")
        return read_file(os.fsencode(value["path"]))

    def loader(self, data: bytes) -> Any:
        """Decode the text, or the picture as the `datasets` package does (stage 0)."""
        if not self._pictures:
            return data.decode("utf-8", "surrogatepass")
        return self._feature.decode_example({"bytes": data, "path": None})

    def listing(self) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield one entry for the whole dataset: the package's fingerprint of the rows."""
        yield str(self._rows._fingerprint).encode(), None, len(self)


def _load(path: str, spec: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", f"The dataset {spec}", "hf") from None
    try:
        return datasets.load_from_disk(path)
    except Exception as error:  # pyarrow, json and the package itself each raise their own
        reason = " ".join(str(error).split())
        raise DatasetError(
            f"{spec} is not a dataset saved on disk: {reason}", hint="Write it with dataset.save_to_disk(PATH)."
        ) from error


def _choose(loaded: Any, split: str | None, spec: str) -> tuple[Any, str | None]:
    if not isinstance(loaded, dict):
        own = None if loaded.split is None else str(loaded.split)
        if split is not None and split != own:
            raise DatasetError(f"{spec} has no splits to choose from.", hint="Remove ?split=.")
        return loaded, own
    if split is None and len(loaded) == 1:
        split = next(iter(loaded))
    if split not in loaded:
        what = f"has no split {split!r}" if split else "has several splits"
        raise DatasetError(
            f"{spec} {what}; its splits are {', '.join(loaded)}.",
            hint=f"Write {spec.partition('?')[0]}?split={next(iter(loaded))}.",
        )
    return loaded[split], split


def _sample_column(rows: Any, spec: str) -> str:
    """Return the picture column, or the text column if there is none."""
    import datasets

    pictures = [name for name, feature in rows.features.items() if isinstance(feature, datasets.Image)]
    texts = [
        name for name, feature in rows.features.items() if getattr(feature, "dtype", "") in ("string", "large_string")
    ]
    for names, usual in ((pictures, ("image", "img", "picture")), (texts, ("text", "sentence", "content"))):
        if names:
            return next((name for name in usual if name in names), names[0])
    raise DatasetError(
        f"{spec} has no column of pictures or texts; its columns are {', '.join(rows.features)}.",
        hint="Build the Dataset in a .py file.",
    )


def _labels(rows: Any) -> tuple[list[int] | None, list[str] | None]:
    """Return the class indices, if a label column holds a whole number in every row, and the class names."""
    column = next((name for name in (*LABEL_COLUMNS, *_EXTRA_LABELS) if name in rows.features), None)
    if column is None or "int" not in getattr(rows.features[column], "dtype", ""):
        return None, None
    values = list(rows.with_format(None)[column])
    if any(value is None for value in values):
        return None, None
    names = getattr(rows.features[column], "names", None)
    return values, None if names is None else [
        to_printable(str(name).encode("utf-8", "surrogatepass")) for name in names
    ]
