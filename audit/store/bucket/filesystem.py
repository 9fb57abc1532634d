"""A store in a bucket: what `filesystem.Filesystem` promises, with nothing but puts, gets and lists.

`create` is a put-if-absent, so of two writers exactly one wins. `replace` demands the version that was last read or written here, so
a second writer is found out instead of overwritten. A write whose outcome is unknown is tried again, and when the service
then says that the object is there already, it is read back: the same bytes mean that the first attempt had arrived.
Nothing is ever deleted because of a failure.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from audit.errors import StoreBusy
from audit.store.bucket.client import (
    Blob,
    ConditionFailed,
    NoBucket,
    NotSupported,
    ObjectClient,
    OutcomeUnknown,
    RequestError,
    TryAgain,
)
from audit.store.bucket.lease import Lease, is_held, read_lease
from audit.store.bucket.location import ObjectLocation, parse_location, require_package
from audit.store.bucket.retry import attempts, retry_request, to_store_error
from audit.store.filesystem import Filesystem, RandomReader

#: Fetched when an object is opened: its size comes with it, and a Parquet file's footer, which is read first.
TAIL = 32 * 2**10
_MOST_TAILS = 256
#: Requests made at once where many small objects are read.
_AT_ONCE = 16


class ObjectReader(RandomReader):
    """One object, read by ranges."""

    def __init__(self, client: ObjectClient, key: str, what: str, tail: Blob) -> None:
        self._client = client
        self._key = key
        self._what = what
        self.size = tail.size
        self._tail = tail.data
        self._tail_at = tail.size - len(tail.data)

    def read_at(self, offset: int, count: int) -> bytes:
        count = min(count, self.size - offset)
        if count <= 0:
            return b""
        if offset >= self._tail_at:
            begin = offset - self._tail_at
            return self._tail[begin : begin + count]
        return retry_request(partial(self._client.get_range, self._key, offset, count), self._what).data

    def close(self) -> None:
        self._tail = b""
        self._tail_at = self.size


class ObjectFilesystem(Filesystem):
    """A prefix in a bucket."""

    def __init__(self, client: ObjectClient, location: ObjectLocation) -> None:
        self._client = client
        self._prefix = location.prefix
        self.location = str(location)
        self._lock = threading.Lock()
        #: The version of each object that was last read or written whole here.
        self._versions: dict[str, str] = {}
        #: DuckDB opens a file several times for one query, and parts never change.
        self._tails: OrderedDict[str, Blob] = OrderedDict()

    def exists(self, path: str) -> bool:
        if path:
            try:
                retry_request(partial(self._client.size, self._key(path)), self._refusal("read", path))
            except FileNotFoundError:
                return self.is_folder(path)
            return True
        return self.is_folder(path)

    def is_folder(self, path: str) -> bool:
        def has_entry() -> bool:
            try:
                return next(self._client.entries(self._folder(path)), None) is not None
            except NoBucket:
                return False

        return retry_request(has_entry, self._refusal("listed", path))

    def read(self, path: str) -> bytes:
        key = self._key(path)
        try:
            blob = retry_request(partial(self._client.get, key), self._refusal("read", path))
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.location}/{path}") from None
        self._remember(key, blob.version)
        return blob.data

    def read_each(self, paths: Sequence[str]) -> Iterator[bytes | Exception]:
        # A service answers a hundred questions at once as quickly as one.
        with ThreadPoolExecutor(min(_AT_ONCE, len(paths) or 1), "audit-read") as pool:
            yield from pool.map(self._read_or_error, paths)

    def open(self, path: str) -> RandomReader:
        key, what = self._key(path), self._refusal("read", path)
        with self._lock:
            tail = self._tails.get(key)
        if tail is None:
            tail = retry_request(partial(self._client.get_range, key, -TAIL, 0), what)
            with self._lock:
                self._tails[key] = tail
                while len(self._tails) > _MOST_TAILS:
                    self._tails.popitem(last=False)
        return ObjectReader(self._client, key, what, tail)

    def size(self, path: str) -> int:
        return retry_request(partial(self._client.size, self._key(path)), self._refusal("read", path))

    def age(self, path: str) -> float | None:
        try:
            return retry_request(
                partial(self._client.get_range, self._key(path), -1, 0), self._refusal("read", path)
            ).age
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str]:
        return retry_request(partial(self._client.names, self._folder(path)), self._refusal("listed", path))

    def create(self, path: str, data: bytes | memoryview) -> None:
        if not self._write(path, bytes(data), absent=True, match=None):
            raise FileExistsError(f"{self.location}/{path}")

    def replace(self, path: str, data: bytes | memoryview) -> None:
        with self._lock:
            match = self._versions.get(self._key(path)) if self._client.can_match else None
        if not self._write(path, bytes(data), absent=False, match=match):
            raise StoreBusy(
                f"{self.location}/{path} was changed by another process, and was left unchanged.",
                hint="Two processes wrote to the same run. What they committed before is safe. Stop one of them.",
            )

    def remove(self, path: str) -> None:
        what = self._refusal("deleted", path)
        below = retry_request(lambda: [key for key, _ in self._client.entries(self._folder(path))], what)
        for key in [self._key(path), *below]:
            retry_request(partial(self._client.delete, key), what)
            self._remember(key, None)

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        lease = Lease(self._client, self._key(path), f"{self.location}/{path.rpartition('/')[0]}")
        lease.take()
        try:
            yield
        finally:
            lease.give_back()

    def is_locked(self, path: str) -> bool:
        lease = read_lease(self._client, self._key(path), f"{self.location}/{path}")
        return lease is not None and is_held(lease)

    def _write(self, path: str, data: bytes, *, absent: bool, match: str | None) -> bool:
        """Put an object; False when the condition does not hold and the bytes there are not these."""
        key, what = self._key(path), self._refusal("written", path)
        failure: RequestError = OutcomeUnknown("")
        unknown = False
        for _ in attempts():
            try:
                self._remember(key, self._client.put(key, data, absent=absent, match=match))
                return True
            except (ConditionFailed, FileNotFoundError):
                # After a reply that was lost, the object in the way may be our own.
                return unknown and self._holds(path, data)
            except TryAgain as error:
                failure = error
            except OutcomeUnknown as error:
                failure, unknown = error, True
            except NotSupported as error:
                if match is None:
                    raise to_store_error(error, what) from None
                match = None  # an older service without versions: the lease alone keeps a second writer away
            except RequestError as error:
                raise to_store_error(error, what) from None
        if unknown and self._holds(path, data):
            return True
        raise to_store_error(failure, what)

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self.read(path) == data
        except FileNotFoundError:
            return False

    def _remember(self, key: str, version: str | None) -> None:
        with self._lock:
            self._tails.pop(key, None)
            if version is None:
                self._versions.pop(key, None)
            else:
                self._versions[key] = version

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _folder(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""

    def _refusal(self, done: str, path: str) -> str:
        return f"{self.location}{'/' if path else ''}{path} could not be {done}"


def object_filesystem(location: str) -> ObjectFilesystem:
    """Return the bucket that a location such as s3://bucket/lineage names."""
    place = parse_location(location)
    return ObjectFilesystem(client_for(place, "store"), place)


def client_for(place: ObjectLocation, what: str) -> ObjectClient:
    """Return a client for the bucket of a location; MissingExtra without the packages it needs."""
    require_package(place.scheme, f"A {what} at {place.scheme}://")
    if place.scheme == "s3":
        from audit.store.bucket.s3 import S3Client

        return S3Client(place.bucket)
    import fsspec

    from audit.store.bucket.fsspec_client import FsspecClient

    connection = fsspec.filesystem(place.scheme, use_listings_cache=False)
    return FsspecClient(connection, place.bucket)
