"""The SQL of views for tasks without one class for each sample."""

from __future__ import annotations

VIEWS: dict[str, str] = {
    # One row for each sample and class of a model that judges each class by itself.
    "label_scores": """
        SELECT p.run_id, p.epoch, p.index, p.visit, n - 1 AS class, r.classes[n] AS class_name,
               p.target[n] AS target, p.probabilities[n] AS score,
               CASE WHEN p.target[n] BETWEEN 0 AND 1
                    THEN isfinite(p.probabilities[n]) AND (p.probabilities[n] > 0.5) = (p.target[n] > 0.5) END AS correct
        FROM (SELECT *, unnest(range(1, len(probabilities) + 1)) AS n FROM graded_predictions) p
        JOIN runs r USING (run_id) WHERE r.task = 'multilabel'
    """,
    "per_label": """
        SELECT run_id, epoch, class, any_value(class_name) AS class_name, count(*) AS samples,
               count(*) FILTER (target > 0.5) AS positives, count(*) FILTER (target > 0.5 AND score > 0.5 AND score <= 1) AS tp,
               count(*) FILTER (target <= 0.5 AND score > 0.5 AND score <= 1) AS fp, positives - tp AS fn,
               tp / nullif(tp + fp, 0) AS precision, tp / nullif(tp + fn, 0) AS recall
        FROM label_scores WHERE correct IS NOT NULL GROUP BY run_id, epoch, class ORDER BY run_id, epoch, class
    """,
    # What a model that measures was off, worst first.
    "residuals": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, p.target, p.output,
               list_transform(list_zip(p.output, p.target), lambda x: x[1] - x[2]) AS residual, p.loss
        FROM samples s JOIN graded_predictions p USING (run_id, epoch, index, visit)
        JOIN runs r ON r.run_id = s.run_id WHERE r.task = 'regression' AND p.target IS NOT NULL
        ORDER BY p.loss DESC, s.index
    """,
    # How well each output of a model did, where several have targets of their own. The first calls of each visit count.
    "head_predictions": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, p.model, p.head, p.call, p.label, p.predicted,
               p.confidence, p.correct, p.target, p.output, p.loss,
               CASE WHEN p.probabilities IS NULL
                    THEN list_transform(list_zip(p.output, p.target), lambda x: x[1] - x[2]) END AS residual
        FROM samples s JOIN (
            SELECT *, row_number() OVER (PARTITION BY run_id, epoch, index, visit, model, head ORDER BY call) AS nth
            FROM predictions WHERE head IS NOT NULL AND NOT coalesce(list_contains(operations, 'mix'), false)
        ) p USING (run_id, epoch, index, visit) WHERE p.nth = 1 ORDER BY p.loss DESC, s.index
    """,
    "heads": """
        SELECT run_id, epoch, model, head, count(*) AS samples, count(*) FILTER (loss IS NOT NULL) AS graded,
               avg(correct::INT) AS accuracy, avg(loss) AS mean_loss
        FROM head_predictions GROUP BY run_id, epoch, model, head ORDER BY run_id, epoch, model, head
    """,
    # What a model with several outputs returned for each visit, without values that only seemed to be those of samples.
    "sample_outputs": """
        SELECT * EXCLUDE (data) FROM outputs o WHERE index IS NOT NULL AND (axis IS NOT NULL OR NOT EXISTS (
            FROM outputs w WHERE w.axis = 'other' AND (w.run_id, w.port) = (o.run_id, o.port)
                AND w.model IS NOT DISTINCT FROM o.model))
    """,
    # The target boxes at each stage that returns a picture together with them, in the pixels of that picture.
    "stage_boxes": """
        SELECT run_id, epoch, index, visit, stage, name, n - 1 AS box, classes[n] AS class,
               boxes[n][1] AS x1, boxes[n][2] AS y1, boxes[n][3] AS x2, boxes[n][4] AS y2, width, height
        FROM (
            SELECT *, unnest(range(1, len(boxes) + 1)) AS n FROM (
                SELECT run_id, epoch, index, visit, stage, name, (target -> '$.boxes')::DOUBLE[][] AS boxes,
                       (target -> '$.classes')::BIGINT[] AS classes, (target -> '$.width')::INTEGER AS width,
                       (target -> '$.height')::INTEGER AS height
                FROM stage_outputs WHERE target IS NOT NULL
            )
        ) ORDER BY run_id, epoch, index, visit, stage, box
    """,
    # Objects that the detector did not find, the largest first.
    "missed_objects": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, b.model, b.box, b.class, b.class_name,
               b.x1, b.y1, b.x2, b.y2, b.sx1, b.sy1, b.sx2, b.sy2, (b.x2 - b.x1) * (b.y2 - b.y1) AS area
        FROM samples s JOIN boxes b USING (run_id, epoch, index, visit)
        WHERE b.call = 0 AND b.kind = 'target' AND b.outcome = 'fn' ORDER BY area DESC, s.index, b.box
    """,
    # Boxes where there is no object of their class, the surest first.
    "false_alarms": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, b.model, b.box, b.class, b.class_name, b.score,
               b.x1, b.y1, b.x2, b.y2, b.sx1, b.sy1, b.sx2, b.sy2
        FROM samples s JOIN boxes b USING (run_id, epoch, index, visit)
        WHERE b.call = 0 AND b.kind = 'predicted' AND b.outcome = 'fp' ORDER BY b.score DESC, s.index, b.box
    """,
    # What a detector found of each class, with every box that it gave.
    "per_object_class": """
        SELECT run_id, epoch, class, any_value(class_name) AS class_name,
               count(*) FILTER (kind = 'target' AND outcome IS NOT NULL) AS objects,
               count(*) FILTER (kind = 'predicted' AND outcome = 'tp') AS tp,
               count(*) FILTER (kind = 'predicted' AND outcome = 'fp') AS fp,
               count(*) FILTER (kind = 'target' AND outcome = 'fn') AS fn,
               tp / nullif(tp + fp, 0) AS precision, tp / nullif(tp + fn, 0) AS recall
        FROM boxes WHERE call = 0 GROUP BY run_id, epoch, class ORDER BY run_id, epoch, class
    """,
    # The masks of each visit, the worst first.
    "worst_masks": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, any_value(m.model) AS model,
               avg(m.iou) AS mean_iou, sum(m.shared_pixels) / nullif(sum(m.target_pixels), 0) AS pixel_accuracy,
               min(m.iou) AS worst_iou, arg_min(m.class, m.iou) AS worst_class,
               arg_min(m.class_name, m.iou) AS worst_class_name
        FROM samples s JOIN mask_scores m USING (run_id, epoch, index, visit) WHERE m.call = 0
        GROUP BY s.run_id, s.epoch, s.index, s.visit, s.split, s.source ORDER BY mean_iou, s.index
    """,
    # The IoU of each class over all pixels of an epoch.
    "per_mask_class": """
        SELECT run_id, epoch, class, any_value(class_name) AS class_name, count(*) AS masks,
               sum(target_pixels)::BIGINT AS target_pixels, sum(predicted_pixels)::BIGINT AS predicted_pixels,
               sum(shared_pixels)::BIGINT AS shared_pixels,
               sum(shared_pixels) / nullif(sum(target_pixels + predicted_pixels - shared_pixels), 0) AS iou,
               sum(shared_pixels) / nullif(sum(target_pixels), 0) AS accuracy
        FROM mask_scores WHERE call = 0 GROUP BY run_id, epoch, class ORDER BY run_id, epoch, class
    """,
    # Sequences with what they cost, the worst first.
    "sequences": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, any_value(t.model) AS model,
               count(t.target) AS tokens, avg(t.loss) AS loss, exp(avg(t.loss)) AS perplexity,
               avg(t.correct::INT) AS accuracy
        FROM samples s JOIN tokens t USING (run_id, epoch, index, visit) WHERE t.call = 0
        GROUP BY s.run_id, s.epoch, s.index, s.visit, s.split, s.source ORDER BY loss DESC, s.index
    """,
    # Tokens that were expected least, with the wanted tokens before and after them.
    "worst_tokens": """
        SELECT s.run_id, s.epoch, s.index, s.visit, s.split, s.source, t.* EXCLUDE (run_id, epoch, index, visit, call)
        FROM samples s JOIN (
            SELECT *, list(target) OVER (near ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING) AS before,
                   list(target) OVER (near ROWS BETWEEN 1 FOLLOWING AND 8 FOLLOWING) AS after
            FROM tokens WHERE call = 0
            WINDOW near AS (PARTITION BY run_id, epoch, index, visit ORDER BY position)
        ) t USING (run_id, epoch, index, visit) WHERE t.loss IS NOT NULL ORDER BY t.loss DESC, s.index, t.position
    """,
}
