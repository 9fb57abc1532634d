"""Known and accepted findings: by source, content, stage or message, with a reason and an optional last day.

A finding without a source, such as one about the accuracy of a class, is accepted by its message or its stage.

An expired entry has no effect, and the report has a note about it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime

from audit.checks.base import Finding
from audit.checks.context import Context
from audit.checks.shared.content import contents
from audit.store.sql_literal import literal


@dataclass(frozen=True, slots=True)
class AllowedFinding:
    """One exception: a source or a pattern of sources, a content digest, a stage, or a pattern of messages.

    With a stage and a message, both must fit.
    """

    source: str | None
    digest: str | None
    reason: str
    expires: date | None = None
    stage: str | None = None
    message: str | None = None

    @property
    def target(self) -> str:
        """Return what it accepts, for notes."""
        return self.source or self.digest or self.message or f"the stage {self.stage}"

    @property
    def has_expired(self) -> bool:
        """Return whether its last day has passed."""
        if self.expires is None:
            return False
        today = datetime.now(UTC).date()
        return (self.expires.date() if isinstance(self.expires, datetime) else self.expires) < today


@dataclass(frozen=True, slots=True)
class AllowList:
    """The exceptions of one check."""

    entries: tuple[AllowedFinding, ...] = ()

    def notes(self, check: str) -> list[str]:
        """Return a note for each expired entry."""
        return [
            f"{check}: the exception for {entry.target} expired on {entry.expires} ({entry.reason})"
            for entry in self.entries
            if entry.has_expired
        ]

    def accepts(self, context: Context) -> Callable[[Finding], bool]:
        """Return a function that says whether a finding is accepted. Digests are looked up once, by prefix."""
        live = [entry for entry in self.entries if not entry.has_expired]
        patterns = [entry.source for entry in live if entry.source is not None]
        others = [entry for entry in live if entry.source is None and entry.digest is None]
        digests = [entry.digest.lower() for entry in live if entry.digest is not None]
        named: set[str] = set()
        if digests:
            content = "coalesce(source_digest, content)"  # of a sample without a file, its decoded value
            match = " OR ".join(f"starts_with({content}, {literal(digest)})" for digest in digests)
            named = {row["source"] for row in context.rows(f"SELECT source FROM {contents(context)} WHERE {match}")}

        def is_accepted(finding: Finding) -> bool:
            source = finding.source
            if source is not None and (source in named or any(_matches(source, pattern) for pattern in patterns)):
                return True
            return any(_fits(entry, finding, context) for entry in others)

        return is_accepted


def _fits(entry: AllowedFinding, finding: Finding, context: Context) -> bool:
    """Return whether the stage and the message of an exception, if it has them, match those of the finding."""
    if entry.stage is not None:
        stages = [stage for stage in context.facts.stages if stage.stage == finding.stage]
        if not any(entry.stage in (stage.name, stage.path) for stage in stages):
            return False
    return entry.message is None or _matches(finding.message, entry.message)


def _matches(text: str, pattern: str) -> bool:
    # An exact name matches even if it contains [ or *.
    return text == pattern or fnmatch.fnmatchcase(text, pattern)
