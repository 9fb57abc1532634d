"""Known and accepted findings: sources by name or content, with a reason and an optional last day.

An expired entry has no effect, and the report has a note about it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime

from audit.checks.context import Context, literal
from audit.checks.shared.content import contents


@dataclass(frozen=True, slots=True)
class Allowed:
    """One exception: a source, a pattern of sources, or a content digest."""

    source: str | None
    digest: str | None
    reason: str
    expires: date | None = None

    @property
    def expired(self) -> bool:
        """Return whether its last day has passed."""
        if self.expires is None:
            return False
        today = datetime.now(UTC).date()
        return (self.expires.date() if isinstance(self.expires, datetime) else self.expires) < today


@dataclass(frozen=True, slots=True)
class AllowList:
    """The exceptions of one check."""

    entries: tuple[Allowed, ...] = ()

    def notes(self, check: str) -> list[str]:
        """Return a note for each expired entry."""
        return [
            f"{check}: the exception for {entry.source or entry.digest} expired on {entry.expires} ({entry.reason})"
            for entry in self.entries
            if entry.expired
        ]

    def sources(self, context: Context) -> Callable[[str], bool]:
        """Return a function that says whether a source is allowed. Digests are looked up once, by prefix."""
        live = [entry for entry in self.entries if not entry.expired]
        patterns = [entry.source for entry in live if entry.source is not None]
        digests = [entry.digest.lower() for entry in live if entry.digest is not None]
        named: set[str] = set()
        if digests:
            content = "coalesce(source_digest, content)"  # of a sample without a file, its decoded value
            match = " OR ".join(f"starts_with({content}, {literal(digest)})" for digest in digests)
            named = {row["source"] for row in context.rows(f"SELECT source FROM {contents(context)} WHERE {match}")}
        return lambda source: source in named or any(_matches(source, pattern) for pattern in patterns)


def _matches(source: str, pattern: str) -> bool:
    # An exact name matches even if it contains [ or *.
    return source == pattern or fnmatch.fnmatchcase(source, pattern)
