"""The SQL that compares two runs, written once: the macros `matches` and `flips` and the tables of `audit diff` use it.

Every text here is a query over tables of the store or over the tables that `matching` names. A join has its smaller side
on the right: DuckDB does not know how many rows a table of the store has. Each sample of both runs
ends up in exactly one place: in `pairs`, or in `alone`.
"""

from __future__ import annotations

# Addresses, paths and large numbers change from sample to sample in what is the same error.
_ERROR = r"""
    CASE WHEN status = 'failed'
         THEN hash(failed_stage, regexp_replace(error, '0x[0-9a-fA-F]+|\S*[/\\]\S*|[0-9]{3,}', '#', 'g')) END
"""

# The digest by its 64-bit hash, which takes a ninth of the memory; that two digests hash alike has a chance of one in 10¹⁹.
_VISITS = """
    SELECT split, index, visit, coalesce(source, 'dataset://' || index) AS source,
           CASE WHEN source_digest IS NOT NULL THEN hash(source_digest) END AS source_digest, label, label_name,
           status = 'failed' AS failed, {error} AS error
    FROM {samples} WHERE {rows}
"""

# One file may hold many samples, as the slices of a volume: its name alone does not say which of them a visit is.
_FILES_OF_MANY = """
    SELECT source FROM ({a}) GROUP BY source HAVING min(index) <> max(index) UNION
    SELECT source FROM ({b}) GROUP BY source HAVING min(index) <> max(index)
"""
_IN_FILES_OF_MANY = """
    SELECT v.*, o.digest AS loaded, row_number() OVER (PARTITION BY source, o.digest ORDER BY index, visit) AS nth
    FROM (SELECT index, visit, digest FROM stage_outputs WHERE {rows} AND stage = 0) o
    JOIN (FROM ({visits}) SEMI JOIN files_of_many USING (source)) v USING (index, visit)
"""
_NUMBERED_VISITS = """
    SELECT v.*, row_number() OVER (PARTITION BY source ORDER BY split, index, visit) AS nth
    FROM ({visits}) v ANTI JOIN same_in_file m ON m.index_{side} = v.index AND m.visit_{side} = v.visit
"""

_VISITS_BY_SOURCE = """
    SELECT x.index AS index_a, x.visit AS visit_a, y.index AS index_b, y.visit AS visit_b,
           coalesce(x.source, y.source) AS source, x.label AS label_a, y.label AS label_b,
           x.label_name AS label_name_a, y.label_name AS label_name_b, x.failed AS failed_a, y.failed AS failed_b,
           x.error AS error_a, y.error AS error_b,
           x.source_digest IS NOT NULL AND y.source_digest IS NOT NULL AS comparable,
           x.source_digest <> y.source_digest AS other_bytes,
           CASE WHEN x.index IS NULL OR y.index IS NULL THEN coalesce(x.source_digest, y.source_digest) END AS digest
    FROM ({a}) x {join} ({b}) y ON {on}
"""

_LONE_SIDE = """
    SELECT index_{side} AS index, visit_{side} AS visit, source, digest AS source_digest, label_{side} AS label,
           label_name_{side} AS label_name, failed_{side} AS failed, error_{side} AS error
    FROM {table} WHERE index_{other} IS NULL
"""

_VISITS_OF_A_ALONE = "SELECT *, index_a AS index, visit_a AS visit FROM by_source WHERE index_b IS NULL"
_VISITS_OF_B_ALONE = "SELECT *, index_b AS index, visit_b AS visit FROM by_source WHERE index_a IS NULL"
_REST = "SELECT l.* FROM {rows} l ANTI JOIN {matched} m ON m.index_{side} = l.index AND m.visit_{side} = l.visit"
_LOADED_VISITS = """
    SELECT l.*, o.digest AS loaded FROM (SELECT index, visit, digest FROM stage_outputs WHERE {run} AND stage = 0) o
    JOIN {rows} l USING (index, visit)
"""
# The path without the extension: `cat/1.png` and `cat/1.jpg` are one picture that was stored again.
_STEM = r"""
    SELECT *, CASE WHEN regexp_matches(source, '\.[A-Za-z0-9]{{1,5}}$')
                   THEN regexp_replace(source, '\.[A-Za-z0-9]{{1,5}}$', '') END AS stem FROM {rows}
"""

