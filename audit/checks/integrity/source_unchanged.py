"""`source_unchanged`: the files on disk still are what was recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.files import chosen_files


class SourceUnchanged(Check):
    """Reads the files again; on large datasets an even choice of them, and says so."""

    name = "source_unchanged"
    group = "integrity"
    description = "The source files still have the bytes that were recorded."
    needs = ("files",)
    options = settings(files=Option(2_000, "At most this many files are read, evenly chosen; 0 reads all."))

    def run(self, context: Context) -> Iterable[Finding]:
        files = chosen_files(context, context.options["files"], "source_digest IS NOT NULL")
        if not files:
            raise Skip("no sample was read from a file")
        for file in files:
            said = None
            try:
                data = file.path.read_bytes()
                if hashlib.sha256(data).hexdigest() != file.digest:
                    said = f"has other bytes than were recorded ({len(data):,} instead of {file.bytes:,})"
                    if len(data) == file.bytes:
                        said = f"has other bytes than were recorded (still {len(data):,} of them)"
            except FileNotFoundError:
                said = "is gone"
            except OSError as error:
                said = f"cannot be read: {error.strerror}"
            if said:
                yield Finding(
                    f"{file.source} (index {file.index}) {said}.",
                    index=file.index,
                    source=file.source,
                    stage=0,
                    sql=context.evidence("samples", file.index),
                )


CHECK = SourceUnchanged
