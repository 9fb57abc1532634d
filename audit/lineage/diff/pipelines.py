"""Train against serve: one dataset through two pipelines, and where they part.

Nothing is trained or predicted here: both are recorded without a model, then compared like any two runs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from audit.lineage.diff.diff import DEFAULT_ROWS, Diff, diff
from audit.store.read.reader import Reader

if TYPE_CHECKING:
    from audit.records import Progress


def diff_pipelines(
    dataset: str | os.PathLike[str],
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    rows: int | None = DEFAULT_ROWS,
    derive: bool = True,
    trust: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Diff:
    """Record `dataset` through the pipelines `a` and `b`, and compare them.

    `trust` allows deriving by code that this machine did not record. The runs stay in `store`; without one they are gone when this returns, and only the diff is left. Further options
    are those of `audit run`: capture, workers, limit, seed and so on.
    """
    # Only this needs torch.
    from audit.engines.record_pipelines import record_pair

    with ExitStack() as held:
        place = os.fspath(store) if store else held.enter_context(tempfile.TemporaryDirectory(prefix="audit-diff-"))
        pipelines = (os.fspath(a), os.fspath(b))
        first, second = record_pair(os.fspath(dataset), pipelines, place, progress=progress, **options)
        reader = held.enter_context(Reader(place))
        return diff(reader, first.run_id, second.run_id, rows=rows, derive=derive, trust=trust)
