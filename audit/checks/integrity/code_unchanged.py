"""`code_unchanged`: the code files of the run, helpers included, are still those that were executed."""

from __future__ import annotations

import os
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.usercode import find_changed_files


class CodeUnchanged(Check):
    """Compare the files with the digests of the executed bytes; run nothing."""

    description = "The pipeline's own code files, with the helpers they import, are those that were executed."
    question = "Are the pipeline's files and the checkpoint those of the run?"
    rule = "their digests are compared"
    assumes = "the files are at hand"
    severity = "warning"
    options = settings(gone=Option(False, "Also report files that no longer exist."))

    def run(self, context: Context) -> Iterable[Finding]:
        recorded = context.run.recipe.get("code") or []
        if not recorded:
            raise Skip("the run executed no user code file, or did not record it")
        sql = f"SELECT recipe FROM runs WHERE run_id = {context.run_literal}"
        for file, before, now in find_changed_files(recorded):
            yield Finding(
                f"{file} has changed since the run: its digest is {now[:16]}…, and was {before[:16]}….", sql=sql
            )
        for one in recorded if context.options["gone"] else ():
            if one.get("file") and not os.path.exists(str(one["file"])):
                yield Finding(f"{one['file']} no longer exists.", sql=sql)