_MATCHED_BY_KEY = """
    WITH g AS (
        SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY index, visit) AS nth
        FROM ({rest_a}) WHERE {key} IS NOT NULL
    ), c AS (
        SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY index, visit) AS nth
        FROM ({rest_b}) WHERE {key} IS NOT NULL
    )
    SELECT g.index_a, g.visit_a, c.index_b, c.visit_b, g.source, c.source AS renamed_to, '{how}' AS how, g.label_a,
           c.label_b, g.label_name_a, c.label_name_b, g.failed_a, c.failed_b, g.error_a, c.error_b,
           g.digest IS NOT NULL AND c.digest IS NOT NULL AS comparable, g.digest <> c.digest AS other_bytes
    FROM g JOIN c USING ({key}, nth)
"""

#: More unmatched samples than this on one side are another dataset, and their pictures are not compared.
_MOST = 4_000
# One more than the most, so that DuckDB does not list a million keys to count them.
_KEYS = """
    SELECT list({{'run_id': run_id, 'epoch': epoch, 'index': index, 'visit': visit}} ORDER BY index, visit) AS keys
    FROM (FROM {rows} LIMIT {limit}), (SELECT run_id, epoch FROM samples WHERE {run} LIMIT 1)
"""
# A function of ours, for no SQL decodes a picture. It reads the previews itself, and only if there is something to compare:
# a join with `payloads` would read all of them, because DuckDB cannot know how few keys there are.
_MATCHED_PICTURES = """
    SELECT unnest(match_pictures(a.keys, b.keys), recursive := true) FROM keys_rest_a a, keys_rest_b b
    WHERE len(a.keys) <= {most} AND len(b.keys) <= {most}
"""
_ALIKE_VISITS = """
    SELECT g.index_a, g.visit_a, c.index_b, c.visit_b, g.source, c.source AS renamed_to, 'alike' AS how, g.label_a,
           c.label_b, g.label_name_a, c.label_name_b, g.failed_a, c.failed_b, g.error_a, c.error_b,
           g.digest IS NOT NULL AND c.digest IS NOT NULL AS comparable, g.digest <> c.digest AS other_bytes
    FROM alike l JOIN rest_a2 g ON g.index_a = l.index_a AND g.visit_a = l.visit_a
    JOIN rest_b2 c ON c.index_b = l.index_b AND c.visit_b = l.visit_b
"""

_PAIRS = """
    SELECT * EXCLUDE (digest), NULL::VARCHAR AS renamed_to, 'source' AS how
    FROM {by_source} WHERE index_a IS NOT NULL AND index_b IS NOT NULL
    UNION ALL BY NAME FROM same_bytes UNION ALL BY NAME FROM same_value UNION ALL BY NAME FROM same_look
    UNION ALL BY NAME FROM same_name
"""

_LONE_VISITS = """
    SELECT source, index_a, visit_a, index_b, visit_b, coalesce(label_a, label_b) AS label,
           coalesce(label_name_a, label_name_b) AS label_name
    FROM ({rest_a}) UNION ALL BY NAME
    SELECT source, index_a, visit_a, index_b, visit_b, coalesce(label_a, label_b) AS label,
           coalesce(label_name_a, label_name_b) AS label_name
    FROM ({rest_b})
"""


def write_matching_queries(a: str, b: str, *, sources_are_unique: bool = False) -> dict[str, str]:
    """Return the queries that match the visits of two runs, by the name of the table that each makes; later ones read earlier ones.

    `a` and `b` are the conditions that a row belongs to the run and the epoch. Visits of one source are matched by the
    value that was loaded, if several samples have it as their source, and then in order. A visit without a partner of the same
    source is matched by its bytes (`how` is `renamed`), then by the value that was loaded (`reencoded`), then by the
    stored previews (`alike`, see store/read/reencoded_pictures.py), then by its name without the extension (`reencoded`).
    """
    tables = _pair_by_source(a, b, sources_are_unique)
    by_source = "by_source" if sources_are_unique else "(FROM same_in_file UNION ALL BY NAME FROM by_source)"
    tables |= {"rest_a": _VISITS_OF_A_ALONE, "rest_b": _VISITS_OF_B_ALONE}
    tables["same_bytes"] = _MATCHED_BY_KEY.format(
        rest_a="FROM rest_a", rest_b="FROM rest_b", key="digest", how="renamed"
    )
    tables |= _unmatched_rows("rest_a", "rest_b", "same_bytes", "1")
    loaded = [_LOADED_VISITS.format(rows=rows, run=run) for rows, run in (("rest_a1", a), ("rest_b1", b))]
    tables["same_value"] = _MATCHED_BY_KEY.format(rest_a=loaded[0], rest_b=loaded[1], key="loaded", how="reencoded")
    tables |= _unmatched_rows("rest_a1", "rest_b1", "same_value", "2")
    tables |= _pair_by_preview(a, b)
    tables |= _unmatched_rows("rest_a2", "rest_b2", "same_look", "3")
    stems = [_STEM.format(rows=rows) for rows in ("rest_a3", "rest_b3")]
    tables["same_name"] = _MATCHED_BY_KEY.format(rest_a=stems[0], rest_b=stems[1], key="stem", how="reencoded")
    rest_a, rest_b = _unmatched_rows("rest_a3", "rest_b3", "same_name", "").values()
    return tables | {
        "pairs": _PAIRS.format(by_source=by_source),
        "alone": _LONE_VISITS.format(rest_a=rest_a, rest_b=rest_b),
    }


