"""The library's front: every command of the command line as a function or a method."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from audit.config import store_location
from audit.records import Progress, Run
from audit.store.read.reader import Reader

if TYPE_CHECKING:
    from audit.checks.report import Report
    from audit.lineage.diff.diff import Diff
    from audit.lineage.doctor import Diagnosis
    from audit.lineage.replay.result import Replay
    from audit.lineage.trace import Trace
    from audit.recorders.loop.recording import Recording
    from audit.store.maintain.compact import Compacted
    from audit.store.maintain.stats import StoreStats
    from audit.store.maintain.verify import Damage


class Store(Reader):
    """A store, open for questions. Made by `audit.open`."""

    def trace(
        self,
        run: str | None = None,
        *,
        index: int | None = None,
        source: str | None = None,
        epoch: int | None = None,
        visit: int | None = None,
        trust: bool = False,
    ) -> Trace:
        """Source, every stage, logits and prediction of one visit.

        `trust` allows its `value` and `export` to run code that this machine did not record.
        """
        from audit.lineage.trace import trace

        found = trace(self, run, index=index, source=source, epoch=epoch, visit=visit)
        found.trust = trust
        return found

    def replay(
        self,
        run: str | None = None,
        *,
        indices: Sequence[int] = (),
        sample: int | None = None,
        epoch: int | None = None,
        stage: int | str | None = None,
        dataset: Any = None,
        model: str | bool = False,
        export: str | None = None,
        workers: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        trust: bool = False,
    ) -> Replay:
        """Make recorded visits again from their sources and compare every stage's digest; all visits by default.

        `dataset`, or a mapping of datasets by split, is for a run that was recorded in a loop of its own without a
        `builder`; a name, as `--dataset` takes it, is for one that has moved. `model=True` also computes the logits
        again; a path tries another checkpoint. `stage` is a number or a name, such as "Resize". This runs the recorded
        pipeline: CodeNotTrusted unless this machine recorded it, or `trust` is set.
        """
        from audit.lineage.replay.replay import replay
        from audit.lineage.replay.replayer import ReplayOptions

        wanted = ReplayOptions(
            indices, sample, epoch, workers=workers, model=model, export=export, progress=progress, trust=trust
        )
        return replay(self, run, dataset=dataset, wanted=wanted, stage=stage)

    def diff(
        self,
        a: str | None = None,
        b: str | None = None,
        *,
        rows: int | None = 10_000,
        derive: bool = True,
        trust: bool = False,
    ) -> Diff:
        """Two runs side by side: data, first divergent stage, flipped predictions and their cause.

        `derive` measures differences of outputs that were not stored, by unchanged code that this machine recorded, or
        by any code that the runs name with `trust`.
        """
        from audit.lineage.diff.diff import diff

        return diff(self, a, b, rows=rows, derive=derive, trust=trust)

    def check(self, run: str | None = None, **options: Any) -> Report:
        """Judge a run: the twin of `audit check`.

        Options are `config`, `baseline`, `only`, `skip`, `fail_on`, `record`, `progress` and `trust`: see `audit check --help`.
        """
        from audit.checks.runner import run_checks

        return run_checks(self, run, **options)

    def report(self, path: str, run: str | None = None, *, baseline: str | None = None, mistakes: int = 200) -> int:
        """Write one self-contained HTML file about a run; gives its size in bytes."""
        from audit.report.html.report_file import write_report

        return write_report(self, path, run, baseline=baseline, mistakes=mistakes)

    def runs(self, *, where: str | None = None) -> list[Run]:
        """Every run in the order they were begun, or those for which an SQL condition over `runs` holds."""
        listed = super().runs()
        if where is None:
            return listed
        # On a line of its own, so that a comment at the end of the condition cannot swallow the bracket.
        chosen = {run_id for (run_id,) in self.sql(f"SELECT run_id FROM runs WHERE (\n{where}\n)").fetchall()}
        return [run for run in listed if run.run_id in chosen]

    def tag(self, run: str, tags: Mapping[str, str], *, remove: Sequence[str] = ()) -> Run:
        """Add tags to a run, replace those of the same names, and remove others. Return its row."""
        from audit.store.maintain.amend import tag_run

        run_id = self.run(run).run_id
        tag_run(self, run_id, tags, remove)
        return self.run(run_id)

    def rename(self, run: str, name: str | None) -> Run:
        """Give a run another name, or none. Return its row."""
        from audit.store.maintain.amend import rename_run

        run_id = self.run(run).run_id
        rename_run(self, run_id, name)
        return self.run(run_id)

    def stats(self, run: str | None = None) -> StoreStats:
        """Runs, parts, rows and bytes of each table, of one run or of all. No part is opened."""
        from audit.store.maintain.stats import store_stats

        return store_stats(self, run)

    def verify(self, run: str | None = None, *, progress: Callable[[Progress], None] | None = None) -> list[Damage]:
        """What is damaged: each part against its manifest, each manifest against its parts. Nothing found, nothing damaged.

        Open the store with `allow_damaged=True` to have damaged manifests listed instead of raised.
        """
        from audit.store.maintain.verify import verify

        return verify(self, run, progress)

    def compact(self, run: str | None = None) -> Compacted:
        """Merge a run's small parts and sort their rows by index, while others read."""
        from audit.store.maintain.compact import compact

        return compact(self, run)

    def remove(self, run: str) -> Run:
        """Delete one run."""
        from audit.store.maintain.compact import remove

        return remove(self, run)


def open(  # noqa: A001 - audit.open(...) reads well
    store: str | os.PathLike[str] | None = None, *, allow_damaged: bool | None = None
) -> Store:
    """Open a store to read it: a directory, $AUDIT_STORE, or ./lineage.

    A damaged manifest is an error; with `allow_damaged` the other runs are read. [default: $AUDIT_ALLOW_DAMAGED is 1]
    """
    return Store(store_location(store), allow_damaged=allow_damaged)


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
    capture_budget: int = 2 * 2**30,
    capture_where: str | None = None,
    strict: bool = False,
    tags: Mapping[str, str] | None = None,
) -> Recording:
    """Record your own loop: a context manager with `loader`, `dataset`, `model`, `epochs` and `log`.

    A recording failure is a warning and a mark on the run, and the loop goes on; with `strict` it is raised.
    """
    from audit.provenance import describe
    from audit.recorders.loop.recording import Recording

    return Recording(
        store_location(store),
        name=name,
        capture=capture,
        capture_budget=capture_budget,
        capture_where=capture_where,
        strict=strict,
        tags=tags,
        describe=describe,
    )


def run(
    dataset: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    pipeline: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Run:
    """Record a dataset through its pipeline, and through a model if one is given: the twin of `audit run`.

    Further options are those of `audit run`: arch, trust, capture, capture_budget, capture_where, workers,
    batch_size, device, limit, seed, strict, start_method; engine, address, actors, gpus_per_actor.
    """
    from audit.engines.request import RunRequest
    from audit.engines.run import run as run_request

    return run_request(
        RunRequest(
            dataset=os.fspath(dataset),
            model=os.fspath(model) if model is not None else None,
            pipeline=os.fspath(pipeline) if pipeline is not None else None,
            store=store_location(store),
            name=name,
            tags=tags or {},
            progress=progress,
            **options,
        )
    )
