"""The SQL of every view and macro. Pages, checks and commands ask for these; none repeats their SQL."""

from __future__ import annotations

from audit.store.training_views import VIEWS as TRAINING_VIEWS

#: What a prediction adds to its sample.
_PREDICTED = """p.predicted, p.predicted_name, p.confidence, p.correct, p.loss, p.margin, p.entropy, p.label_rank,
               p.logits, p.probabilities, p.input_digest, p.step"""

#: In the order they are created: each may use those before it.
VIEWS: dict[str, str] = {
    "lineage": f"""
        SELECT s.* EXCLUDE (source_raw), {_PREDICTED}
        FROM samples s LEFT JOIN predictions p USING (run_id, epoch, index, visit)
    """,
    # As in lineage, but the label is the one it was graded against: a condition on it then picks among predictions
    # before they are joined, which of millions takes a tenth of the memory.
    "wrong_predictions": f"""
        SELECT s.* EXCLUDE (source_raw) REPLACE (p.label AS label, p.label_name AS label_name), {_PREDICTED}
        FROM samples s JOIN predictions p USING (run_id, epoch, index, visit) WHERE NOT p.correct
    """,
    "failures": "SELECT * EXCLUDE (source_raw) FROM samples WHERE status = 'failed'",
    "confusion": """
        SELECT run_id, epoch, label, any_value(label_name) AS label_name, predicted,
               any_value(predicted_name) AS predicted_name, count(*) AS count
        FROM predictions WHERE label IS NOT NULL GROUP BY run_id, epoch, label, predicted
        ORDER BY run_id, epoch, label, predicted
    """,
    "per_class": """
        SELECT run_id, epoch, label, any_value(label_name) AS label_name, count(*) AS samples,
               count(*) FILTER (correct) AS correct, avg(correct::INT) AS accuracy,
               avg(confidence) AS mean_confidence, avg(loss) AS mean_loss
        FROM predictions WHERE label IS NOT NULL GROUP BY run_id, epoch, label ORDER BY run_id, epoch, label
    """,
}

VIEWS |= TRAINING_VIEWS

