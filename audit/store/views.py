"""The SQL of every view and macro. Pages, checks and commands ask for these; none repeats their SQL."""

from __future__ import annotations

from audit.columns import columns_of
from audit.identity import LATEST
from audit.store import comparison
from audit.store.task_views import VIEWS as TASK_VIEWS
from audit.store.training_views import VIEWS as TRAINING_VIEWS
from audit.tables import PredictionRow, SampleRow

#: What a prediction adds to its sample: the columns that `samples` does not have, but for the numbers of the call.
PREDICTED_COLUMNS = tuple(
    name for name in columns_of(PredictionRow) if name not in columns_of(SampleRow) and name not in ("call", "number")
)
_PREDICTED_COLUMNS = ", ".join(f"p.{name}" for name in PREDICTED_COLUMNS)

#: Of the predictions of one visit, the condition for the one that is graded: that of the first recorded model, of its calls the first.
GRADED_CONDITION = "coalesce(call, 0) = 0"

#: In the order they are created: each may use those before it.
VIEWS: dict[str, str] = {
    # One prediction for each visit.
    "graded_predictions": f"FROM predictions WHERE {GRADED_CONDITION}",
    "lineage": f"""
        SELECT s.* EXCLUDE (source_raw), {_PREDICTED_COLUMNS}
        FROM samples s LEFT JOIN graded_predictions p USING (run_id, epoch, index, visit)
    """,
    # As in lineage, but the label is the one it was graded against: a condition on it then picks among predictions
    # before they are joined, which of millions takes a tenth of the memory.
    "wrong_predictions": f"""
        SELECT s.* EXCLUDE (source_raw) REPLACE (p.label AS label, p.label_name AS label_name), {_PREDICTED_COLUMNS}
        FROM samples s JOIN graded_predictions p USING (run_id, epoch, index, visit) WHERE NOT p.correct
    """,
    # Predictions of inputs that were mixed from several samples, with those samples. None of them is graded.
    "mixed_predictions": """
        WITH parent AS (
            SELECT run_id, epoch, batch, position, number,
                   list({'index': parent_index, 'weight': weight} ORDER BY weight DESC, parent_index) AS parents
            FROM parents GROUP BY ALL
        )
        SELECT p.run_id, p.epoch, p.index, p.visit, p.batch, p.position, p.step, p.model, p.call, p.number, p.predicted,
               p.predicted_name, p.confidence, p.logits, p.probabilities, p.output, p.operations,
               coalesce(m.parents, c.parents) AS parents
        FROM predictions p
        LEFT JOIN parent m ON m.run_id = p.run_id AND m.epoch = p.epoch AND m.batch = p.batch AND m.position = p.position
            AND m.number = p.number
        LEFT JOIN parent c ON c.run_id = p.run_id AND c.epoch = p.epoch AND c.batch = p.batch AND c.position = p.position
            AND c.number IS NULL
        WHERE list_contains(p.operations, 'mix') ORDER BY p.run_id, p.epoch, p.batch, p.position, p.call
    """,
    "failures": "SELECT * EXCLUDE (source_raw) FROM samples WHERE status = 'failed'",
    "confusion": """
        SELECT run_id, epoch, label, any_value(label_name) AS label_name, predicted,
               any_value(predicted_name) AS predicted_name, count(*) AS count
        FROM graded_predictions WHERE label IS NOT NULL GROUP BY run_id, epoch, label, predicted
        ORDER BY run_id, epoch, label, predicted
    """,
    "per_class": """
        SELECT run_id, epoch, label, any_value(label_name) AS label_name, count(*) AS samples,
               count(*) FILTER (correct) AS correct, avg(correct::INT) AS accuracy,
               avg(confidence) AS mean_confidence, avg(loss) AS mean_loss
        FROM graded_predictions WHERE label IS NOT NULL GROUP BY run_id, epoch, label ORDER BY run_id, epoch, label
    """,
}

VIEWS |= TASK_VIEWS
VIEWS |= TRAINING_VIEWS


def _last_epoch_condition(run: str) -> str:
    """Return the condition that a row belongs to the last complete epoch of the run that a macro's parameter names."""
    newest = f"SELECT max(epoch) FROM samples WHERE run_id = known_run({run})"
    epoch = f"coalesce((SELECT last_epoch FROM runs WHERE run_id = known_run({run})), ({newest}))"
    return f"run_id = known_run({run}) AND epoch = {epoch}"


def _choose_run(side: str) -> dict[str, str]:
    """Return queries that look up the run of a macro's parameter and its last complete epoch, once for all that ask for them."""
    run = f"(SELECT run_id FROM run_{side})"
    newest = f"SELECT max(epoch) FROM samples WHERE run_id = {run}"
    epoch = f"SELECT coalesce((SELECT last_epoch FROM runs WHERE run_id = {run}), ({newest})) AS epoch"
    return {f"run_{side}": f"SELECT known_run({side}) AS run_id", f"epoch_{side}": epoch}


def _is_chosen(side: str) -> str:
    """Return the condition that a row belongs to the run and the epoch that `_chosen_run` looks up."""
    return f"run_id = (SELECT run_id FROM run_{side}) AND epoch = (SELECT epoch FROM epoch_{side})"


