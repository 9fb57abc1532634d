"""An open store: every command that reads or amends a store is a method."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from audit.config import half_of_memory, parse_bytes, store_location
from audit.display import NotebookView
from audit.errors import NotFound, UsageError
from audit.records import Progress, Run
from audit.store.read.condition import require_condition
from audit.store.read.reader import Reader, Relation

if TYPE_CHECKING:
    from audit.checks.base import Severity
    from audit.checks.baseline import Baseline
    from audit.checks.baseline_changes import BaselineChanges
    from audit.checks.config import Configuration
    from audit.checks.report import Report
    from audit.integrations.exporters import ExportResult
    from audit.lineage.diff.diff import Diff
    from audit.lineage.embed import Embedding, Epochs, Method
    from audit.lineage.replay.result import Replay
    from audit.lineage.trace import Trace
    from audit.metrics.average_precision import AveragePrecision
    from audit.store.leftovers import CleanupResult
    from audit.store.maintain.compact import CompactionResult
    from audit.store.maintain.signatures import RunSignature
    from audit.store.maintain.stats import StoreStats
    from audit.store.maintain.verify import Damage


class RunList(list[Run], NotebookView):
    """A list of runs that a notebook shows as a table."""


class Store(NotebookView):
    """An open store. Made by `audit.open`; use it as a context manager, or call `close`."""

    def __init__(self, location: str, *, allow_damaged: bool | None = None, verify_reads: bool | None = None) -> None:
        #: What reads the store; not part of the public surface.
        self.reader = Reader(location, allow_damaged=allow_damaged, verify_reads=verify_reads)

    @property
    def location(self) -> str:
        """Where the store is."""
        return self.reader.location

    @property
    def damaged(self) -> list[Exception]:
        """Why some runs cannot be read; empty in a store that is whole."""
        return self.reader.damaged

    def refresh(self) -> None:
        """See what has been committed since the store was opened or last refreshed."""
        self.reader.refresh()

    def close(self) -> None:
        """Close every connection; relations handed out before end with them."""
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, reference: str | None = None) -> Run:
        """Return the run that an id, a prefix, a name, `latest` or `latest~N` means."""
        return self.reader.run(reference)

    def sql(
        self,
        query: str,
        *,
        run: str | Iterable[str] | None = None,
        parameters: Sequence[Any] = (),
        timeout: float | None = None,
        memory_limit: int | str | None = None,
    ) -> Relation:
        """Return the answer to an SQL query over every run, or only over those named by `run`.

        A fetch that takes longer than `timeout` seconds is interrupted; the few queries that ignore it go on. DuckDB's tables
        and buffers use at most `memory_limit`, such as "4GB" [default: half of the machine's memory]; memory that it takes
        beside them (long texts, lists, what a fetch returns) is not limited, as it is memory of this process. Run a query that
        you did not write by `audit sql`, whose process the system limits and ends.
        """
        if timeout is not None and timeout <= 0:
            raise UsageError(
                f"timeout cannot be {timeout:g}.", hint="Give seconds, or None to wait as long as it takes."
            )
        limit = parse_bytes(memory_limit) if isinstance(memory_limit, str) else memory_limit or half_of_memory()
        answer = self.reader.sql(query, run=run, parameters=parameters, timeout=timeout, memory_limit=limit)
        answer.html = self._relation_html
        return answer

    def _relation_html(self, answer: Relation) -> str | None:
        from audit.report.html.notebook import relation_html

        return relation_html(self.reader, answer)

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
        """Return the source, every stage, logits and prediction of one visit.

        `trust` allows its `value` and `export` to run code that this machine did not record.
        """
        from audit.lineage.trace import trace

        found = trace(self.reader, run, index=index, source=source, epoch=epoch, visit=visit)
        found.trust = trust
        return found

    def mean_average_precision(self, run: str | None = None) -> AveragePrecision:
        """Return COCO's mean average precision of a run's boxes, over all thresholds, at 0.5, at 0.75, and of each class."""
        from audit.lineage.detection import measure_detection

        return measure_detection(self.reader, run)

    def keypoint_average_precision(self, run: str | None = None) -> AveragePrecision:
        """Return COCO's mean average precision of a run's keypoints (17 of a person), by their similarity (OKS)."""
        from audit.lineage.detection import measure_keypoints

        return measure_keypoints(self.reader, run)

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

        `dataset`, or a mapping of datasets by split, is for a run that was recorded in a user's own loop without a
        `builder`; a name, as `--dataset` takes it, is for one that has moved. `model=True` also computes the logits
        again; a path tries another checkpoint. `stage` is a number or a name, such as "Resize". This runs the recorded
        pipeline: CodeNotTrusted unless this machine recorded it, or `trust` is set.
        """
        from audit.lineage.replay.replay import replay
        from audit.lineage.replay.replayer import ReplayOptions

        wanted = ReplayOptions(
            indices, sample, epoch, workers=workers, model=model, export=export, progress=progress, trust=trust
        )
        return replay(self.reader, run, dataset=dataset, wanted=wanted, stage=stage)

    def diff(
        self,
        a: str | None = None,
        b: str | None = None,
        *,
        rows: int | None = 10_000,
        derive: bool = True,
        trust: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> Diff:
        """Compare two runs: data, first divergent stage, flipped predictions and their cause.

        `derive` measures differences of outputs that were not stored, by unchanged code that this machine recorded, or
        by any code that the runs name with `trust`.
        """
        from audit.lineage.diff.diff import diff

        return diff(self.reader, a, b, rows=rows, derive=derive, trust=trust, progress=progress)

    def check(
        self,
        run: str | None = None,
        *,
        config: Configuration | str | os.PathLike[str] | None = None,
        baseline: str | os.PathLike[str] | None = None,
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        checks: Sequence[str | os.PathLike[str]] = (),
        fail_on: Severity | None = None,
        record: bool = False,
        progress: Callable[[Progress], None] | None = None,
        trust: bool = False,
        probe: bool = False,
    ) -> Report:
        """Judge a run by the checks of `config`, or of audit.toml: the twin of `audit check`.

        `baseline` is a run or a file to compare with; `only` and `skip` name checks; `fail_on` is the least severity that
        fails. `checks` names Python files with checks of one's own. `record` keeps the findings in the store, as the
        command does; without it nothing is written. `probe` runs the model again on a few hundred samples, with their
        inputs prepared otherwise. `trust` allows `reproducible` and `probe` to run code that this machine did not
        record, and the configuration to name files with checks.
        """
        from audit.checks.runner import run_checks

        return run_checks(
            self.reader,
            run,
            config=config,
            baseline=baseline,
            only=only,
            skip=skip,
            checks=checks,
            fail_on=fail_on,
            record=record,
            progress=progress,
            trust=trust,
            probe=probe,
        )

    def write_check_config(self, path: str = "audit.toml", run: str | None = None) -> str:
        """Write a commented configuration of checks from what a run shows, unless the file exists; give its path."""
        from audit.checks.starter import write_starter

        return write_starter(self.reader, run, path)

    def baseline(self, path: str | os.PathLike[str], run: str | None = None) -> Baseline:
        """Write a run as a small file that later runs are compared with: the twin of `audit baseline export`."""
        from audit.checks.baseline import export_baseline

        return export_baseline(self.reader, run, path)

    def update_baseline(
        self, path: str | os.PathLike[str], run: str | None = None, *, write: bool = True
    ) -> BaselineChanges:
        """Replace a baseline file by a run and return what changes: the twin of `audit baseline update`.

        With `write=False` the file stays as it is.
        """
        from audit.checks.baseline_changes import update_baseline

        return update_baseline(self.reader, run, path, write=write)

    def export(
        self,
        to: str,
        output: str | os.PathLike[str],
        run: str | None = None,
        *,
        where: str | None = None,
        tag: str | None = None,
        indices: Sequence[int] | None = None,
    ) -> ExportResult:
        """Write a run in another tool's format, such as "tensorboard", into the folder `output`.

        "fiftyone", "label-studio" and "cvat" take chosen samples: those that meet the SQL condition `where`, have the tag, and
        are among the indices.
        """
        from audit.integrations.exporters import export

        return export(self.reader, run, to, output, where=where, tag=tag, indices=indices)

    def report(
        self,
        path: str,
        run: str | None = None,
        *,
        baseline: str | None = None,
        mistakes: int | None = None,
        viewer: bool = False,
    ) -> int:
        """Write one self-contained HTML file about a run; gives its size in bytes. With `viewer`, it shows values of pictures."""
        from audit.report.html.report_file import write_report

        return write_report(self.reader, path, run, baseline=baseline, mistakes=mistakes, viewer=viewer)

    def runs(self, *, where: str | None = None) -> list[Run]:
        """Return every run in the order they were begun, or those for which an SQL condition over `runs` holds."""
        listed = self.reader.runs()
        if where is None:
            return RunList(listed)
        require_condition(self.reader, "runs", where)
        chosen = {run_id for (run_id,) in self.sql(f"SELECT run_id FROM runs WHERE (\n{where}\n)").fetchall()}
        return RunList(run for run in listed if run.run_id in chosen)

    def tag(self, run: str, tags: Mapping[str, str], *, remove: Sequence[str] = ()) -> Run:
        """Add tags to a run, replace those of the same names, and remove others. Return its row."""
        from audit.store.maintain.amend import tag_run

        run_id = self.run(run).run_id
        tag_run(self.reader, run_id, tags, remove)
        return self.run(run_id)

    def tag_samples(
        self,
        tag: str,
        run: str | None = None,
        *,
        indices: Sequence[int] = (),
        where: str | None = None,
        note: str | None = None,
        remove: bool = False,
    ) -> int:
        """Give samples of a run a tag and a note, or take the tag away: the twin of `audit tag`. Return how many.

        The samples are those with these indices, and those that meet the SQL condition `where`.
        """
        from audit.store.maintain.sample_tags import tag_samples
        from audit.store.read.items import SampleIdentity

        run_id = self.run(run).run_id
        items: set[SampleIdentity] = set()
        if where is not None:
            require_condition(self.reader, "lineage", where)
            query = f"SELECT DISTINCT index, split, root FROM lineage WHERE run_id = ? AND (\n{where}\n)"
            items = {SampleIdentity(*row) for row in self.sql(query, parameters=[run_id]).fetchall()}
        return tag_samples(self.reader, run_id, indices, tag, items=items, note=note, remove=remove)

    def embed(
        self,
        run: str | None = None,
        *,
        layer: str = "logits",
        method: Method = "pca",
        epochs: Epochs = "last",
        trust: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> Embedding:
        """Make a map of a run's samples, for `audit ui` and the table `embeddings`: the twin of `audit embed`.

        `layer` is a layer of the model, "logits" or "pixels". A layer that was not recorded is computed again, which runs
        the recorded pipeline and model: CodeNotTrusted unless this machine recorded them, or `trust` is set. `epochs` is
        "last" or, for a point in each epoch, "all".
        """
        from audit.lineage.embed import embed

        return embed(self.reader, self.run(run), layer, method, epochs=epochs, trust=trust, progress=progress)

    def select(self, path: str, run: str | None = None, *, where: str | None = None, tag: str | None = None) -> int:
        """Write chosen samples to FILE.csv, FILE.jsonl or a folder of links: the twin of `audit select`. Return how many."""
        from audit.lineage.selection import choose_rows, write_selection

        row = self.run(run)
        if tag is not None:
            query = "SELECT count(*) FROM tags WHERE run_id = ? AND tag = ?"
            if self.sql(query, parameters=[row.run_id, tag]).fetchone() == (0,):
                raise NotFound(
                    f"No sample of the run {row.run_id} has the tag {tag!r}.",
                    hint="See the tags with: audit sql 'SELECT DISTINCT tag FROM tags'",
                )
        return write_selection(choose_rows(self.reader, row, where or "", tag=tag), path)

    def rename(self, run: str, name: str | None) -> Run:
        """Give a run another name, or none. Return its row."""
        from audit.store.maintain.amend import rename_run

        run_id = self.run(run).run_id
        rename_run(self.reader, run_id, name)
        return self.run(run_id)

    def stats(self, run: str | None = None) -> StoreStats:
        """Return the number of runs, and the parts, rows and bytes of each table, of one run or of all. No part is opened."""
        from audit.store.maintain.stats import store_stats

        return store_stats(self.reader, run)

    def verify(
        self,
        run: str | None = None,
        *,
        key: str | os.PathLike[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> list[Damage]:
        """Return what is damaged: each part against its manifest, each manifest against its parts. Empty if nothing is.

        With the file of a public key, a run that is not as its owner signed it is damage too. Open the store with
        `allow_damaged=True` to have damaged manifests listed instead of raised.
        """
        from audit.store.maintain.verify import verify

        return verify(self.reader, run, progress, key)

    def sign(self, run: str | None = None, *, key: str | os.PathLike[str]) -> RunSignature:
        """Sign a run, as it is committed now, with the private Ed25519 key in a PEM file."""
        from audit.store.maintain.signatures import sign

        return sign(self.reader, run, key)

    def attest(self, run: str | None = None, *, key: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return an in-toto statement of a run: its data, code, model, results and environment. With a private key, the
        statement is in a signed DSSE envelope."""
        from audit.store.maintain.attestation import attest

        return attest(self.reader, run, key)

    def compact(self, run: str | None = None) -> CompactionResult:
        """Merge a run's small parts and sort their rows by index, while others read."""
        from audit.store.maintain.compact import compact

        return compact(self.reader, run)

    def clean(self) -> CleanupResult:
        """Delete what killed processes left behind: temporary files, parts that no commit lists, removals that were cut off.

        Nothing of a living writer is deleted. A reader that was opened before may have to be refreshed.
        """
        from audit.store.leftovers import clean

        cleaned = clean(self.reader.filesystem)
        self.reader.refresh()
        return cleaned

    def remove(self, run: str) -> Run:
        """Delete one run."""
        from audit.store.maintain.compact import remove

        return remove(self.reader, run)


def open(  # noqa: A001 - audit.open(...) reads well
    store: str | os.PathLike[str] | None = None,
    *,
    allow_damaged: bool | None = None,
    verify_reads: bool | None = None,
) -> Store:
    """Open a store to read it: a directory, $AUDIT_STORE, or ./lineage.

    A damaged manifest is an error; with `allow_damaged` the other runs are read. [default: $AUDIT_ALLOW_DAMAGED is 1]
    Each part is checked against its digest before it is first read, but not those of a bucket: `verify_reads` checks all
    or none. [default: $AUDIT_VERIFY_READS]
    """
    return Store(store_location(store), allow_damaged=allow_damaged, verify_reads=verify_reads)
