"""One S3 server for the folder, a bucket for each test; skipped, visibly, where moto or boto3 is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_service import KEY, SECRET, Service

sys.path.append(
    str(Path(__file__).parent.parent / "store")
)  # rows and runs are made as the store's own tests make them


@pytest.fixture(scope="session")
def running() -> Iterator[Service]:
    pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    service = Service()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", service.endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield service
    service.close()


@pytest.fixture
def service(running: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The server without faults, and a client that pauses less than it would in earnest."""
    monkeypatch.setattr("audit.store.object_retry.FIRST_PAUSE", 0.005)
    running.forget()
    return running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that gives up on a reply sooner than a slow one comes."""
    monkeypatch.setattr("audit.store.object_s3.READ_SECONDS", 0.6)


@pytest.fixture
def place(service: Service) -> str:
    """An empty place for a store."""
    return f"s3://{service.bucket()}/some/lineage"
