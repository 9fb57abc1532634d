"""What a sample's content is, for checks that look for the same content twice: its bytes, else its decoded value."""

from __future__ import annotations

from audit.checks.context import Context, literal


def contents(context: Context) -> str:
    """SQL of the items with a column `content`."""
    plain = context.cached(
        "SELECT count(*) FILTER (source_digest IS NULL AND status = 'ok') = 0 "
        f"AND count(source_digest) = count(DISTINCT hash(source)) FILTER (source_digest IS NOT NULL) AS plain "
        f"FROM {context.items}"
    )[0]["plain"]
    return _contents(context.items, context.run.run_id, plain)


def alike(context: Context, having: str) -> str:
    """SQL of the items whose content several have, as `having` says: each with the first of them, and its own place."""
    # Only the shared digests are joined back: a million different ones stay in the first aggregate.
    shared = (
        f"SELECT content, count(*) AS copies FROM {contents(context)} "
        f"WHERE content IS NOT NULL GROUP BY content HAVING {having}"
    )
    return (
        "(SELECT s.*, copies, first_value(s.index) OVER alike AS first, first_value(s.source) OVER alike AS "
        f"first_source, row_number() OVER alike AS place FROM {contents(context)} s JOIN ({shared}) USING (content) "
        "WINDOW alike AS (PARTITION BY content ORDER BY s.index, s.epoch, s.visit))"
    )


def contents_of(run_id: str) -> str:
    """SQL of all visits of another run, with the same column."""
    return _contents(f"(FROM samples WHERE run_id = {literal(run_id)})", run_id, False)


def _contents(items: str, run_id: str, plain: bool) -> str:
    if plain:
        return f"(SELECT *, source_digest AS content FROM {items})"
    # Samples without a file, and several samples out of one file (frames of a clip), are known by their stage 0.
    return (
        "(SELECT s.*, CASE WHEN s.source_digest IS NULL "
        "OR count(*) OVER (PARTITION BY s.source) > count(*) OVER (PARTITION BY s.source, o.digest) "
        "THEN o.digest ELSE s.source_digest END AS content "
        f"FROM {items} s LEFT JOIN (SELECT epoch, index, visit, digest FROM stage_outputs "
        f"WHERE run_id = {literal(run_id)} AND stage = 0) o USING (epoch, index, visit))"
    )
