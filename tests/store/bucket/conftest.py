"""One S3 server for the folder, a bucket for each test; skipped, visibly, where moto or boto3 is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from object_service import Service


@pytest.fixture(scope="session")
def running() -> Iterator[Service]:
    pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    service = Service()
    with service.set_environment():
        yield service
    service.close()


@pytest.fixture
def service(running: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The server without faults, and a client that pauses less than it would in earnest."""
    monkeypatch.setattr("audit.store.bucket.retry.FIRST_PAUSE", 0.005)
    running.forget()
    return running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that gives up on a reply sooner than a slow one comes."""
    monkeypatch.setattr("audit.store.bucket.s3.READ_SECONDS", 0.6)


@pytest.fixture
def place(service: Service) -> str:
    """An empty place for a store."""
    return f"s3://{service.bucket()}/some/lineage"
