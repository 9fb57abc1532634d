"""Whole runs in a bucket: the rows of a local store, readable after a kill, one writer, and no byte too many."""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest
from object_service import KEY, SECRET, Service, make_old
from store_cases import STAGES, record, stage_table, visit_tables, wait_for_a_commit, write_forever

import audit
from audit.errors import DatasetError, ModelError, StoreBusy, StoreReadOnly
from audit.models.file_kinds import require_file
from audit.records import Run
from audit.sources import open_dataset
from audit.store.bucket.filesystem import TAIL
from audit.store.maintain.compact import compact, remove
from audit.store.maintain.verify import verify
from audit.store.sandbox.sandbox import Sandbox
from audit.store.schema import SCHEMAS
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter
from audit.tables import PredictionRow
from audit.web.picture_cache import source_picture

pytestmark = pytest.mark.buckets

boto3 = pytest.importorskip("boto3")

REPOSITORY = Path(__file__).resolve().parents[3]
DIGITS = REPOSITORY / "fixtures" / "digits" / "test"


def rows(store: audit.Store) -> dict[str, list[tuple[object, ...]]]:
    tables = {table: store.sql(f"FROM {table} ORDER BY ALL").fetchall() for table in SCHEMAS}
    return tables | {"runs": store.sql("SELECT run_id, status, samples, wrong, accuracy FROM runs").fetchall()}


def test_the_rows_are_those_of_a_local_store(service: Service, place: str, tmp_path: Path) -> None:
    for ending, what in (("run.json", {"status": 500}), (".parquet", {"arrives": True}), ("run.json", {"status": 409})):
        service.fault("PUT", ending, times=3, **what)
    for location in (place, str(tmp_path / "lineage")):
        record(location, samples=40, run_id="first", name="a")
        record(location, samples=10, run_id="second", name="b")
    with audit.open(place) as remote, audit.open(tmp_path / "lineage") as local:
        assert rows(remote) == rows(local)
        assert not verify(remote.reader)
        assert remote.trace(index=3).as_json() == local.trace(index=3).as_json()
        assert remote.diff("a", "b").as_json() == local.diff("a", "b").as_json()
        before = rows(remote)
        assert compact(remote.reader, "a").parts_after < 10
        assert rows(remote) == before
        remove(remote.reader, "b")
        assert [run.run_id for run in remote.runs()] == ["first"]
    assert not any(fault.times for fault in service.faults)


@pytest.mark.usefixtures("warm_spawn")
def test_a_killed_writer_leaves_a_readable_run_that_can_be_resumed(service: Service, place: str) -> None:
    processes = multiprocessing.get_context("spawn")
    hears, tells = processes.Pipe(duplex=False)
    process = processes.Process(target=write_forever, args=(place, "", tells))
    process.start()
    try:
        run_id = hears.recv()
        wait_for_a_commit(place, run_id)
    finally:
        process.kill()
        process.join()
    with pytest.raises(StoreBusy):
        RunWriter.resume(place, run_id)
    assert whole_visits(place, run_id, "running") > 0  # as far as anyone can know: the lease is young
    make_old(place, f"runs/{run_id}/.writer.lock")
    before = whole_visits(place, run_id, "interrupted")
    writer = RunWriter.resume(place, run_id)
    writer.append(visit_tables(run_id, [before, before + 1]))
    writer.finish("complete")
    assert whole_visits(place, run_id, "complete") == before + 2


def whole_visits(place: str, run_id: str, status: str) -> int:
    """How many visits the run has, each with its stages, none missing and none twice."""
    with audit.open(place) as store:
        assert store.run(run_id).status == status
        assert not verify(store.reader)
        found = store.sql("SELECT count(*), count(DISTINCT index), max(index) + 1 FROM samples").fetchall()[0]
        outputs = store.sql("SELECT count(*) FROM stage_outputs").fetchall()[0][0]
        assert found[0] == found[1] == found[2] == store.run(run_id).samples
        assert outputs == found[0] * len(STAGES)
        return store.run(run_id).samples


