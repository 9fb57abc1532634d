"""The SQL of the views on training: what each sample's predictions did over epochs, and which steps went wrong.

A sample here is one item in one role: rows are distinguished by `phase` (train or eval, NULL where no step was recorded),
`split`, `root` and `source` besides `index`, because a training and a validation loader number their items alike. Only
graded visits count. These views judge nothing. If only some visits of a sample were recorded, they
describe these.

Several visits in one epoch (a sampler with replacement):

- `forgetting` follows visit after visit, in the order of epoch and visit: an event is a right answer followed by a wrong
  one at the next visit, within an epoch or across epochs.
- `cartography` and `aum` take the mean of the visits of an epoch first, so that every epoch weighs the same.

Values that are not finite are left out of means; a visit with such logits counts as wrong.
"""

from __future__ import annotations

#: A step is compared with the steps of its phase before it: this many at most, and no fewer than the second number.
SPIKE_WINDOW, SPIKE_LEAST = 50, 10
#: It stands out when it lies this many spreads above their median. A spread is 1.4826 × MAD (the standard deviation, for
#: a normal distribution), but at least this share of the median: losses that hardly move would make anything a spike.
SPIKE_SPREADS, SPIKE_SHARE = 5.0, 0.05

_KEY = "run_id, phase, split, root, source, index"

_SEEN_SAMPLES = """
    SELECT p.run_id, t.phase, s.split, s.root, s.source, p.index, p.epoch, p.visit, p.label, p.label_name, p.correct,
           p.logits, CASE WHEN p.label >= 0 THEN p.probabilities[p.label + 1] END::DOUBLE AS probability
    FROM graded_predictions p LEFT JOIN samples s USING (run_id, epoch, index, visit)
    LEFT JOIN steps t ON t.run_id = p.run_id AND t.step = p.step AND t.batch = p.batch
        AND t.rank IS NOT DISTINCT FROM s.rank
    WHERE p.correct IS NOT NULL
"""

_LABEL_COLUMNS = "arg_max(label, (epoch, visit)) AS label, arg_max(label_name, (epoch, visit)) AS label_name"

#: The label's logit less the largest other one. A single logit x stands for the pair (0, x).
_MARGIN = """
    CASE WHEN label < 0 OR NOT list_bool_and(list_transform(logits, lambda x: isfinite(x))) THEN NULL
         WHEN len(logits) = 1 THEN CASE label WHEN 1 THEN logits[1]::DOUBLE WHEN 0 THEN -logits[1]::DOUBLE END
         ELSE logits[label + 1]::DOUBLE - list_max(list_concat(logits[1:label], logits[label + 2:]))::DOUBLE END
"""

VIEWS: dict[str, str] = {
    # Toneva et al. 2019: how often a sample was right and then wrong again, when it was first right, or that it never was.
    "forgetting": f"""
        WITH ordered AS (
            SELECT *, lag(correct) OVER (PARTITION BY {_KEY} ORDER BY epoch, visit) AS before FROM ({_SEEN_SAMPLES})
        )
        SELECT {_KEY}, {_LABEL_COLUMNS}, count(DISTINCT epoch) AS epochs, count(*) AS visits,
               count(*) FILTER (before AND NOT correct) AS forgetting_events,
               min(epoch) FILTER (correct) AS first_learned_epoch, NOT bool_or(correct) AS never_learned,
               arg_max(correct, (epoch, visit)) AS last_correct
        FROM ordered GROUP BY {_KEY}
    """,
    # Swayamdipta et al. 2020: mean and standard deviation over epochs of the probability of the label, and how often right.
    "cartography": f"""
        WITH by_epoch AS (
            SELECT {_KEY}, epoch, arg_max(label, visit) AS label, arg_max(label_name, visit) AS label_name,
                   max(visit) AS visit, count(*) AS visits, avg(correct::INT) AS right_share,
                   avg(probability) FILTER (isfinite(probability)) AS confidence
            FROM ({_SEEN_SAMPLES}) GROUP BY {_KEY}, epoch
        )
        SELECT {_KEY}, {_LABEL_COLUMNS}, count(*) AS epochs, sum(visits)::BIGINT AS visits, avg(confidence) AS confidence,
               stddev_pop(confidence) AS variability, avg(right_share) AS correctness
        FROM by_epoch GROUP BY {_KEY}
    """,
    # Pleiss et al. 2020: the mean margin over epochs; far below 0 a sample is likely to be labelled wrongly.
    "aum": f"""
        WITH margins AS (SELECT *, {_MARGIN} AS logit_margin FROM ({_SEEN_SAMPLES})),
        by_epoch AS (
            SELECT {_KEY}, epoch, arg_max(label, visit) AS label, arg_max(label_name, visit) AS label_name,
                   max(visit) AS visit, count(*) AS visits, avg(logit_margin) AS logit_margin
            FROM margins GROUP BY {_KEY}, epoch
        )
        SELECT {_KEY}, {_LABEL_COLUMNS}, count(*) AS epochs, sum(visits)::BIGINT AS visits, avg(logit_margin) AS aum
        FROM by_epoch GROUP BY {_KEY}
    """,
    # One row for each sample of each step whose loss is not finite or stands out of the steps before it.
    "spikes": f"""
        WITH finite AS (SELECT *, CASE WHEN isfinite(loss) THEN loss END AS level FROM steps WHERE loss IS NOT NULL),
        around AS (
            SELECT *, median(level) OVER before AS typical, mad(level) OVER before AS spread,
                   count(level) OVER before AS known
            FROM finite WINDOW before AS (
                PARTITION BY run_id, phase, rank ORDER BY step ROWS BETWEEN {SPIKE_WINDOW} PRECEDING AND 1 PRECEDING
            )
        ), judged AS (
            SELECT *, CASE WHEN known >= {SPIKE_LEAST} THEN
                       typical + {SPIKE_SPREADS} * greatest(1.4826 * spread, {SPIKE_SHARE} * abs(typical)) END AS threshold
            FROM around
        ), standing_out AS (
            SELECT *, CASE WHEN isnan(loss) THEN 'nan' WHEN isinf(loss) THEN 'inf' WHEN loss > threshold THEN 'high' END
                      AS reason
            FROM judged
        )
        SELECT b.run_id, b.epoch, b.step, b.batch, b.phase, b.reason, b.loss AS step_loss, b.typical AS typical_loss,
               b.threshold, b.learning_rate, b.gradient_norm, s.position, s.index, s.visit, s.split, s.root, s.source,
               s.label, s.label_name, p.predicted, p.predicted_name, p.correct, p.loss
        FROM standing_out b
        LEFT JOIN samples s ON s.run_id = b.run_id AND s.epoch = b.epoch AND s.batch = b.batch
            AND s.rank IS NOT DISTINCT FROM b.rank
        LEFT JOIN graded_predictions p ON p.run_id = s.run_id AND p.epoch = s.epoch AND p.index = s.index AND p.visit = s.visit
        WHERE b.reason IS NOT NULL
        ORDER BY b.run_id, b.step, s.position
    """,
}
