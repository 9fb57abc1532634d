"""Which samples, stages and runs a check looks at, by the names that a configuration gives."""

from __future__ import annotations

import os
from dataclasses import dataclass

from audit.records import Run


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The samples, stages and runs that one check looks at; empty means all."""

    splits: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    #: File names or patterns: the check judges only runs of these pipelines and datasets.
    pipelines: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


def pipeline_name(run: Run) -> str | None:
    """Return the name of the pipeline's file, as the configuration names it; None if the run has none."""
    pipeline = run.recipe.get("pipeline")
    if not isinstance(pipeline, str):
        return None
    file = pipeline.rpartition(":")[0] if pipeline.rpartition(":")[0].endswith(".py") else pipeline
    return os.path.basename(file)


def dataset_name(run: Run) -> str | None:
    """Return the dataset's last name, as the configuration names it; None if the run has none."""
    return os.path.basename(run.dataset.rstrip("/")) if run.dataset else None
