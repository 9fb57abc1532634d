"""Buckets of other services through fsspec: gs:// with gcsfs, az:// with adlfs.

It needs of the package that `pipe_file(mode="create")` is a put-if-absent on the server, which gcsfs and adlfs say of
theirs. There is no demand for a version here, so that a second writer is kept away by the lease and the put-if-absent of
parts alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from audit.store.bucket.client import Blob, ConditionFailed, Forbidden, NoBucket, ObjectClient, OutcomeUnknown

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")


class FsspecClient(ObjectClient):
    """A bucket that an fsspec file system reaches."""

    def __init__(self, filesystem: Any, bucket: str) -> None:
        self._filesystem = filesystem
        self._bucket = bucket

    def get(self, key: str) -> Blob:
        with _translate_errors():
            path = self._path(key)
            return self._blob(path, bytes(self._filesystem.cat_file(path)))

    def get_range(self, key: str, start: int, count: int) -> Blob:
        path = self._path(key)
        size = self.size(key)
        with _translate_errors():
            begin = max(0, size + start) if start < 0 else min(start, size)
            end = size if start < 0 else min(start + count, size)
            data = bytes(self._filesystem.cat_file(path, start=begin, end=end)) if begin < end else b""
            return Blob(data, size, None, 0.0)

    def size(self, key: str) -> int:
        with _translate_errors():
            facts = self._filesystem.info(self._path(key), refresh=True)
        if facts.get("type") == "directory":
            raise FileNotFoundError("a folder")
        return int(facts["size"])

    def put(self, key: str, data: bytes, *, absent: bool = False, match: str | None = None) -> str | None:
        try:
            with _translate_errors():
                self._filesystem.pipe_file(self._path(key), data, mode="create" if absent else "overwrite")
        except FileNotFoundError:  # nothing but the bucket itself can be missing
            raise NoBucket("missing") from None
        return None

    def names(self, prefix: str) -> list[str]:
        folder = self._path(prefix).rstrip("/")
        try:
            with _translate_errors():
                found = self._filesystem.ls(folder, detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted({path.rstrip("/").rpartition("/")[2] for path in found if path.strip("/") != folder.strip("/")})

    def entries(self, prefix: str) -> Iterator[tuple[str, int]]:
        try:
            with _translate_errors():
                found = self._filesystem.find(self._path(prefix).rstrip("/"), detail=True, refresh=True)
        except FileNotFoundError:
            return
        # Of a path that is a file some give that file, and some an empty list.
        keys = ((path.lstrip("/").removeprefix(f"{self._bucket}/"), path) for path in found)
        yield from ((key, int(found[path].get("size") or 0)) for key, path in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        try:
            with _translate_errors():
                self._filesystem.rm_file(self._path(key))
        except FileNotFoundError:
            return

    def _path(self, key: str) -> str:
        return f"{self._bucket}/{key}"

    def _blob(self, path: str, data: bytes) -> Blob:
        facts = self._filesystem.info(path, refresh=True)
        written = next((facts[name] for name in _TIMES if facts.get(name)), None)
        if isinstance(written, str):
            written = datetime.fromisoformat(written)
        age = 0.0
        if isinstance(written, datetime):
            written = written if written.tzinfo else written.replace(tzinfo=UTC)
            age = (datetime.now(UTC) - written).total_seconds()
        return Blob(data, len(data), None, age)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Yield the errors of any fsspec package as ours; `from None`, as their text is not known to be harmless."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError("missing") from None
    except FileExistsError:
        raise ConditionFailed("exists") from None
    except PermissionError:
        raise Forbidden("denied") from None
    except Exception as error:
        status = getattr(error, "status_code", None) or getattr(error, "code", None)  # as adlfs and as gcsfs have it
        if status in (401, 403) or str(error).startswith("Forbidden"):
            raise Forbidden("denied") from None
        if status == 404:
            raise FileNotFoundError("missing") from None
        raise OutcomeUnknown(type(error).__name__) from None
