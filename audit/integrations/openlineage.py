"""OpenLineage: a run as the events that Marquez and others read, one JSON object on each line of `events.jsonl`.

The run is a job with the dataset (and the model) as inputs and the store's tables as outputs; column lineage says that
predictions come from the sources. Events are built from the OpenLineage package's own classes, which check them. Nothing
is sent anywhere.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

from audit import __version__
from audit.errors import MissingExtra
from audit.identity import PROJECT_ADDRESS
from audit.integrations import run_facts as facts
from audit.records import Run
from audit.store.read.reader import Reader

PRODUCER = f"{PROJECT_ADDRESS}/{__version__}"
_NAMESPACE = uuid.UUID("6f3d9a52-0c1e-5b7d-9a51-9d4c2f7f0e11")
_EVENT_TYPES = {"complete": "COMPLETE", "failed": "FAIL", "interrupted": "ABORT"}
_OUTPUTS = ("samples", "stage_outputs", "predictions", "activations")


def export(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write the START event and, for a run that has ended, its final event."""
    made = events(reader, run)
    path = folder / "events.jsonl"
    path.write_text("".join(f"{event}\n" for event in made), encoding="utf-8")
    return [path]


def events(reader: Reader, run: Run) -> list[str]:
    """Return the events as JSON texts, oldest first."""
    facets, client = _package()
    client.set_producer(PRODUCER)
    facets.set_producer(PRODUCER)
    from openlineage.client.serde import Serde

    job = client.Job("audit", run.name or "audit", _job_facets(facets, reader, run))
    begun = client.Run(_run_uuid(run), _run_facets(facets, reader, run))
    inputs = _inputs(facets, client, reader, run)
    outputs = _outputs(facets, client, reader, run)
    made = [
        client.RunEvent(
            eventTime=run.started_at,
            run=begun,
            job=job,
            eventType=client.RunState.START,
            inputs=inputs,
            producer=PRODUCER,
        )
    ]
    if run.status in _EVENT_TYPES:
        made.append(
            client.RunEvent(
                eventTime=run.finished_at or run.started_at,
                run=begun,
                job=job,
                eventType=client.RunState[_EVENT_TYPES[run.status]],
                inputs=inputs,
                outputs=outputs,
                producer=PRODUCER,
            )
        )
    return [Serde.to_json(event) for event in made]


def _run_uuid(run: Run) -> str:
    """Return the run's UUID for OpenLineage, which is always the same for one run."""
    return str(uuid.uuid5(_NAMESPACE, run.run_id))


def _run_facets(facets: Any, reader: Reader, run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {
        "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
            version=run.versions.get("torch", "unknown"), name="torch", openlineageAdapterVersion=__version__
        ),
        "tags": facets.tags_run.TagsRunFacet(
            tags=[
                facets.tags_run.TagsRunFacetFields(key=key, value=value)
                for key, value in {"audit.run_id": run.run_id, "audit.store": reader.location, **run.tags}.items()
            ]
        ),
    }
    if run.status == "failed":
        message = run.warnings[-1] if run.warnings else "The run failed."
        found["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(message, "python")
    return found


def _job_facets(facets: Any, reader: Reader, run: Run) -> dict[str, Any]:
    stages = facts.parameters(reader, run)["stages"]
    return {
        "jobType": facets.job_type_job.JobTypeJobFacet("BATCH", "AUDIT", "RUN"),
        "documentation": facets.documentation_job.DocumentationJobFacet(f"Stages: {stages}"),
    }


def _inputs(facets: Any, client: Any, reader: Reader, run: Run) -> list[Any]:
    namespace, name = _dataset_name(reader, run)
    counted = reader.sql(
        "SELECT count(DISTINCT source), sum(source_bytes) FROM samples WHERE run_id = ?",
        run=run.run_id,
        parameters=[run.run_id],
    ).fetchone()
    files, size = counted or (None, None)
    metrics = facets.data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet(
        columnMetrics={}, rowCount=run.samples, bytes=int(size) if size is not None else None, fileCount=files
    )
    version = facets.dataset_version_dataset.DatasetVersionDatasetFacet(facts.data_digest(reader, run))
    found = [
        client.InputDataset(namespace, name, facets={"version": version}, inputFacets={"dataQualityMetrics": metrics})
    ]
    if run.model:
        digest = facets.dataset_version_dataset.DatasetVersionDatasetFacet(run.model_digest or "unknown")
        found.append(client.InputDataset("model", run.model, facets={"version": digest}))
    return found


def _dataset_name(reader: Reader, run: Run) -> tuple[str, str]:
    """Return the folder of the sources, or else the recorded name of the dataset."""
    roots = reader.sql(
        "SELECT DISTINCT root FROM samples WHERE run_id = ? AND root IS NOT NULL LIMIT 2",
        run=run.run_id,
        parameters=[run.run_id],
    ).fetchall()
    if len(roots) == 1:
        return "file", os.path.abspath(roots[0][0])
    return "audit", run.dataset or "dataset"


def _outputs(facets: Any, client: Any, reader: Reader, run: Run) -> list[Any]:
    from audit.store.schema import SCHEMAS

    parts = reader.manifest(run.run_id).parts
    source = _dataset_name(reader, run)
    found = []
    for table in _OUTPUTS:
        own = [part for part in parts if part.table == table]
        if not own:
            continue
        columns = [
            facets.schema_dataset.SchemaDatasetFacetFields(name=field.name, type=str(field.type))
            for field in SCHEMAS[table]
        ]
        dataset_facets: dict[str, Any] = {"schema": facets.schema_dataset.SchemaDatasetFacet(fields=columns)}
        if table == "predictions":
            dataset_facets["columnLineage"] = _column_lineage(facets, source)
        statistics = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(part.rows for part in own), size=sum(part.bytes for part in own), fileCount=len(own)
        )
        name = f"{reader.location}/runs/{run.run_id}/{table}"
        found.append(
            client.OutputDataset("file", name, facets=dataset_facets, outputFacets={"outputStatistics": statistics})
        )
    return found


def _column_lineage(facets: Any, source: tuple[str, str]) -> Any:
    lineage = facets.column_lineage_dataset
    how = lineage.Transformation(
        type="DIRECT", subtype="TRANSFORMATION", description="the recorded stages and the model"
    )
    given = lineage.InputField(*source, field="source", transformations=[how])
    return lineage.ColumnLineageDatasetFacet(
        fields={name: lineage.Fields(inputFields=[given]) for name in ("logits", "probabilities", "predicted")}
    )


def _package() -> tuple[Any, Any]:
    try:
        from openlineage.client import event_v2, facet_v2
    except ImportError as error:
        raise MissingExtra("openlineage-python", "Writing OpenLineage events", extra="openlineage") from error
    return facet_v2, event_v2