def test_two_writers_of_one_run(service: Service, place: str) -> None:
    first = RunWriter.create(place, Run(""))
    run_id = first.run.run_id
    first.append({"stages": stage_table(run_id), **visit_tables(run_id, [0, 1])})
    first.flush()
    with pytest.raises(StoreBusy):
        RunWriter.resume(place, run_id)
    make_old(place, f"runs/{run_id}/.writer.lock")  # the first is paused for longer than its lease lasts
    second = RunWriter.resume(place, run_id)
    second.append(visit_tables(run_id, [2, 3]))
    second.flush()
    first.append(visit_tables(run_id, [2, 3, 4]))
    with pytest.raises(StoreBusy, match="Another process has written commit 2 of the run"):
        first.flush()
    first.abandon()
    second.finish("complete")
    with audit.open(place) as store:
        assert store.sql("SELECT index FROM samples ORDER BY index").fetchall() == [(0,), (1,), (2,), (3,)]
        assert store.run().status == "complete"
        assert not verify(store.reader)


def test_a_query_reads_the_pages_of_its_columns_and_no_more(service: Service, place: str) -> None:
    count = 60_000
    writer = RunWriter.create(place, Run(""))
    chance = np.random.default_rng(0)
    facts = {
        "run_id": [writer.run.run_id] * count,
        "epoch": np.zeros(count, np.int32),
        "visit": np.zeros(count, np.int32),
        "index": np.arange(count),
        "confidence": chance.random(count, np.float32),
        "correct": chance.random(count) < 0.5,
        "logits": chance.random((count, 24), np.float32),
    }
    writer.append({"predictions": table_of("predictions", facts)})
    writer.finish("complete")
    with audit.open(place) as store:
        size = sum(part.bytes for part in store.reader.manifest().parts)
        service.forget()
        assert store.sql("SELECT avg(confidence) FROM predictions").fetchall()[0][0] == pytest.approx(0.5, abs=0.01)
        sent = service.requests("GET", ".parquet")
        taken = sum(request.sent for request in sent)
        column = count * 4
        assert column * 0.8 < store.reader.bytes_read() < column * 1.3 + 2 * TAIL
        assert taken <= store.reader.bytes_read() + TAIL
        assert taken < size / 10
        assert len(sent) <= 2 + len(range(0, count, 32_768)) * 2
        service.forget()
        assert store.reader.rows(PredictionRow, store.run().run_id, index=17)[0]["index"] == 17
        assert sum(request.sent for request in service.requests("GET", ".parquet")) < size * 0.6  # one row group of two


def test_a_part_that_cannot_be_read_is_one_sentence(service: Service, place: str) -> None:
    count = 20_000  # so that a part is longer than what is fetched when it is opened
    writer = RunWriter.create(place, Run("only"))
    facts = {"epoch": np.zeros(count, np.int32), "visit": np.zeros(count, np.int32), "index": np.arange(count)}
    logits = np.random.default_rng(0).random((count, 4), np.float32)
    writer.append({"predictions": table_of("predictions", facts | {"run_id": ["only"] * count, "logits": logits})})
    writer.finish("complete")
    questions = (
        lambda store: store.sql("SELECT sum(logits[1]) FROM predictions").fetchall(),
        lambda store: store.sql("SELECT sum(logits[1]) FROM predictions").arrow(),
        lambda store: store.reader.rows(PredictionRow, "only", index=17),
    )
    for ask, opened in itertools.product(questions, (False, True)):
        with audit.open(place) as store:
            if opened:  # the footer is known: the pages cannot be read
                assert store.sql("SELECT count(*) FROM predictions").fetchall() == [(count,)]
            service.fault("GET", ".parquet", status=403, times=1)
            with pytest.raises(
                StoreReadOnly, match=r"\.parquet could not be read: the service answers AccessDenied"
            ) as caught:
                ask(store)
            assert "Traceback" not in str(caught.value)
            assert ask(store), "and the next question is answered"


