"""Names that people give to splits, and which of them models are evaluated on."""

from __future__ import annotations

from collections.abc import Iterable

#: Names of splits that a model is evaluated on; of several, the first counts for a run's accuracy.
EVALUATION = (
    "test",
    "testing",
    "val",
    "valid",
    "validate",
    "validation",
    "eval",
    "evaluation",
    "dev",
    "holdout",
)
SPLIT_NAMES = (*EVALUATION, "train", "training")


def is_split_name(name: str) -> bool:
    """Return whether a word, such as the name of a folder, is one that people give to splits."""
    return name.lower() in SPLIT_NAMES


def is_evaluation(split: str | None) -> bool:
    """Return whether a split has a name that says that models are evaluated on it."""
    return str(split).lower() in EVALUATION


def evaluation_splits(splits: Iterable[str | None]) -> list[str]:
    """Return those of the splits that models are evaluated on, in the order of `EVALUATION`."""
    known = sorted(split for split in splits if split is not None and is_evaluation(split))
    return sorted(known, key=lambda split: EVALUATION.index(split.lower()))
