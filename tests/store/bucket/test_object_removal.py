"""A removal from a bucket that is cut off leaves a tombstone, and nothing that looks like damage."""

from __future__ import annotations

import pytest
from store_cases import record

import audit
from audit.store.bucket.filesystem import ObjectFilesystem
from audit.store.bucket.s3 import S3Client

pytestmark = pytest.mark.buckets


def test_a_killed_removal_is_no_damage(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    killed, keep = 0, record(place, samples=2)
    for at in range(0, 12, 2):
        drop = record(place, samples=2)
        left = [at]

        def delete(self: S3Client, key: str, real: object = S3Client.delete, left: list[int] = left) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            real(self, key)  # type: ignore[operator]

        with monkeypatch.context() as patched, audit.open(place) as store:
            patched.setattr(S3Client, "delete", delete)
            try:
                store.remove(drop.run_id)
            except Killed:
                killed += 1
        with audit.open(place) as store:
            known = {run.run_id for run in store.runs()}
            assert keep.run_id in known
            assert not store.verify()
            store.clean()
            assert not store.verify()
            filesystem = store.reader.filesystem
            assert isinstance(filesystem, ObjectFilesystem)
            if drop.run_id not in known:
                assert filesystem.list(f"runs/{drop.run_id}") == []
    assert killed >= 3
