"""A bucket keeps the promises of a directory, whatever the service answers."""

from __future__ import annotations

import itertools
import os
import threading
import traceback
from pathlib import Path
from typing import Any

import fsspec
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from object_service import KEY, SECRET, Service, make_old, winners

from audit.errors import AuditError, MissingExtra, StoreBusy, StoreError, StoreNotFound, StoreReadOnly, UsageError
from audit.store.bucket import lease as object_lease
from audit.store.bucket import location as object_location
from audit.store.bucket import s3 as object_s3
from audit.store.bucket.filesystem import TAIL, ObjectFilesystem
from audit.store.bucket.fsspec_client import FsspecClient
from audit.store.bucket.location import ObjectLocation, is_remote, parse_location
from audit.store.filesystem import Filesystem, filesystem_for
from audit.store.local_filesystem import LocalFilesystem

pytestmark = pytest.mark.buckets

FAULTS = {
    "500": {"status": 500},
    "500 after the write": {"status": 500, "arrives": True},
    "503": {"status": 503},
    "409": {"status": 409},
    "reply lost after the write": {"arrives": True},
    "slow reply": {"delay": 0.9},
    "three 500": {"status": 500, "times": 3},
    "reply cut in the middle": {"cut": True},
}

_PATHS = st.sampled_from(["a.json", "runs/x/run.json", "runs/x/part.parquet", "runs/y é/[1]*.parquet", "runs/x/y/z"])
_STEPS = st.one_of(
    st.tuples(st.just("create"), _PATHS, st.binary(max_size=20)),
    st.tuples(st.just("replace"), _PATHS, st.binary(max_size=20)),
    st.tuples(st.just("read"), _PATHS),
    st.tuples(st.just("size"), _PATHS),
    st.tuples(st.just("exists"), _PATHS | st.sampled_from(["runs", "runs/x", "run"])),
    st.tuples(st.just("list"), st.sampled_from(["", "runs", "runs/x", "nothing"])),
    st.tuples(st.just("remove"), st.sampled_from(["a.json", "runs/x", "runs/y é", "nothing"])),
)


def outcome(place: Filesystem, step: tuple[Any, ...]) -> object:
    try:
        return getattr(place, step[0])(*step[1:])
    except OSError as error:
        return type(error)


def same_as_a_directory(place: Filesystem, local: LocalFilesystem, steps: list[tuple[Any, ...]]) -> None:
    for step in steps:
        found, expected = outcome(place, step), outcome(local, step)
        assert found == expected, step
        # A bucket has no empty folders: one that was emptied is gone.
        for folder, _, _ in sorted(os.walk(local.location), reverse=True):
            if folder != local.location and not os.listdir(folder):
                os.rmdir(folder)


