"""`model_unchanged`: the checkpoint file is still the one that made the predictions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context
from audit.models.file_kinds import digest_of


class ModelUnchanged(Check):
    """Compare the file's bytes with the recorded digest; load nothing."""

    description = "The checkpoint still has the bytes that were recorded."
    severity = "warning"
    needs = ("model",)

    def run(self, context: Context) -> Iterable[Finding]:
        path = context.run.recipe.get("model") or context.run.model
        if not isinstance(path, str) or context.run.model_digest is None:
            raise Skip("the run does not say which file its model came from")
        file = Path(path)
        sql = f"SELECT model, model_digest FROM runs WHERE run_id = {context.run_literal}"
        if not file.is_file():
            if ":" in path or not file.suffix:
                raise Skip("the model did not come from a file")
            yield Finding(f"The checkpoint {path} no longer exists.", sql=sql)
            return
        try:
            now = digest_of(file)
        except OSError as error:
            raise Skip(f"the checkpoint {path} cannot be read: {error.strerror}") from error
        # A digest that is not of a file's bytes belongs to a model that a function built.
        if len(context.run.model_digest) == len(now) and now != context.run.model_digest:
            yield Finding(
                f"The checkpoint {path} has changed since the run: its digest is {now[:16]}…, "
                f"and was {context.run.model_digest[:16]}….",
                sql=sql,
            )
