"""Every export form, read back by the tool that it is for, or by its own documented rules."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from exported_runs import NAMES, make_store
from PIL import Image

import audit
from audit.cli.boundary import Boundary
from audit.cli.export import export as export_command
from audit.errors import MissingExtra, NotFound, UsageError
from audit.integrations import export
from audit.integrations.exporters import EXPORTERS
from audit.records import Run
from audit.store.write.writer import RunWriter

RUNS = ("pictures", "training", "nan", "empty")
NEEDS = {"mlflow": "mlflow", "tensorboard": "tensorboard", "openlineage": "openlineage.client"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("exports"))


@pytest.fixture
def opened(store: Path) -> Iterator[Any]:
    with audit.open(store) as reader:
        yield reader


def strict(text: str) -> Any:
    """JSON as everybody reads it: NaN is none."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.workers
@pytest.mark.parametrize("to", list(EXPORTERS))
@pytest.mark.parametrize("run", RUNS)
def test_every_form_takes_every_run(store: Path, tmp_path: Path, to: str, run: str) -> None:
    """Files as listed, nothing beside the output folder, and a store that is still whole."""
    if to in NEEDS:
        pytest.importorskip(NEEDS[to], reason=f"the extra {to} is not installed")
    done = export(store, run, to, tmp_path / "deep" / "out")
    assert done.files
    for name in done.files:
        assert (tmp_path / "deep" / "out" / name).is_file()
        assert not name.startswith("..")
    assert os.listdir(tmp_path) == ["deep"]
    for path in (tmp_path / "deep" / "out").rglob("*.json"):
        strict(path.read_text())
    with audit.open(store) as reader:
        assert reader.run(run).run_id == done.run_id
        assert reader.verify() == []


def test_parquet_holds_every_row(opened: Any, store: Path, tmp_path: Path) -> None:
    export(opened, "training", "parquet", tmp_path)
    run = opened.run("training").run_id
    for table in ("samples", "stage_outputs", "predictions", "activations", "steps"):
        expected = opened.sql(f"FROM {table}", run=run).dicts()
        found = pq.read_table(tmp_path / f"{table}.parquet").to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
    payloads = sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("payloads-*.parquet"))
    assert (payloads,) == opened.sql("SELECT count(*) FROM payloads", run=run).fetchone()
    (row,) = pq.read_table(tmp_path / "runs.parquet").to_pylist()
    assert row["name"] == "training"


def test_csv_keeps_awkward_text(opened: Any, tmp_path: Path) -> None:
    export(opened, "pictures", "csv", tmp_path)
    with (tmp_path / "samples.csv").open(newline="", encoding="utf-8") as lines:
        sources = [row["source"] for row in csv.DictReader(lines)]
    expected = opened.sql("SELECT source FROM samples", run="pictures").fetchall()
    assert sorted(sources) == sorted(source for (source,) in expected)
    assert {"=1+1.png", "☃.png", "comma, quote\" and 'more'.png"} <= {os.path.basename(source) for source in sources}
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as lines:
        assert all(len(json.loads(row["logits"])) == 10 for row in csv.DictReader(lines))


def offline_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Configuration, history and summary of an offline run, as wandb's own reader gives them to `wandb sync`."""
    from wandb.proto import wandb_internal_pb2 as records
    from wandb.sdk.internal.datastore import DataStore

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    log = DataStore()  # type: ignore[no-untyped-call]
    log.open_for_scan(str(path))  # type: ignore[no-untyped-call]
    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    while (data := log.scan_data()) is not None:  # type: ignore[no-untyped-call]
        record = records.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            config.update(
                (item.key or "/".join(item.nested_key), strict(item.value_json)) for item in record.run.config.update
            )
        elif record.HasField("history"):
            history.append(
                {item.key or "/".join(item.nested_key): strict(item.value_json) for item in record.history.item}
            )
        elif record.HasField("summary"):
            summary.update(
                (item.key or "/".join(item.nested_key), strict(item.value_json)) for item in record.summary.update
            )
    return config, history, summary


@pytest.mark.workers
def test_wandb_offline_run(opened: Any, tmp_path: Path) -> None:
    export(opened, "training", "wandb", tmp_path)
    config, history, summary = offline_run(tmp_path)
    assert config["audit.run_id"] == opened.run("training").run_id
    assert (summary["samples"], summary["status"]) == (48, "complete")
    steps = [row for row in history if "step" in row]
    assert [row["step"] for row in steps] == list(range(6))
    assert all(row["train/loss"] > 0 for row in steps)
    assert [row["epoch/train/accuracy"] for row in history if "epoch" in row] == [
        pytest.approx(value)
        for (value,) in opened.sql(
            "SELECT avg(correct::INT) FROM predictions GROUP BY epoch ORDER BY epoch", run="training"
        ).fetchall()
    ]
    (path,) = tmp_path.glob("wandb/offline-run-*/files/media/table/predictions_*.table.json")
    table = strict(path.read_text())
    assert len(table["data"]) == 24
    losses = [row[table["columns"].index("loss")] for row in table["data"]]
    assert losses == sorted(losses, reverse=True)
    # The packages of the process that exports are not those that the run was recorded with.
    assert list(tmp_path.rglob("requirements.txt")) == []


