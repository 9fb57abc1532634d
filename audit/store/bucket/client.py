"""The handful of requests that a store needs of a bucket, and the only ways in which one can fail.

A client makes one request and tells apart what a caller must treat differently: it did not happen, it may have happened,
another was quicker. It never retries and never decides. Its errors carry no text of the service: that may hold key names
and addresses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass


class RequestError(Exception):
    """A request that did not succeed. `code` is the service's own short word for it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class ConditionFailed(RequestError):
    """The object exists already, or is no longer the version that was named: nothing was written."""


class TryAgain(RequestError):
    """Refused for now (throttled, or a conflicting write is under way): nothing was written."""


class OutcomeUnknown(RequestError):
    """No answer, or an error inside the service: a write may have happened or not."""


class Forbidden(RequestError):
    """These credentials may not do that, or there are none."""


class NoBucket(RequestError):
    """The bucket itself does not exist."""


class NotSupported(RequestError):
    """The service does not know this kind of request."""


class ServiceUnreachable(OutcomeUnknown):
    """Nothing answers at the service's address."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An object, or a range of one."""

    data: bytes
    size: int
    """Of the whole object."""
    version: str | None
    """Changes when the object does; None where the service has no such thing."""
    age: float
    """Seconds since it was written, by the service's own clock where it tells one."""


class ObjectClient(ABC):
    """One bucket. Keys are whole; a missing object is FileNotFoundError."""

    #: Whether `put` can demand that the object still be a given version.
    can_match = False

    @abstractmethod
    def get(self, key: str) -> Blob:
        """Return the whole object."""

    @abstractmethod
    def get_range(self, key: str, start: int, count: int) -> Blob:
        """Return the bytes from `start`; a negative `start` counts from the end, as `count` then does not matter."""

    @abstractmethod
    def size(self, key: str) -> int:
        """Return the object's length."""

    @abstractmethod
    def put(self, key: str, data: bytes, *, absent: bool = False, match: str | None = None) -> str | None:
        """Write an object, if it is absent, or if it still is the version `match`; gives its version."""

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """Return what follows `prefix` up to the next slash, each once."""

    @abstractmethod
    def entries(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and size of every object whose key begins with `prefix`, in no order that could be relied upon."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; a missing one is not an error."""
