"""What a sample's content is, for checks that look for the same content twice: its bytes, else its decoded value."""

from __future__ import annotations

from audit.checks.context import Context


def contents(context: Context) -> str:
    """SQL of the items with a column `content`. Datasets without files are known by their stage 0."""
    without = context.cached(
        f"SELECT count(*) FILTER (source_digest IS NULL AND status = 'ok') AS none FROM {context.items}"
    )[0]["none"]
    if not without:
        return f"(SELECT *, source_digest AS content FROM {context.items})"
    return (
        f"(SELECT s.*, coalesce(s.source_digest, o.digest) AS content FROM {context.items} s LEFT JOIN "
        f"(SELECT epoch, index, visit, digest FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = 0) o "
        "USING (epoch, index, visit))"
    )