@pytest.mark.workers
def test_wandb_pictures(opened: Any, tmp_path: Path) -> None:
    export(opened, "pictures", "wandb", tmp_path)
    _, history, _ = offline_run(tmp_path)
    assert history[-1]["mistakes/count"] == opened.run("pictures").wrong
    for path in map(Path, history[-1]["mistakes/filenames"]):
        (path,) = tmp_path.glob(f"wandb/offline-run-*/files/{path}")
        with Image.open(path) as picture:
            assert picture.height == 96


def test_fiftyone_layout(opened: Any, store: Path, tmp_path: Path) -> None:
    """What LegacyFiftyOneDatasetImporter reads: Sample.from_dict of each, joined with the folder."""
    export(opened, "pictures", "fiftyone", tmp_path)
    metadata, samples = (strict((tmp_path / f"{name}.json").read_text()) for name in ("metadata", "samples"))
    samples = samples["samples"]
    assert "version" not in metadata
    assert metadata["media_type"] == "image"
    assert metadata["info"]["classes"] == [str(n) for n in range(10)]
    assert len(samples) == metadata["num_samples"] == opened.run("pictures").samples
    for sample in samples:
        assert os.path.isfile(os.path.join(tmp_path, sample["filepath"]))
        assert not {"id", "_id", "_media_type"} & set(sample)
        assert sample["ground_truth"]["_cls"] == "Classification"
        assert ("prediction" in sample) == (sample["status"] == "ok")
    assert {os.path.basename(sample["filepath"]) for sample in samples} >= set(NAMES)


def test_fiftyone_without_files(store: Path, tmp_path: Path) -> None:
    """Rows of a table are not pictures: they are counted, and left out."""
    export(store, "training", "fiftyone", tmp_path)
    metadata = strict((tmp_path / "metadata.json").read_text())
    assert metadata["num_samples"] + metadata["info"]["audit"]["left_out"] == 24


def test_openlineage_events(opened: Any, tmp_path: Path) -> None:
    event = pytest.importorskip("openlineage.client.event_v2", reason="the extra openlineage is not installed")
    export(opened, "pictures", "openlineage", tmp_path)
    export(opened, "pictures", "openlineage", tmp_path)
    begun, ended = (strict(line) for line in (tmp_path / "events.jsonl").read_text().splitlines())
    for row in (begun, ended):
        # The package's own classes refuse what is not an UUID, no time or no URI.
        event.RunEvent(
            eventTime=row["eventTime"],
            run=event.Run(row["run"]["runId"]),
            job=event.Job(row["job"]["namespace"], row["job"]["name"]),
            eventType=event.RunState(row["eventType"]),
            producer=row["producer"],
        )
    assert [begun["eventType"], ended["eventType"]] == ["START", "COMPLETE"]
    assert begun["run"]["runId"] == ended["run"]["runId"]
    data, model = ended["inputs"]
    assert (data["namespace"], os.path.basename(data["name"])) == ("file", "pictures")
    assert data["inputFacets"]["dataQualityMetrics"]["rowCount"] == opened.run("pictures").samples
    assert model["name"].endswith("digits.pt")
    outputs = {os.path.basename(row["name"]): row for row in ended["outputs"]}
    assert set(outputs) == {"samples", "stage_outputs", "predictions"}
    assert "predicted" in outputs["predictions"]["facets"]["columnLineage"]["fields"]


def test_tensorboard_reads_it(opened: Any, tmp_path: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
    )
    run = opened.run("training").run_id
    export(opened, "training", "tensorboard", tmp_path)
    events = reading.EventAccumulator(
        str(tmp_path / run), size_guidance=dict.fromkeys(("scalars", "histograms", "images"), 0)
    ).Reload()
    expected = opened.sql("SELECT step, loss FROM steps ORDER BY step", run=run).fetchall()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [
        (step, pytest.approx(loss, rel=1e-6)) for step, loss in expected
    ]
    assert {"epoch/train/accuracy", "layers/1/forward/output.0/zero_fraction"} <= set(events.Tags()["scalars"])
    (first, second) = events.Histograms("predictions/confidence")
    assert (first.step, second.step, first.histogram_value.num) == (0, 1, 24)
    steps = [step for step, _ in expected]
    for tag, direction in (("activations/1/output.0", "forward"), ("gradients/1/output.0", "backward")):
        shown = events.Histograms(tag)
        assert [each.step for each in shown] == steps
        for each in shown:
            value = each.histogram_value
            least, greatest, total, elements = opened.sql(
                "SELECT min(min), max(max), sum(mean * list_product(shape)), sum(list_product(shape)) "
                "FROM activations WHERE layer = '1' AND port = 'output.0' AND direction = ? AND step = ?",
                run=run,
                parameters=[direction, each.step],
            ).fetchone()
            assert (value.min, value.max, value.num) == (pytest.approx(least), pytest.approx(greatest), elements)
            assert value.sum == pytest.approx(total, rel=1e-5, abs=1e-9)
            assert sum(value.bucket) == pytest.approx(elements)