def test_a_confined_query_reaches_a_bucket(
    service: Service, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(place, samples=12)
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(f"[default]\n{keys}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", service.endpoint.replace("127.0.0.1", "localhost"))  # a name to be resolved
    monkeypatch.chdir(tmp_path)
    with Sandbox(place, seconds=60) as sandbox:
        answer = sandbox.query("SELECT count(*) FROM samples")
    assert answer.rows == [[12]]


def test_a_dataset_and_a_store_in_a_bucket(service: Service, place: str, tmp_path: Path) -> None:
    folder = tmp_path / "test"
    bucket = place.split("/")[2]
    client = boto3.client("s3")
    for number, path in enumerate(sorted(DIGITS.rglob("*.png"))[::37]):
        name = f"{path.parent.name}/{number}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / name)
        client.upload_file(str(path), bucket, f"images/test/{name}")
        client.upload_file(str(path), bucket, f"flat/{number}.png")
    client.put_object(Bucket=bucket, Key="images/test/0/broken.png", Body=b"no picture")
    (folder / "0" / "broken.png").write_bytes(b"no picture")
    options = {"model": REPOSITORY / "fixtures" / "digits.pt", "pipeline": REPOSITORY / "pipelines" / "digits.py"}
    remote_run = audit.run(f"s3://{bucket}/images/test/", store=place, workers=0, **options)
    local_run = audit.run(folder, store=tmp_path / "lineage", workers=0, **options)
    assert remote_run.failed == local_run.failed == 1
    query = (
        "SELECT index, source, source_digest, label, label_name, split, status, failed_stage FROM samples ORDER BY 1"
    )
    digests = (
        "SELECT index, stage, digest, predicted, logits FROM stage_outputs JOIN predictions USING (index) ORDER BY ALL"
    )
    with audit.open(place) as remote, audit.open(tmp_path / "lineage") as local:
        for question in (query, digests):
            assert remote.sql(question).fetchall() == local.sql(question).fetchall()
        assert remote.trace(index=3).source_state == "unchanged"
        assert source_picture(remote.trace(index=3)) == source_picture(local.trace(index=3)) is not None
        assert not remote.replay().different
        changed = remote.trace(index=3).sample["source"]
        client.put_object(Bucket=bucket, Key=f"images/test/{changed}", Body=b"changed")
        assert remote.trace(index=3).source_state == "changed"
        assert source_picture(remote.trace(index=3)) is None
        client.delete_object(Bucket=bucket, Key=f"images/test/{changed}")
        assert remote.trace(index=3).source_state == "missing"
    flat = open_dataset(f"s3://{bucket}/flat")
    assert flat.classes is None
    assert len(flat) == len(list(folder.rglob("*.png"))) - 1
    listed = client.list_objects_v2(Bucket=bucket, Prefix="some/")["Contents"]
    kept = b"".join(client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read() for entry in listed)
    assert KEY.encode() not in kept
    assert SECRET.encode() not in kept


def test_a_dataset_that_cannot_be_had(service: Service, place: str) -> None:
    bucket = place.split("/")[2]
    for location, text in (
        ("s3://no-such-bucket/x", "no such bucket"),
        (f"s3://{bucket}/nothing", "contains nothing"),
        (f"s3://me:{SECRET}@{bucket}/x", "holds a user"),
        (f"s3a://me:{SECRET}@{bucket}/x", "not a location that audit can open"),
        (f"https://me:{SECRET}@host.invalid/x", "not a location that audit can open"),
    ):
        with pytest.raises(DatasetError, match=text) as caught:
            open_dataset(location)
        assert SECRET not in str(caught.value)
    with pytest.raises(ModelError, match="not an address") as refused:
        require_file(f"s3://me:{SECRET}@{bucket}/model.pt")
    assert SECRET not in str(refused.value)
    boto3.client("s3").put_object(Bucket=bucket, Key="one/a.png", Body=b"x")
    dataset = open_dataset(f"s3://{bucket}/one")
    service.fault("GET", "a.png", status=403)
    with pytest.raises(OSError, match="AccessDenied") as failed:
        dataset.read(0)
    assert KEY not in str(failed.value)