#: Scalar and table macros: name with parameters, and body.
MACROS: dict[str, str] = {
    # A run by id, by name (the newest of that name), 'latest', 'latest~N', or the beginning of one id alone.
    "run_of(reference)": """CASE
        WHEN regexp_full_match(reference, 'latest(~[0-9]{1,9})?') THEN (
            SELECT list(run_id ORDER BY sequence DESC) FROM runs WHERE status = 'complete'
        )[1 + coalesce(try_cast(reference[8:] AS INT), 0)]
        ELSE coalesce(
            (SELECT arg_max(run_id, sequence) FROM runs WHERE run_id = reference OR name = reference),
            (SELECT any_value(run_id) FROM runs WHERE starts_with(run_id, reference) HAVING count(*) = 1)
        ) END
    """,
    # The same, but one that is not there is an error: a name mistyped in CI must not look as if nothing differed.
    "known_run(reference)": """
        coalesce(run_of(reference), error(format('There is no run ''{}'' here.', reference)))
    """,
    # The visits of a run's last epoch; one that a source has several of is told apart by its number.
    "last_visits(reference)": """TABLE
        SELECT run_id, epoch, index, visit, coalesce(source, 'dataset://' || index) AS source, source_digest, label,
               label_name, status,
               row_number() OVER (
                   PARTITION BY coalesce(source, 'dataset://' || index) ORDER BY split, index, visit
               ) AS nth
        FROM samples
        WHERE run_id = known_run(reference)
          AND epoch = (SELECT max(epoch) FROM samples WHERE run_id = known_run(reference))
    """,
    # Which visit of one run is which of another: by source, then by content. A visit without a partner has NULLs.
    "matches(a, b)": """TABLE
        WITH x AS (FROM last_visits(a)), y AS (FROM last_visits(b)),
        gone AS (
            SELECT *, row_number() OVER (PARTITION BY source_digest ORDER BY index, visit) AS twin
            FROM x ANTI JOIN y USING (source, nth)
        ), come AS (
            SELECT *, row_number() OVER (PARTITION BY source_digest ORDER BY index, visit) AS twin
            FROM y ANTI JOIN x USING (source, nth)
        ), met AS (
            SELECT columns(x.*) AS '\\0_a', columns(y.*) AS '\\0_b'
            FROM x JOIN y ON x.source = y.source AND x.nth = y.nth
            UNION ALL BY NAME
            SELECT columns(gone.*) AS '\\0_a', columns(come.*) AS '\\0_b'
            FROM gone FULL OUTER JOIN come ON gone.source_digest = come.source_digest AND gone.twin = come.twin
        )
        SELECT source_a, source_b, run_id_a, epoch_a, index_a, visit_a, run_id_b, epoch_b, index_b, visit_b, label_a,
               label_b, status_a, status_b, source_digest_a <> source_digest_b AS source_changed,
               CASE WHEN label_name_a IS NOT NULL AND label_name_b IS NOT NULL THEN label_name_a <> label_name_b
                    ELSE label_a IS DISTINCT FROM label_b END AS label_changed
        FROM met
    """,
    # Predictions that are not what they were, and why: data (other bytes or label), pipeline (other input) or model.
    "flips(a, b)": """TABLE
        WITH loaded AS (SELECT run_id, epoch, index, visit, digest FROM stage_outputs WHERE stage = 0),
        joined AS (
            SELECT m.*, x.predicted AS predicted_a, y.predicted AS predicted_b, x.correct AS correct_a,
                   y.correct AS correct_b, x.input_digest AS input_a, y.input_digest AS input_b,
                   CASE WHEN x.predicted_name IS NOT NULL AND y.predicted_name IS NOT NULL
                        THEN x.predicted_name <> y.predicted_name
                        ELSE x.predicted IS DISTINCT FROM y.predicted END AS other_class
            FROM matches(a, b) m
            JOIN predictions x ON x.run_id = run_id_a AND x.epoch = epoch_a AND x.index = index_a AND x.visit = visit_a
            JOIN predictions y ON y.run_id = run_id_b AND y.epoch = epoch_b AND y.index = index_b AND y.visit = visit_b
        ), flipped AS (
            SELECT *, CASE WHEN correct_a AND NOT correct_b THEN 'regression'
                           WHEN correct_b AND NOT correct_a THEN 'fix' WHEN other_class THEN 'change' END AS flip
            FROM joined
        )
        SELECT f.source_b AS source, f.source_a, f.index_a, f.index_b, f.visit_a, f.visit_b, f.label_a, f.label_b,
               f.predicted_a, f.predicted_b, f.correct_a, f.correct_b, f.flip,
               CASE WHEN coalesce(f.source_changed, x.digest <> y.digest, false) OR f.label_changed THEN 'data'
                    WHEN f.input_a IS DISTINCT FROM f.input_b THEN 'pipeline' ELSE 'model' END AS cause
        FROM flipped f
        LEFT JOIN loaded x ON x.run_id = run_id_a AND x.epoch = epoch_a AND x.index = index_a AND x.visit = visit_a
        LEFT JOIN loaded y ON y.run_id = run_id_b AND y.epoch = epoch_b AND y.index = index_b AND y.visit = visit_b
        WHERE f.flip IS NOT NULL ORDER BY f.index_b, f.visit_b, f.index_a
    """,
    # A walk through two pipelines at once: after each step, the last stage that either has run. Stages are the same
    # when they have the same name, the first of a name with the first, the second with the second.
    "stage_steps(a, b)": """TABLE
        WITH x AS (
            SELECT stage, name, starts_with(path, 'target') AS target,
                   row_number() OVER (PARTITION BY name, starts_with(path, 'target') ORDER BY stage) AS nth
            FROM stages WHERE run_id = known_run(a)
        ), y AS (
            SELECT stage, name, starts_with(path, 'target') AS target,
                   row_number() OVER (PARTITION BY name, starts_with(path, 'target') ORDER BY stage) AS nth
            FROM stages WHERE run_id = known_run(b)
        ), faced AS (
            SELECT x.stage AS stage_a, y.stage AS stage_b, coalesce(x.name, y.name) AS name,
                   coalesce(x.target, y.target) AS target
            FROM x FULL OUTER JOIN y ON x.name = y.name AND x.nth = y.nth AND x.target = y.target
        ), placed AS (
            -- What only the second has goes before the next stage that both have.
            SELECT *, coalesce(stage_a, min(stage_a) FILTER (stage_b IS NOT NULL) OVER (
                PARTITION BY target ORDER BY stage_b ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
            ), 2147483647) AS place
            FROM faced
        )
        SELECT row_number() OVER walk AS step, name, target, stage_a, stage_b,
               max(stage_a) OVER walk AS at_a, max(stage_b) OVER walk AS at_b
        FROM placed WINDOW walk AS (PARTITION BY target ORDER BY place, stage_a IS NOT NULL, stage_b)
    """,
    # The first stage of each matched sample after which the runs differ and never agree again.
    "divergence(a, b)": """TABLE
        WITH steps AS (FROM stage_steps(a, b)),
        x AS (SELECT index, visit, epoch, stage, digest, changed FROM stage_outputs WHERE run_id = known_run(a)),
        y AS (SELECT index, visit, epoch, stage, digest, changed FROM stage_outputs WHERE run_id = known_run(b)),
        met AS (FROM matches(a, b) WHERE index_a IS NOT NULL AND index_b IS NOT NULL),
        states AS (
            SELECT index_a, visit_a, index_b, visit_b, step, target,
                   CASE WHEN at_a IS NULL THEN NOT y.changed WHEN at_b IS NULL THEN NOT x.changed
                        WHEN x.digest IS NOT NULL OR y.digest IS NOT NULL
                        THEN x.digest IS NOT DISTINCT FROM y.digest END AS alike
            FROM met CROSS JOIN steps
            LEFT JOIN x ON x.epoch = epoch_a AND x.index = index_a AND x.visit = visit_a AND x.stage = at_a
            LEFT JOIN y ON y.epoch = epoch_b AND y.index = index_b AND y.visit = visit_b AND y.stage = at_b
        ), walks AS (
            SELECT index_a, visit_a, index_b, visit_b, target, coalesce(max(step) FILTER (alike), 0) AS last_alike,
                   list(step) FILTER (NOT alike) AS others
            FROM states GROUP BY ALL
        ), firsts AS (
            SELECT index_a, visit_a, index_b, visit_b, target,
                   list_min(list_filter(others, lambda step: step > last_alike)) AS step
            FROM walks
        ), chosen AS (
            -- What leads to the model's input comes before what leads to the label.
            SELECT index_a, visit_a, index_b, visit_b, arg_min((target, step), target) AS first
            FROM firsts WHERE step IS NOT NULL GROUP BY ALL
        )
        SELECT met.source_b AS source, met.source_a, c.index_a, c.index_b, c.visit_a, c.visit_b,
               s.name, s.stage_a, s.stage_b
        FROM chosen c JOIN met USING (index_a, visit_a, index_b, visit_b)
        JOIN steps s ON c.first = (s.target, s.step)
        ORDER BY c.index_b, c.visit_b
    """,
}


def latest_view(run_id: str | None) -> str:
    """`latest`: the lineage of the newest complete run; its id is written in, so that other files stay closed."""
    # An id holds letters, digits, dots, dashes and underscores alone: manifest.check_run_id.
    chosen = f"'{run_id}'" if run_id else "NULL"
    return f"FROM lineage WHERE run_id = {chosen}"
