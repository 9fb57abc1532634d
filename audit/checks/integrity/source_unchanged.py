"""`source_unchanged`: the source files still have the recorded bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import OpenFile, SourceFile, choose_files, open_files

#: Files of at most this many bytes are hashed in one piece.
_SMALL = 2**20


class SourceUnchanged(Check):
    """Read the files again; in large datasets only some of them, with a note."""

    description = "The source files still have the bytes that were recorded."
    question = "Are the files those that were read?"
    rule = "SHA-256 of at most 2,000 files, evenly chosen"
    assumes = "the files are at hand"
    needs = ("files",)
    options = settings(files=Option(2_000, "Read at most this many files, evenly chosen; 0 reads all."))

    def run(self, context: Context) -> Iterable[Finding]:
        files = choose_files(context, context.options["files"], "source_digest IS NOT NULL")
        if not files:
            raise Skip("no sample was read from a file")
        for file, found in open_files(files):
            if said := _differs(file, found):
                yield Finding(
                    f"{file.source} (index {file.index}) {said}.",
                    index=file.index,
                    source=file.source,
                    stage=0,
                    sql=context.evidence("samples", file.index),
                )


def _differs(file: SourceFile, found: OpenFile | OSError) -> str | None:
    """Return how a file differs from the record; None if it does not."""
    if isinstance(found, FileNotFoundError):
        return "no longer exists"
    if isinstance(found, OSError):
        return f"cannot be read: {found.strerror}"
    with found:
        size, before = found.seek(0, os.SEEK_END), file.source_bytes
        found.seek(0)
        # The buffer of `file_digest` takes longer than to hash a small file.
        digest = hashlib.sha256(found.read()) if size <= _SMALL else hashlib.file_digest(found, "sha256")
        now = digest.hexdigest()
    if now == file.source_digest:
        return None
    return "has other bytes than were recorded " + (
        f"(still {size:,} of them)" if size == before else f"({size:,} instead of {before:,})"
    )