def _side(row: str, side: str) -> str:
    """Return what the prediction of one side adds to a pair."""
    return (
        f"{row}.predicted AS predicted_{side}, {row}.predicted_name AS name_{side}, {row}.correct AS correct_{side}, "
        f"{row}.input_digest AS input_{side}, {row}.run_id IS NOT NULL OR NULL AS seen_{side}, "
        f"{comparison.scores(row)} AS scores_{side}"
    )


_MATCHES_MACRO = comparison.with_clause(
    _choose_run("a") | _choose_run("b") | comparison.write_matching_queries(_is_chosen("a"), _is_chosen("b"))
)
_RUNS = ("(SELECT run_id FROM run_a)", "(SELECT run_id FROM run_b)")
_FLIPS_MACRO = comparison.flip_query(
    "FROM joined",
    model=comparison.model_changed(*_RUNS, "joined"),
    pipeline=comparison.pipeline_changed(*_RUNS),
)

#: Scalar and table macros: name with parameters, and body.
MACROS: dict[str, str] = {
    # The rule of `identity.resolve_run`; a test compares the two.
    "run_of(reference)": f"""CASE
        WHEN regexp_full_match(reference, '{LATEST}') THEN (
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
    # The samples whose recorded vectors are nearest to that of one sample, in the last epoch of a run.
    "neighbours(reference, sample)": """TABLE
        WITH vectors AS (
            SELECT index, visit, output FROM graded_predictions
            WHERE run_id = known_run(reference) AND output IS NOT NULL
              AND epoch = (SELECT max(epoch) FROM predictions WHERE run_id = known_run(reference))
        ), own AS (SELECT any_value(output) AS output FROM vectors WHERE index = sample)
        SELECT v.index, v.visit, list_cosine_similarity(v.output, own.output) AS similarity
        FROM vectors v, own WHERE v.index <> sample ORDER BY similarity DESC, v.index
    """,
    # Precision and recall of each class of a multi-label model, where a score above the threshold says yes.
    "precision_recall(reference, threshold)": f"""TABLE
        SELECT class, any_value(class_name) AS class_name, count(*) FILTER (target > 0.5) AS positives,
               count(*) FILTER (target > 0.5 AND score > threshold AND score <= 1) AS tp,
               count(*) FILTER (target <= 0.5 AND score > threshold AND score <= 1) AS fp, positives - tp AS fn,
               tp / nullif(tp + fp, 0) AS precision, tp / nullif(tp + fn, 0) AS recall
        FROM label_scores WHERE correct IS NOT NULL AND {_last_epoch_condition("reference")} GROUP BY class ORDER BY class
    """,
    # Which visit of one run is which of another. A visit without a partner has NULLs.
    "matches(a, b)": f"""TABLE
        {_MATCHES_MACRO}
        SELECT source AS source_a, coalesce(renamed_to, source) AS source_b, how, index_a, visit_a, index_b, visit_b,
               label_a, label_b, failed_a, failed_b, other_bytes AS source_changed,
               {comparison.LABEL_CHANGED} AS label_changed
        FROM pairs
        UNION ALL BY NAME
        SELECT CASE WHEN index_a IS NOT NULL THEN source END AS source_a,
               CASE WHEN index_b IS NOT NULL THEN source END AS source_b, index_a, visit_a, index_b, visit_b,
               CASE WHEN index_a IS NOT NULL THEN label END AS label_a,
               CASE WHEN index_b IS NOT NULL THEN label END AS label_b
        FROM alone
    """,
    # Predictions that are not what they were, and why.
    "flips(a, b)": f"""TABLE
        {_MATCHES_MACRO}, joined AS MATERIALIZED (
            SELECT p.*, v.digest AS loaded_a, w.digest AS loaded_b, {_side("x", "a")}, {_side("y", "b")}
            FROM pairs p
            LEFT JOIN (FROM stage_outputs WHERE {_is_chosen("a")} AND stage = 0) v
                ON v.index = p.index_a AND v.visit = p.visit_a
            LEFT JOIN (FROM stage_outputs WHERE {_is_chosen("b")} AND stage = 0) w
                ON w.index = p.index_b AND w.visit = p.visit_b
            LEFT JOIN (FROM graded_predictions WHERE {_is_chosen("a")}) x ON x.index = p.index_a AND x.visit = p.visit_a
            LEFT JOIN (FROM graded_predictions WHERE {_is_chosen("b")}) y ON y.index = p.index_b AND y.visit = p.visit_b
        )
        SELECT coalesce(renamed_to, source) AS source, source AS source_a, index_a, index_b, visit_a, visit_b, label_a,
               label_b, predicted_a, predicted_b, correct_a, correct_b, flip, cause
        FROM ({_FLIPS_MACRO})
        WHERE flip IS NOT NULL ORDER BY index_b, visit_b, index_a
    """,
}


def latest_view(run_id: str | None) -> str:
    """Return the view `latest`: the lineage of the newest complete run; its id is written in, so that other files stay closed."""
    # An id holds letters, digits, dots, dashes and underscores alone: manifest.check_run_id.
    chosen = f"'{run_id}'" if run_id else "NULL"
    return f"FROM lineage WHERE run_id = {chosen}"