@settings(max_examples=examples(15))
@given(steps=st.lists(_STEPS, max_size=12))
def test_a_bucket_does_what_a_directory_does(
    running: Service, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    place = filesystem_for(f"s3://{running.bucket()}/a/b")
    same_as_a_directory(place, LocalFilesystem(tmp_path_factory.mktemp("local")), steps)


_BUCKETS = itertools.count()


@settings(max_examples=examples(30))
@given(steps=st.lists(_STEPS, max_size=12))
def test_so_does_whatever_fsspec_reaches(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    client = FsspecClient(fsspec.filesystem("memory"), f"bucket{next(_BUCKETS)}")
    place = ObjectFilesystem(client, ObjectLocation("gs", "bucket", "a/b"))
    same_as_a_directory(place, LocalFilesystem(tmp_path_factory.mktemp("local")), steps)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_write_arrives_once_whatever_the_service_answers(service: Service, place: str, fault: str) -> None:
    files = filesystem_for(place)
    service.fault("PUT", "run.json", **FAULTS[fault])
    files.create("run.json", b"first")
    service.fault("PUT", "run.json", **FAULTS[fault])
    files.replace("run.json", b"second")
    service.fault("PUT", "run.json", **FAULTS[fault])
    files.replace("run.json", b"third")
    assert filesystem_for(place).read("run.json") == b"third"
    with pytest.raises(FileExistsError):
        files.create("run.json", b"other")
    assert not any(f.times for f in service.faults)
    assert not service.requests("DELETE")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", FAULTS)
def test_another_writer_is_never_taken_for_oneself(service: Service, place: str, fault: str) -> None:
    mine, other = filesystem_for(place), filesystem_for(place)
    mine.create("run.json", b"mine")
    other.read("run.json")
    other.replace("run.json", b"others")
    service.fault("PUT", "run.json", **FAULTS[fault])
    with pytest.raises(StoreBusy):
        mine.replace("run.json", b"mine again")
    service.fault("PUT", "run.json", **FAULTS[fault])
    with pytest.raises(FileExistsError):
        mine.create("run.json", b"mine again")
    assert filesystem_for(place).read("run.json") == b"others"


def test_a_condition_that_fails_is_believed(service: Service, place: str) -> None:
    service.fault("PUT", "a", status=412)
    with pytest.raises(FileExistsError):
        filesystem_for(place).create("a", b"x")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["500", "503", "reply lost after the write", "slow reply", "reply cut in the middle"])
def test_reading_is_tried_again(service: Service, place: str, fault: str) -> None:
    files = filesystem_for(place)
    files.create("runs/a/run.json", b"x" * (3 * TAIL))
    service.fault("GET", "run.json", **FAULTS[fault])
    assert len(files.read("runs/a/run.json")) == 3 * TAIL
    service.fault("GET", "run.json", **FAULTS[fault])
    reader = files.open("runs/a/run.json")
    assert reader.size == 3 * TAIL
    service.fault("GET", "run.json", **FAULTS[fault])
    assert reader.read_at(5, 7) == b"x" * 7
    assert not any(f.times for f in service.faults)


def test_a_service_that_stays_broken_is_reported_and_nothing_is_deleted(service: Service, place: str) -> None:
    files = filesystem_for(place)
    service.fault("PUT", "run.json", status=500, times=99)
    service.fault("GET", "run.json", status=500, times=99)
    with pytest.raises(StoreError, match="InternalError"):
        files.create("run.json", b"x")
    with pytest.raises(StoreError, match="InternalError"):
        files.read("run.json")
    assert not service.requests("DELETE")


def test_of_many_writers_exactly_one_wins(service: Service, place: str) -> None:
    assert winners(place) == [filesystem_for(place).read("prize")]


def test_a_lease_is_held_renewed_given_back_and_taken_over(
    service: Service, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_lease, "SECONDS", 3.0)
    monkeypatch.setattr(object_lease, "RENEWALS", 6)
    files, other = filesystem_for(place), filesystem_for(place)
    with files.lock("runs/a/.writer.lock"):
        service.fault("PUT", ".writer.lock", status=500)
        threading.Event().wait(4.2)  # longer than it lasts unless renewed
        assert other.is_locked("runs/a/.writer.lock")
        with pytest.raises(StoreBusy), other.lock("runs/a/.writer.lock"):
            pass
    assert not other.is_locked("runs/a/.writer.lock")
    with other.lock("runs/a/.writer.lock"):
        assert files.is_locked("runs/a/.writer.lock")
    monkeypatch.setattr(object_lease, "SECONDS", 60.0)
    with files.lock("runs/a/.writer.lock"):
        make_old(place, "runs/a/.writer.lock")  # its holder is paused
        assert not other.is_locked("runs/a/.writer.lock")
        with other.lock("runs/a/.writer.lock"):
            assert files.is_locked("runs/a/.writer.lock")
    assert not service.requests("DELETE")


@pytest.mark.parametrize("fault", ["500 after the write", "reply lost after the write", "409"])
def test_a_lease_whose_reply_was_lost_is_ones_own(service: Service, place: str, fault: str) -> None:
    files = filesystem_for(place)
    service.fault("PUT", ".lock", **FAULTS[fault])
    with files.lock(".lock"):
        assert files.is_locked(".lock")
    service.fault("PUT", ".lock", **FAULTS[fault])
    with files.lock(".lock"):
        assert files.is_locked(".lock")


def test_a_lease_of_a_service_without_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_lease, "SECONDS", 0.4)
    memory = fsspec.filesystem("memory")
    bucket = f"bucket{next(_BUCKETS)}"
    files, other = (ObjectFilesystem(FsspecClient(memory, bucket), ObjectLocation("gs", bucket, "")) for _ in range(2))
    lock = "runs/a/.writer.lock"
    with files.lock(lock):
        with pytest.raises(StoreBusy), other.lock(lock):
            pass
        files.remove("runs/a")  # as a run is removed: no renewal may bring the lease back
        threading.Event().wait(0.3)
        assert files.list("runs") == []
    assert files.list("runs") == []
    with other.lock(lock), pytest.raises(StoreBusy), files.lock(lock):
        pass
    assert files.list("runs/a") == [], "given back by deleting it, so that the next is taken by put-if-absent again"
    files.create(lock, b"{}")
    threading.Event().wait(0.5)
    with pytest.raises(StoreError, match="no safe way"), other.lock(lock):
        pass


