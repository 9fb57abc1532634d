"""A store may name any file of this machine and any address as a sample's source: neither may be misused by reading it."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

import audit
from audit.cli.main import cli
from audit.errors import CodeNotTrusted
from audit.lineage import source_state
from audit.records import Run
from audit.sources import contact
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

_contacts: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _contacts is not None and event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        _contacts.append(f"{event} {arguments[-2:]}")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def contacts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Whom this process contacts; a read that waits for a pipe is a failure."""
    global _contacts
    _contacts = []
    monkeypatch.setattr(contact, "_allowed_locations", set())
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(300)
    yield _contacts
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    _contacts = None


def make_store(
    place: Path, root: str, source: str, digest: str | None = "0" * 64, size: int | None = 9, **recipe: Any
) -> Path:
    """Write a store whose only sample has this source."""
    writer = RunWriter.create(str(place), Run("", recipe=recipe))
    run_id = writer.run.run_id
    key = {"run_id": [run_id], "epoch": [0], "index": [0], "visit": [0]}
    place_of = {"source": [source], "root": [root]}
    writer.append(
        {
            "samples": table_of(
                "samples", key | place_of | {"source_digest": [digest], "source_bytes": [size], "status": ["ok"]}
            ),
            "sample_sources": table_of(
                "sample_sources", key | place_of | {"ordinal": [0], "digest": [digest], "bytes": [size]}
            ),
        }
    )
    writer.finish("complete")
    return place


@pytest.mark.parametrize(
    "root", ["s3://evil-bucket/data", "gs://evil/x", "az://evil/x", "S3:/evil-bucket/data", "s3://"]
)
def test_reading_contacts_no_bucket_that_a_store_names(tmp_path: Path, contacts: list[str], root: str) -> None:
    make_store(tmp_path / "s", root, "a.png", kind="run", dataset=root)
    with audit.open(tmp_path / "s") as store:
        found = store.trace(index=0)
        assert found.source_state == "not read"
        assert found.source_states == ["not read"]
        assert "not read" in CliRunner().invoke(cli, ["trace", "0", "--store", str(tmp_path / "s")]).output
        store.check(record=False)
        store.report(str(tmp_path / "report.html"))
        with pytest.raises(OSError, match="not contacted"):
            source_state.read_source(found.sample)
        with pytest.raises(CodeNotTrusted, match="contact"):
            store.replay(workers=0)
    assert contacts == []


def test_trust_contacts_the_bucket(tmp_path: Path, contacts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="the extra s3 is not installed")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("audit.store.bucket.retry.ATTEMPTS", 1)
    make_store(tmp_path / "s", "s3://evil-bucket/data", "a.png")
    with audit.open(tmp_path / "s") as store:
        assert store.trace(index=0, trust=True).source_state == "missing"
    assert contacts


@pytest.mark.parametrize("source", ["kmsg", "kcore", "self/mem"])
@pytest.mark.parametrize("size", [None, 0, 9])
def test_files_of_the_system_are_not_read(tmp_path: Path, source: str, size: int | None) -> None:
    make_store(tmp_path / "s", "/proc", source, size=size)
    with audit.open(tmp_path / "s") as store:
        assert store.trace(index=0).source_state in ("missing", "changed")
        store.check(record=False)


@pytest.mark.parametrize("name", ["pipe", "pipe#member", "/dev/zero", "../pipe"])
def test_pipes_and_devices_are_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / "pipe")
    os.mkfifo(tmp_path / "pipe")
    make_store(tmp_path / "s", str(tmp_path / "data"), name)
    with audit.open(tmp_path / "s") as store:
        assert store.trace(index=0).source_state == "missing"
        store.check(record=False)


def test_a_file_of_another_size_is_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 2**42)
    make_store(tmp_path / "s", str(tmp_path), "huge")
    with audit.open(tmp_path / "s") as store:
        assert store.trace(index=0).source_state == "changed"


def test_a_member_of_an_archive_is_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"pixels")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "a", "a")
    digest = hashlib.sha256(b"pixels").hexdigest()
    make_store(tmp_path / "s", str(tmp_path), "x.tar#a", digest, 6)
    with audit.open(tmp_path / "s") as store:
        assert store.trace(index=0).source_state == "unchanged"


@pytest.mark.parametrize("known", [True, False])
def test_a_picture_is_shown_only_if_it_is_the_recorded_one(tmp_path: Path, known: bool) -> None:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(out, "PNG")
    private = tmp_path / "private.png"
    private.write_bytes(out.getvalue())
    digest = hashlib.sha256(out.getvalue()).hexdigest() if known else "0" * 64
    make_store(tmp_path / "s", str(tmp_path), "private.png", digest, len(out.getvalue()))
    with audit.open(tmp_path / "s") as store:
        found = store.trace(index=0)
        if known:
            assert found.read_source() == out.getvalue()
        else:
            with pytest.raises(OSError, match="not what was recorded"):
                found.read_source()