def match_unique_sources(a: str, b: str, samples_a: str = "samples", samples_b: str = "samples") -> str:
    """Return the query that puts the visits of two runs beside each other whose sources are unique, and those of one run alone."""
    return _join_unique_sources(_visits_of(a, samples_a), _visits_of(b, samples_b))


def match_lone_visits(table: str) -> str:
    """Return the same query for the visits that are alone in a table that `match_unique_sources` has made."""
    return _join_unique_sources(
        *(_LONE_SIDE.format(table=table, side=side, other=other) for side, other in ("ab", "ba"))
    )


def _join_unique_sources(a: str, b: str) -> str:
    return _VISITS_BY_SOURCE.format(a=a, b=b, join="FULL OUTER JOIN", on="x.source = y.source")


def _visits_of(rows: str, samples: str = "samples") -> str:
    return _VISITS.format(rows=rows, error=_ERROR, samples=samples)


def _pair_by_source(a: str, b: str, sources_are_unique: bool) -> dict[str, str]:
    """Return the queries that put the visits of one source beside each other; `by_source` has those of one run alone, too."""
    if sources_are_unique:  # nothing is counted, which spares a sort of all sources
        return {"by_source": match_unique_sources(a, b)}
    visits = {side: _visits_of(rows) for side, rows in (("a", a), ("b", b))}
    in_files = {side: _IN_FILES_OF_MANY.format(visits=visits[side], rows=rows) for side, rows in (("a", a), ("b", b))}
    same_value = {"join": "JOIN", "on": "x.source = y.source AND x.loaded = y.loaded AND x.nth = y.nth"}
    numbered = {side: _NUMBERED_VISITS.format(visits=visits[side], side=side) for side in visits}
    return {
        "files_of_many": _FILES_OF_MANY.format(**visits),
        "same_in_file": _VISITS_BY_SOURCE.format(**in_files, **same_value),
        "by_source": _VISITS_BY_SOURCE.format(
            **numbered, join="FULL OUTER JOIN", on="x.source = y.source AND x.nth = y.nth"
        ),
    }


def _pair_by_preview(a: str, b: str) -> dict[str, str]:
    """Return the queries that pair what is left by its pictures."""
    sides = (("rest_a", a), ("rest_b", b))
    keys = {f"keys_{side}": _KEYS.format(rows=f"{side}2", run=run, limit=_MOST + 1) for side, run in sides}
    return keys | {"alike": _MATCHED_PICTURES.format(most=_MOST), "same_look": _ALIKE_VISITS}


def _unmatched_rows(rest_a: str, rest_b: str, matched: str, number: str) -> dict[str, str]:
    return {
        f"rest_a{number}": _REST.format(rows=rest_a, matched=matched, side="a"),
        f"rest_b{number}": _REST.format(rows=rest_b, matched=matched, side="b"),
    }


def with_clause(tables: dict[str, str]) -> str:
    """Return the queries as the beginning of one: `WITH by_source AS (…), …`."""
    return "WITH " + ", ".join(f"{name} AS MATERIALIZED ({query})" for name, query in tables.items())


#: Whether two samples have other labels: by name, because runs with other class lists number them otherwise.
LABEL_CHANGED = """
    CASE WHEN label_name_a IS NOT NULL AND label_name_b IS NOT NULL THEN label_name_a <> label_name_b
         ELSE label_a IS DISTINCT FROM label_b END
"""

