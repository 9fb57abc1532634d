"""A run with epochs, over time: loss per step, which samples were learned, forgotten or never learned.

What counts as a spike, as forgetting or as a confident sample is said once, by the views of `store.training_views`; this
only picks from them what a page can show, and names the visit that each row should lead to. Steps are thinned to what a
chart can show; the largest of each bin stays, because a spike is what one looks for.
"""

from __future__ import annotations

from typing import TypedDict

from audit.records import Run
from audit.store.read.reader import Reader

MOST_POINTS = 1_000


class EpochSummary(TypedDict):
    """One split and phase of one epoch."""

    epoch: int
    split: str | None
    phase: str | None
    samples: int
    graded: int
    accuracy: float | None
    mean_loss: float | None


class LossBinOfSteps(TypedDict):
    """A few steps that follow each other: mean and largest loss, and the visit that had the largest."""

    epoch: int
    phase: str | None
    step: int
    mean: float
    max: float
    index: int
    visit: int


class LossSpike(TypedDict):
    """A step whose loss stands out, with its worst sample."""

    epoch: int
    step: int
    phase: str | None
    reason: str
    step_loss: float | None
    typical_loss: float | None
    times: float | None
    samples: int
    loss: float | None
    index: int | None
    visit: int | None
    source: str | None


class SampleOverEpochs(TypedDict):
    """A sample, and the last visit of it."""

    phase: str | None
    split: str | None
    root: str | None
    source: str | None
    index: int
    label: int | None
    label_name: str | None
    epochs: int
    visits: int
    epoch: int | None
    visit: int | None


class SampleDynamics(SampleOverEpochs):
    """How sure the model was of a sample's label over the epochs, and how much that varied."""

    confidence: float
    variability: float | None
    correctness: float | None


class ForgottenSample(SampleOverEpochs):
    """A sample that was right and then wrong, or was never right."""

    forgetting_events: int
    first_learned_epoch: int | None
    never_learned: bool
    last_correct: bool | None


class LayerStatistics(TypedDict):
    """A layer's statistics over a few steps that follow each other."""

    layer: str
    layer_type: str
    direction: str
    port: str
    step: int
    mean: float | None
    std: float | None
    zero_fraction: float | None
    nonfinite: int | None


# An index alone names no visit where several loaders number their items alike: the last visit of the very sample does.
_WITH_VISIT = """
    , last AS (
        SELECT split, root, source, index, max(epoch) AS epoch, arg_max(visit, (epoch, visit)) AS visit
        FROM samples WHERE run_id = ? AND index IN (SELECT index FROM chosen) GROUP BY ALL
    )
    SELECT chosen.* EXCLUDE (run_id), last.epoch, last.visit FROM chosen LEFT JOIN last ON last.index = chosen.index
        AND last.split IS NOT DISTINCT FROM chosen.split AND last.root IS NOT DISTINCT FROM chosen.root
        AND last.source IS NOT DISTINCT FROM chosen.source
"""


def epochs(reader: Reader, run: Run) -> list[EpochSummary]:
    """Return each epoch, a row for each split and phase in it, with its samples, accuracy and mean loss."""
    return reader.sql(
        """
        SELECT l.epoch, l.split, t.phase, count(*) AS samples, count(correct) AS graded, avg(correct::INT) AS accuracy,
               avg(l.loss) FILTER (isfinite(l.loss)) AS mean_loss
        FROM (FROM lineage WHERE run_id = ?) l LEFT JOIN (FROM steps WHERE run_id = ?) t
            ON t.step = l.step AND t.batch = l.batch AND t.rank IS NOT DISTINCT FROM l.rank
        WHERE l.predicted IS NOT NULL OR l.correct IS NOT NULL GROUP BY ALL ORDER BY l.epoch, t.phase DESC, l.split
        """,
        parameters=[run.run_id, run.run_id],
    ).rows(EpochSummary)


