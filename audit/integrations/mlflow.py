"""MLflow: log a recorded run as an MLflow run, with links in both directions.

    from audit.integrations.mlflow import log_run
    log_run("lineage", "latest", tracking_uri="http://localhost:5000")

Parameters, metrics over steps and epochs, the dataset as an input, the tables as an artifact. The MLflow run carries
`audit.run_id` and `audit.store`; the audit run gets the tags `mlflow.run_id`, `mlflow.experiment_id` and
`mlflow.tracking_uri`. Payloads are not copied: they stay in the store.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from audit.config import store_location
from audit.errors import MissingExtra, StoreBusy, StoreReadOnly
from audit.integrations import run_facts as facts
from audit.records import Run
from audit.store.read.reader import HasReader, Reader, reader_of

_FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"
_STATUS = {"complete": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}
#: MLflow's limits for one call and for one value.
_METRICS_AT_ONCE, _PARAMETERS_AT_ONCE, _LONGEST = 1000, 100, 500
#: Small enough to be copied; stage outputs and payloads stay in the store.
_COPIED_TABLES = ("samples", "stages", "predictions", "steps", "parents", "findings")


def export(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write a run into a file store, which `mlflow ui --backend-store-uri FOLDER` shows."""
    before = set(folder.rglob("*"))
    with _allow_file_store():
        _log(reader, run, folder.resolve().as_uri(), experiment="audit", artifacts=True)
    return [path for path in folder.rglob("*") if path.is_file() and path not in before]


def log_run(
    store: str | os.PathLike[str] | Reader | HasReader | None,
    run: str | None = None,
    *,
    tracking_uri: str | None = None,
    experiment: str = "audit",
    artifacts: bool = True,
) -> str:
    """Log a recorded run, into the active MLflow run if there is one; return the id of the MLflow run."""
    with ExitStack() as held:
        reader = reader_of(store) or held.enter_context(Reader(store_location(store)))  # type: ignore[arg-type]
        return _log(reader, reader.run(run), tracking_uri, experiment=experiment, artifacts=artifacts)


def _log(reader: Reader, run: Run, tracking_uri: str | None, *, experiment: str, artifacts: bool) -> str:
    mlflow = _mlflow()
    client = mlflow.MlflowClient(tracking_uri=tracking_uri)
    active = mlflow.active_run() if tracking_uri is None else None
    if active is not None:
        run_id, experiment_id = active.info.run_id, active.info.experiment_id
    else:
        known = client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known else client.create_experiment(experiment)
        created = client.create_run(experiment_id, start_time=_milliseconds(run.started_at), run_name=run.name)
        run_id = created.info.run_id
    for key, value in _tags(reader, run).items():
        client.set_tag(run_id, key, value)
    _log_parameters(client, run_id, facts.parameters(reader, run))
    _log_metrics(client, run_id, reader, run)
    _log_dataset(client, run_id, reader, run)
    if artifacts:
        _log_artifacts(client, run_id, reader, run)
    if active is None:
        client.set_terminated(run_id, status=_STATUS[run.status], end_time=_milliseconds(run.finished_at))
    uri = tracking_uri or mlflow.get_tracking_uri()
    _link_back(
        reader, run, {"mlflow.run_id": run_id, "mlflow.experiment_id": experiment_id, "mlflow.tracking_uri": uri}
    )
    return str(run_id)


def _tags(reader: Reader, run: Run) -> dict[str, str]:
    own = {"audit.run_id": run.run_id, "audit.store": reader.location, "audit.status": run.status}
    named = {"audit.run_name": run.name, "mlflow.source.git.commit": run.git_commit}
    return (
        own
        | {key: value for key, value in named.items() if value}
        | {f"audit.tag.{_key(k)}": v for k, v in run.tags.items()}
    )


def _log_parameters(client: Any, run_id: str, found: dict[str, str]) -> None:
    from mlflow.entities import Param

    rows = [Param(_key(name), value[:_LONGEST]) for name, value in found.items()]
    for at in range(0, len(rows), _PARAMETERS_AT_ONCE):
        client.log_batch(run_id, params=rows[at : at + _PARAMETERS_AT_ONCE])


def _log_metrics(client: Any, run_id: str, reader: Reader, run: Run) -> None:
    from mlflow.entities import Metric

    when = _milliseconds(run.finished_at) or int(time.time() * 1000)
    rows = [Metric(name, value, when, 0) for name, value in facts.totals(run).items()]
    for step, phase, values in facts.steps(reader, run):
        rows += [Metric(f"{_key(phase)}/{name}", value, when, step) for name, value in values.items()]
    for row in facts.epochs(reader, run):
        named = {name: row[name] for name in ("accuracy", "loss", "confidence") if row[name] is not None}
        rows += [Metric(f"epoch/{_key(row['split'])}/{name}", v, when, row["epoch"]) for name, v in named.items()]
    for at in range(0, len(rows), _METRICS_AT_ONCE):
        client.log_batch(run_id, metrics=rows[at : at + _METRICS_AT_ONCE])


def _key(name: str) -> str:
    """Return a name that MLflow accepts."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_. ") else "_" for c in name)


def _log_dataset(client: Any, run_id: str, reader: Reader, run: Run) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = {"uri": run.recipe.get("dataset") or run.dataset or reader.location, "audit_store": reader.location}
    dataset = Dataset(
        name=(run.dataset or "dataset")[:_LONGEST],
        digest=facts.data_digest(reader, run)[:36],
        source_type="audit",
        source=json.dumps(source),
        profile=json.dumps({"num_rows": run.samples, "num_failed": run.failed}),
    )
    context = "training" if any(phase == "train" for _, phase, _ in facts.steps(reader, run)) else "evaluation"
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])


def _log_artifacts(client: Any, run_id: str, reader: Reader, run: Run) -> None:
    from audit import plainjson
    from audit.integrations.table_files import write_tables

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tables(reader, run, folder, _COPIED_TABLES)
        (folder / "run.json").write_text(plainjson.dumps(run.as_json(), indent=1))
        client.log_artifacts(run_id, scratch, artifact_path="audit")


def _link_back(reader: Reader, run: Run, tags: dict[str, str]) -> None:
    from audit.store.maintain.amend import tag_run

    try:
        tag_run(reader, run.run_id, tags)
    except (StoreReadOnly, StoreBusy) as error:
        warnings.warn(f"audit: the run could not be tagged with its MLflow run: {error}", UserWarning, stacklevel=4)


def _milliseconds(moment: str | None) -> int | None:
    return int(datetime.fromisoformat(moment).timestamp() * 1000) if moment else None


def _mlflow() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtra("mlflow-skinny", "Logging to MLflow", extra="mlflow") from error
    return mlflow


@contextmanager
def _allow_file_store() -> Iterator[None]:
    """Allow MLflow 3 to use a folder as its store."""
    before = os.environ.get(_FILE_STORE)
    os.environ[_FILE_STORE] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FILE_STORE]
        else:
            os.environ[_FILE_STORE] = before