#: The stages that lead to the model's input, as they describe themselves. The same code in another file is the same.
_STAGES_OF_RUN = """
    (SELECT list((name, parameters, source_code_digest) ORDER BY stage) FROM stages
     WHERE run_id = {run} AND NOT starts_with(path, 'target'))
"""


def pipeline_changed(a: str, b: str) -> str:
    """Return SQL: whether two runs, given as SQL of their ids, describe their pipelines differently."""
    return f"{_STAGES_OF_RUN.format(run=a)} IS DISTINCT FROM {_STAGES_OF_RUN.format(run=b)}"


def scores(row: str = "graded_predictions") -> str:
    """Return SQL of what a prediction says besides its class: models that agree in every bit of it for one input are the same."""
    return f"CASE WHEN {row}.confidence IS NOT NULL THEN hash({row}.confidence, {row}.margin, {row}.entropy) END"


_MODEL = "(SELECT model_digest FROM runs WHERE run_id = {run})"


def model_changed(a: str, b: str, joined: str) -> str:
    """Return SQL: whether two runs used different models; NULL where nothing that was recorded tells.

    The digests of the checkpoints tell. Without them, the pairs of `joined` that had the same input do: they have the
    columns `input_a`, `input_b`, `scores_a` and `scores_b`.
    """
    digests = f"{_MODEL.format(run=a)} <> {_MODEL.format(run=b)}"
    return f"coalesce({digests}, (SELECT bool_or(scores_a <> scores_b) FROM {joined} WHERE input_a = input_b))"


_JUDGED_PAIRS = """
    WITH compared_labels AS (
        SELECT *, {label_changed} AS label_changed,
               CASE WHEN comparable THEN other_bytes ELSE coalesce(loaded_a <> loaded_b, false) END AS source_changed,
               CASE WHEN name_a IS NOT NULL AND name_b IS NOT NULL THEN name_a <> name_b
                    ELSE predicted_a IS DISTINCT FROM predicted_b END AS other_class,
               CASE WHEN name_b IS NOT NULL AND label_name_a IS NOT NULL THEN name_b = label_name_a
                    ELSE predicted_b = label_a END AS meets_old_label,
               failed_a AND seen_a IS NULL AS lost_a, failed_b AND seen_b IS NULL AS lost_b
        FROM ({joined})
    ), flipped AS (
        SELECT *, source_changed AND NOT coalesce(loaded_a = loaded_b, false) AS data_changed,
               {of_input} AS input_cause,
               CASE WHEN lost_a AND NOT lost_b THEN false ELSE correct_a END AS right_a,
               CASE WHEN lost_b AND NOT lost_a THEN false ELSE correct_b END AS right_b,
               CASE WHEN correct_a AND (lost_b OR NOT correct_b) THEN 'regression'
                    WHEN correct_b AND (lost_a OR NOT correct_a) THEN 'fix'
                    WHEN seen_a AND seen_b AND other_class THEN 'change' END AS flip
        FROM compared_labels
    )
    SELECT *, CASE
        WHEN flip IS NULL THEN NULL
        -- The label alone flips a prediction that stayed, or that would have been right by the old label.
        WHEN label_changed AND flip <> 'change' AND (NOT other_class OR (flip = 'regression' AND meets_old_label))
        THEN 'labels'
        WHEN label_changed AND flip <> 'change' THEN 'both'
        WHEN lost_a OR lost_b THEN input_cause
        WHEN input_a = input_b THEN 'model'
        WHEN NOT {model_changed} THEN input_cause
        ELSE 'undetermined' END AS cause
    FROM flipped
"""
_OF_INPUT = "CASE WHEN NOT data_changed THEN 'pipeline' WHEN {pipeline} THEN 'undetermined' ELSE 'data' END"


def flip_query(joined: str, *, model: str, pipeline: str) -> str:
    """Return the query that gives each pair its flip and its cause, from what was recorded and never by a guess.

    `joined` has one row for each pair: its columns of `pairs`, and for each side `loaded` (stage 0), `predicted`,
    `name`, `correct`, `seen` (NULL without a prediction) and `input`. `model` and `pipeline` are SQL of whether the
    runs differ in them. Where several things differ and either could have done it, the cause is `undetermined`. A
    sample that has no prediction because it failed is not right.
    """
    of_input = _OF_INPUT.format(pipeline=f"({pipeline})")
    return _JUDGED_PAIRS.format(
        label_changed=LABEL_CHANGED, joined=joined, of_input=of_input, model_changed=f"({model})"
    )
