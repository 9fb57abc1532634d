"""Where an object store is: scheme, bucket and prefix of a location such as s3://bucket/lineage.

Credentials have no place in a location: it is shown in messages and kept in the run's command. So one that carries a
user, a password or a query string is refused before anything is written, and the refusal does not repeat it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec

from audit.errors import MissingExtra, UsageError

#: For each scheme the package it needs and the extra that brings it.
SCHEMES = {"s3": ("boto3", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure")}

_LOCATION = re.compile(r"([a-z][a-z0-9+.-]*):/{1,3}(.*)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A place in a bucket; `prefix` has no slash at either end."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def is_remote(text: str) -> bool:
    """Return whether a location names a scheme that is an object store's, even with a slash too few (`Path` drops one)."""
    found = _LOCATION.match(text)
    return found is not None and found[1].lower() in SCHEMES


def parse_location(text: str, what: str = "store") -> ObjectLocation:
    """Return the parts of a location; UsageError where it has none, or carries what must not be shown."""
    found = _LOCATION.fullmatch(text)
    if found is None or found[1].lower() not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        scheme = found[1].lower() if found is not None else ""
        # The address itself is not shown: it may hold a password.
        raise UsageError(
            f"The {what} is not a location that audit can open"
            + (f": {scheme}:// is not supported." if scheme else "."),
            hint=f"Use a directory, file:// or one of {known}."
            + (" Download the files first." if scheme in ("http", "https") else ""),
        )
    scheme, rest = found[1].lower(), found[2]
    # A user and password stand before the bucket; a signed address carries its signature in the query.
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise UsageError(
            f"The {scheme}:// location of the {what} holds a user, a password or a query, which would be shown and kept.",
            hint=f"Write {scheme}://bucket/prefix and give credentials in the environment or in a profile.",
        )
    bucket, _, prefix = rest.partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}", bucket):
        raise UsageError(f"The {scheme}:// location of the {what} names no bucket.", hint=f"Write {scheme}://bucket/…")
    parts = [part for part in prefix.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise UsageError(f"{scheme}://{bucket}/… holds a step such as `..`.", hint="Write the place itself.")
    return ObjectLocation(scheme, bucket, "/".join(parts))


def package_of(text: str) -> str | None:
    """Return the package that reaches a location; None for one that is not an object store's."""
    found = _LOCATION.match(text)
    return SCHEMES.get(found[1].lower(), (None,))[0] if found else None


def require_package(scheme: str, purpose: str) -> None:
    """MissingExtra unless what the scheme needs is installed."""
    package, extra = SCHEMES[scheme]
    if find_spec(package) is None:
        raise MissingExtra(package, purpose, extra)