def test_tensorboard_shows_mistakes(opened: Any, tmp_path: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
    )
    export(opened, "pictures", "tensorboard", tmp_path)
    events = reading.EventAccumulator(
        str(tmp_path / opened.run("pictures").run_id),
        size_guidance=dict.fromkeys(("scalars", "histograms", "images"), 0),
    ).Reload()
    assert len(events.Tags()["images"]) == opened.run("pictures").wrong > 0
    assert events.Images(events.Tags()["images"][0])[0].height == 96


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    module = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "tracked").as_uri())
    # An experiment that a test chose is remembered for the process, as an id of that test's own folder.
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    return module


@pytest.mark.workers
def test_mlflow_knows_the_run_and_the_run_knows_mlflow(mlflow: Any, opened: Any, store: Path) -> None:
    from audit.integrations.mlflow import log_run

    number = log_run(opened, "training", experiment="vision")
    client = mlflow.MlflowClient()
    found = client.get_run(number)
    run = opened.run("training")
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "training"
    assert found.data.tags["audit.run_id"] == run.run_id
    assert found.data.tags["audit.store"] == str(store)
    assert run.tags["mlflow.run_id"] == number
    assert run.tags["mlflow.tracking_uri"] == mlflow.get_tracking_uri()
    assert found.data.params["stages"].startswith("load")
    assert found.data.metrics["samples"] == 48
    losses = {m.step: m.value for m in client.get_metric_history(number, "train/loss")}
    assert losses == dict(opened.sql("SELECT step, loss FROM steps", run="training").fetchall())
    (given,) = found.inputs.dataset_inputs
    assert json.loads(given.dataset.source)["audit_store"] == str(store)
    assert given.tags[0].value == "training"
    kept = {os.path.basename(item.path) for item in client.list_artifacts(number, "audit")}
    assert {"run.json", "predictions.parquet", "samples.parquet"} <= kept
    assert "stage_outputs.parquet" not in kept


@pytest.mark.workers
def test_mlflow_takes_a_run_with_any_tag(mlflow: Any, tmp_path: Path) -> None:
    from audit.integrations.mlflow import log_run

    writer = RunWriter.create(str(tmp_path / "s"), Run("", tags={"team@home\x1b": "a"}, versions={"odd@": "1"}))
    writer.finish("complete")
    logged = mlflow.MlflowClient().get_run(log_run(tmp_path / "s"))
    assert logged.data.tags["audit.tag.team_home_"] == "a"


def test_mlflow_takes_the_active_run(mlflow: Any, opened: Any) -> None:
    from audit.integrations.mlflow import log_run

    mlflow.set_experiment("active")
    with mlflow.start_run() as active:
        mlflow.log_param("own", 1)
        assert log_run(opened, "pictures", artifacts=False) == active.info.run_id
        assert mlflow.MlflowClient().get_run(active.info.run_id).info.status == "RUNNING"
    assert mlflow.MlflowClient().get_run(active.info.run_id).data.params["own"] == "1"


@pytest.mark.workers
def test_mlflow_and_a_store_that_cannot_be_written(mlflow: Any, store: Path, tmp_path: Path) -> None:
    """The log is made; that the store keeps no link is said."""
    from audit.integrations.mlflow import log_run
    from audit.store.filesystem import filesystem_for
    from audit.store.manifest import lock_path

    with audit.open(store) as reader:
        run = reader.run("nan").run_id
        with filesystem_for(str(store)).lock(lock_path(run)), pytest.warns(UserWarning, match="could not be tagged"):
            assert log_run(reader, run, artifacts=False)


@pytest.mark.parametrize(("to", "package"), [*NEEDS.items()])
def test_a_missing_package_is_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, package: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package.split(".")[0]]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(MissingExtra, match=rf"audit-lineage\[{to}\]"):
        export(store, "training", to, tmp_path)


def test_bad_requests(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no export format called 'tensorbord'.*tensorboard"):
        export(store, "training", "tensorbord", tmp_path)
    with pytest.raises(NotFound, match="no run 'nothing'"):
        export(store, "nothing", "csv", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="could not be written"):
        export(store, "training", "csv", tmp_path / "file")


def invoke(*arguments: str) -> Any:
    group = Boundary(commands={"export": export_command})
    assert isinstance(group, click.Group)
    return CliRunner().invoke(group, ["export", *arguments])


def test_the_command(store: Path, tmp_path: Path) -> None:
    done = invoke("training", "--to", "csv", "-o", str(tmp_path / "a"), "--store", str(store), "--json")
    assert done.exit_code == 0
    assert set(strict(done.stdout)["files"]) == {path.name for path in (tmp_path / "a").iterdir()}
    said = invoke("training", "--to", "csv", "-o", str(tmp_path / "b"), "--store", str(store))
    assert (said.exit_code, said.stdout) == (0, "")
    assert "9 files" in said.stderr
    wrong = invoke("training", "--to", "cvs", "-o", str(tmp_path / "c"), "--store", str(store))
    assert wrong.exit_code == 2
    assert "Did you mean csv" in wrong.stderr
