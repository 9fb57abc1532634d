"""The mistakes of a run that a summary names: those the model was surest of."""

from __future__ import annotations

from dataclasses import dataclass

from audit.store.read.reader import Reader

_MISTAKES = """
SELECT index, source, coalesce(label_name, label::VARCHAR) AS label,
       coalesce(predicted_name, predicted::VARCHAR) AS predicted, confidence, epoch
FROM wrong_predictions WHERE run_id = ? AND isfinite(confidence)
ORDER BY epoch DESC, confidence DESC, index LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong prediction."""

    index: int
    source: str | None
    label: str
    predicted: str
    confidence: float
    epoch: int


def confident_mistakes(reader: Reader, run_id: str, most: int = 3) -> list[Mistake]:
    """Return the wrong predictions of a run's last epoch with the highest confidence."""
    return [Mistake(*row) for row in reader.sql(_MISTAKES, parameters=[run_id, most]).fetchall()]
