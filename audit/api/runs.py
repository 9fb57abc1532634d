"""Functions that make runs: every command that records is a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from audit.config import store_location
from audit.errors import UsageError
from audit.records import DEFAULT_BUDGET, Progress, Run

if TYPE_CHECKING:
    from audit.lineage.diff.diff import Diff
    from audit.lineage.doctor import Diagnosis
    from audit.recorders.loop.recording import Recording


def doctor(dataset: Any, *, samples: int = 4) -> Diagnosis:
    """Say what a recording of a dataset will hold, and what not, by recording a few samples: the twin of `audit doctor`.

    `dataset` is a Dataset, or what `audit run --dataset` takes. Nothing is kept, and the global random number generators
    have their states again afterwards.
    """
    from audit.lineage.doctor import diagnose

    return diagnose(dataset, samples)


def record(
    store: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    capture: str = "auto",
    capture_budget: int = DEFAULT_BUDGET,
    capture_where: str | None = None,
    strict: bool = False,
    tags: Mapping[str, str] | None = None,
    stall_timeout: float = 600.0,
) -> Recording:
    """Record your own loop: a context manager with `loader`, `dataset`, `model`, `epochs` and `log`.

    A recording failure is a warning and a mark on the run, and the loop goes on; with `strict` it is raised. A sample that
    takes longer than `stall_timeout` seconds is a warning that names it and its stage; your workers are left alone.
    """
    # Every option is one of Recording by the same name.
    options = dict(locals())
    from audit.recorders.loop.recording import Recording

    return Recording(**options | {"store": store_location(store)})


def run(
    dataset: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    pipeline: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    arch: str | None = None,
    trust: bool = False,
    mode: str | None = None,
    capture: str = "auto",
    capture_budget: int = DEFAULT_BUDGET,
    capture_where: str | None = None,
    workers: int | None = None,
    start_method: str | None = None,
    batch_size: int = 32,
    device: str = "cpu",
    output: str | Mapping[str | int, str | None] | None = None,
    target: Mapping[str | int, str | int] | None = None,
    limit: int | None = None,
    seed: int = 0,
    strict: bool = False,
    max_failures: int | str | None = None,
    commit_every: float | None = None,
    stall_timeout: float = 600.0,
    engine: str = "local",
    address: str | None = None,
    actors: int | None = None,
    gpus_per_actor: float = 0,
    command: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Record a dataset through its pipeline, and through a model if one is given: the twin of `audit run`.

    The options are those of the command, see `audit run --help`. Look at `status` of the run that is returned: it is
    `failed` when no sample was good, or more failed than `max_failures` allows.
    """
    # Every option is a field of RunRequest by the same name.
    options = dict(locals())
    from audit.engines.request import RunRequest
    from audit.engines.run import record_run

    given = {"dataset": dataset, "model": model, "pipeline": pipeline}
    paths = {name: _as_path(name, value) for name, value in given.items() if value is not None or name == "dataset"}
    return record_run(RunRequest(**options | paths | {"store": store_location(store), "tags": tags or {}}))


def _as_path(name: str, given: object) -> str:
    if isinstance(given, (str, os.PathLike)):
        return str(os.fspath(given))
    raise UsageError(
        f"{name}= is an object of the class {type(given).__name__}, but audit.run takes a path, or FILE.py:NAME, a function that makes the {name}.",
        hint=f"Record your own objects in your loop, with audit.record; or give the {name} as FILE.py:NAME, so that a replay can make it again.",
    )


def resume(
    run: str | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    trust: bool = False,
    strict: bool = False,
    max_failures: int | str | None = None,
    commit_every: float | None = None,
    stall_timeout: float = 600.0,
    engine: str = "local",
    address: str | None = None,
    actors: int | None = None,
    gpus_per_actor: float = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Continue an interrupted run, the newest by default: the twin of `audit run --resume`.

    The options that decide what is recorded come from its recipe. The options of this call only decide how it is carried out.
    """
    options = dict(locals())
    from audit.engines.run import resume_run

    return resume_run(store_location(options.pop("store")), options.pop("run"), **options)


def diff_pipelines(
    dataset: str | os.PathLike[str],
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    seed: int = 0,
    rows: int | None = 10_000,
    derive: bool = True,
    trust: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Diff:
    """Record a dataset through two pipelines and compare them: the twin of `audit diff --pipelines`.

    Both runs stay in `store`; without one they are gone when this returns, and only the comparison is left.
    """
    options = dict(locals())
    from audit.lineage.diff.pipelines import diff_pipelines as compare

    return compare(**options | {"dataset": _as_path("dataset", dataset)})
