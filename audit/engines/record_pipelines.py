"""One dataset through two pipelines: what training does to a file against what serving does to it.

Both are recorded without a model, one after the other, so that a diff can say where they part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from audit.engines.local import record_locally
from audit.engines.request import RunRequest
from audit.errors import PipelineError, UsageError
from audit.identity import check_run_name
from audit.records import Progress, Run


def record_pair(
    dataset: str,
    pipelines: tuple[str, str],
    store: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> tuple[Run, Run]:
    """Record `dataset` through each of the two pipelines into `store`; gives both runs."""
    recorded = []
    for pipeline, name in zip(pipelines, _names(pipelines), strict=True):
        report = _prefix_progress(pipeline, progress) if progress is not None else None
        asked = {"name": name, **options}
        made = record_locally(RunRequest(dataset=dataset, pipeline=pipeline, store=store, progress=report, **asked))
        if made.status != "complete":
            raise PipelineError(
                f"The recording of {pipeline} ended as {made.status}. {' '.join(made.warnings[-1:])}".rstrip(),
                hint=f"See what it recorded with: audit runs --store {store}",
            )
        recorded.append(made)
    return recorded[0], recorded[1]


def _prefix_progress(pipeline: str, progress: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return a callback that says which pipeline is being recorded."""
    return lambda now: progress(replace(now, doing=pipeline))


def _names(pipelines: tuple[str, str]) -> list[str | None]:
    """Return names for the runs by their files; None where these are equal, or a file's name is not a run's name."""
    names = [os.path.basename(pipeline) for pipeline in pipelines]
    try:
        return [check_run_name(name) for name in names] if names[0] != names[1] else [None, None]
    except UsageError:
        return [None, None]