def loss_steps(reader: Reader, run: Run) -> list[LossBinOfSteps]:
    """Return the loss over steps of each phase: mean and largest of each bin, with the visit that had the largest."""
    return reader.sql(
        """
        WITH phases AS (SELECT step, any_value(phase) AS phase FROM steps WHERE run_id = ? GROUP BY step),
        numbered AS (
            SELECT epoch, coalesce(step, batch) AS step, loss, index, visit FROM graded_predictions
            WHERE run_id = ? AND isfinite(loss) AND coalesce(step, batch) IS NOT NULL
        ), bounds AS (SELECT greatest(1, ceil((max(step) + 1) / ?)) AS width FROM numbered)
        SELECT epoch, phase, (floor(step / width) * width)::BIGINT AS step, avg(loss) AS mean, max(loss) AS max,
               arg_max(index, loss) AS index, arg_max(visit, loss) AS visit
        FROM numbered LEFT JOIN phases USING (step), bounds GROUP BY ALL ORDER BY epoch, step, phase
        """,
        parameters=[run.run_id, run.run_id, MOST_POINTS],
    ).rows(LossBinOfSteps)


def spikes(reader: Reader, run: Run, most: int = 20) -> list[LossSpike]:
    """Return the steps that the view `spikes` names, each with its worst sample: what is not a number first, then most striking."""
    return reader.sql(
        """
        FROM (
            SELECT epoch, step, phase, reason, step_loss, typical_loss, step_loss / nullif(typical_loss, 0) AS times,
                   count(*) AS samples, max(loss) AS loss, arg_max(index, loss) AS index, arg_max(visit, loss) AS visit,
                   arg_max(source, loss) AS source
            FROM spikes WHERE run_id = ? GROUP BY ALL
        ) ORDER BY reason = 'high', times DESC NULLS LAST, step LIMIT ?
        """,
        parameters=[run.run_id, most],
    ).rows(LossSpike)


def cartography(reader: Reader, run: Run, most: int = 4_000) -> list[SampleDynamics]:
    """Return each sample's confidence, variability and correctness over epochs; the most variable ones when there are many."""
    return reader.sql(
        f"""
        WITH chosen AS (
            FROM cartography WHERE run_id = ? AND epochs > 1 AND confidence IS NOT NULL
            ORDER BY variability DESC, index, phase LIMIT ?
        ) {_WITH_VISIT} ORDER BY variability DESC, chosen.index, phase
        """,
        parameters=[run.run_id, most, run.run_id],
    ).rows(SampleDynamics)


def find_forgotten_samples(reader: Reader, run: Run, most: int = 100) -> list[ForgottenSample]:
    """Return samples that were right and then wrong, with how often; and those never right."""
    return reader.sql(
        f"""
        WITH chosen AS (
            FROM forgetting WHERE run_id = ? AND epochs > 1 AND (forgetting_events > 0 OR never_learned)
            ORDER BY forgetting_events DESC, last_correct, index, phase LIMIT ?
        ) {_WITH_VISIT} ORDER BY forgetting_events DESC, last_correct, chosen.index, phase
        """,
        parameters=[run.run_id, most, run.run_id],
    ).rows(ForgottenSample)


def layers(reader: Reader, run: Run) -> list[LayerStatistics]:
    """Layer statistics over steps, batch and sample rows taken together, thinned."""
    return reader.sql(
        """
        WITH bounds AS (SELECT greatest(1, ceil((max(step) + 1) / 200)) AS width FROM activations WHERE run_id = ?)
        SELECT layer, any_value(layer_type) AS layer_type, direction, port,
               (floor(step / width) * width)::BIGINT AS step,
               avg(mean) FILTER (isfinite(mean)) AS mean, avg(std) FILTER (isfinite(std)) AS std,
               avg(zero_fraction) FILTER (isfinite(zero_fraction)) AS zero_fraction, sum(nonfinite) AS nonfinite
        FROM activations, bounds WHERE run_id = ? AND step IS NOT NULL
        GROUP BY ALL ORDER BY layer, direction, port, step
        """,
        parameters=[run.run_id, run.run_id],
    ).rows(LayerStatistics)
