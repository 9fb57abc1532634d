"""The SQL of views for tasks without one class for each sample."""

from __future__ import annotations

VIEWS: dict[str, str] = {
    # One row for each sample and class of a model that judges each class by itself.
    "label_scores": """
        SELECT p.run_id, p.epoch, p.index, p.visit, n - 1 AS class, r.classes[n] AS class_name,
               p.target[n] AS target, p.probabilities[n] AS score,
               CASE WHEN p.target IS NOT NULL THEN (p.probabilities[n] > 0.5) = (p.target[n] > 0.5) END AS correct
        FROM (SELECT *, unnest(range(1, len(probabilities) + 1)) AS n FROM graded_predictions) p
        JOIN runs r USING (run_id) WHERE r.task = 'multilabel'
    """,
    "per_label": """
        SELECT run_id, epoch, class, any_value(class_name) AS class_name, count(*) AS samples,
               count(*) FILTER (target > 0.5) AS positives, count(*) FILTER (target > 0.5 AND score > 0.5) AS tp,
               count(*) FILTER (target <= 0.5 AND score > 0.5) AS fp,
               count(*) FILTER (target > 0.5 AND score <= 0.5) AS fn,
               tp / nullif(tp + fp, 0) AS precision, tp / nullif(tp + fn, 0) AS recall
        FROM label_scores WHERE target IS NOT NULL GROUP BY run_id, epoch, class ORDER BY run_id, epoch, class
    """,
    # What a model that measures was off, worst first.
    "residuals": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, p.target, p.output,
               list_transform(list_zip(p.output, p.target), lambda x: x[1] - x[2]) AS residual, p.loss
        FROM samples s JOIN graded_predictions p USING (run_id, epoch, index, visit)
        JOIN runs r ON r.run_id = s.run_id WHERE r.task = 'regression' AND p.target IS NOT NULL
        ORDER BY p.loss DESC, s.index
    """,
}