def everything(error: BaseException) -> str:
    reported = "".join(traceback.format_exception(error))
    return reported + (str(error.hint) if isinstance(error, AuditError) else "")


@pytest.mark.parametrize(
    "location",
    [
        f"s3://{KEY}:{SECRET}@bucket/lineage",
        f"s3://bucket/lineage?X-Amz-Signature={SECRET}",
        f"s3://bucket/lineage#{SECRET}",
        f"https://me:{SECRET}@host.invalid/x",
        f"S3://{KEY}:{SECRET}@bucket",
        f"s3:/{KEY}:{SECRET}@bucket/x",
    ],
)
def test_a_location_with_credentials_is_refused_and_not_repeated(location: str) -> None:
    with pytest.raises(UsageError) as caught:
        filesystem_for(location)
    assert SECRET not in everything(caught.value).replace(repr(location), "")
    assert KEY not in everything(caught.value).replace(repr(location), "")


def test_errors_of_the_service_carry_no_key_and_no_address(service: Service, place: str) -> None:
    files = filesystem_for(place)
    for method, action in (("PUT", lambda: files.replace("x", b"1")), ("GET", lambda: files.read("x"))):
        service.fault(method, "x", status=403)
        with pytest.raises(StoreReadOnly) as caught:
            action()
        reported = everything(caught.value)
        assert not [secret for secret in (KEY, SECRET, service.endpoint) if secret in reported]
        assert "AccessDenied" in str(caught.value)


@pytest.mark.parametrize("endpoint", [f"me:{SECRET}@127.0.0.1", f"http://me:{SECRET}@127.0.0.1:9"])
def test_an_endpoint_that_is_none_is_not_repeated(
    service: Service, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    object_s3._service.cache_clear()
    try:
        with pytest.raises(StoreError, match="endpoint") as caught:
            filesystem_for("s3://bucket/x").read("audit.json")
    finally:
        object_s3._service.cache_clear()
    assert SECRET not in everything(caught.value)


def test_another_endpoint_may_be_named_in_the_same_process(
    service: Service, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem_for(place).create("a.json", b"here")
    other = Service()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
        there = filesystem_for(f"s3://{other.bucket()}/some")
        there.create("a.json", b"there")
        assert there.read("a.json") == b"there"
        assert other.requests("PUT", "a.json")
    finally:
        other.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", service.endpoint)
    assert filesystem_for(place).read("a.json") == b"here"


def test_a_bucket_that_is_not_there(service: Service) -> None:
    files = filesystem_for("s3://no-such-bucket/x")
    with pytest.raises(StoreNotFound, match="no such bucket"):
        files.read("audit.json")
    with pytest.raises(StoreNotFound, match="no such bucket"):
        files.create("audit.json", b"")
    assert not files.exists("")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_location, "find_spec", lambda name: None)
    for scheme, extra in (("s3", "s3"), ("gs", "gcs"), ("az", "azure")):
        with pytest.raises(MissingExtra, match=rf"audit-lineage\[{extra}\]"):
            filesystem_for(f"{scheme}://bucket/x")


@given(st.text(max_size=30))
def test_any_text_is_a_location_or_a_usage_error(text: str) -> None:
    try:
        place = parse_location(text)
    except UsageError:
        return
    assert is_remote(text)
    assert parse_location(str(place)) == place


def test_a_path_is_still_a_directory(tmp_path: Path) -> None:
    assert isinstance(filesystem_for(str(tmp_path)), LocalFilesystem)
    for start in ("file://", "file:", "FILE://", "file://localhost"):
        assert filesystem_for(f"{start}{tmp_path}").location == str(tmp_path)
