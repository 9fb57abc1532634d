"""gs:// and az:// against emulators on loopback, through gcsfs and adlfs; skipped, visibly, where one is missing.

Google's is gcp-storage-emulator, from the development extra. Microsoft's is Azurite, which npm has alone: `npm install
azurite`, with node_modules/.bin on the PATH. Google's does not look at `ifGenerationMatch`, so that nothing here can tell
who wins of two writers there; Azurite does.
"""

from __future__ import annotations

import itertools
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from object_service import winners
from store_cases import record, visit_tables

import audit
from audit.errors import StoreBusy, StoreNotFound
from audit.sources import open_dataset
from audit.store.filesystem import filesystem_for
from audit.store.sandbox.sandbox import Sandbox
from audit.store.schema import SCHEMAS
from audit.store.write.writer import RunWriter

pytestmark = pytest.mark.buckets

#: The account that Azurite has, as its documentation says.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_NUMBERS = itertools.count()


def _google(folder: Path) -> tuple[list[str], dict[str, str]]:
    for package in ("gcsfs", "gcp_storage_emulator"):
        pytest.importorskip(package)
    port = _free_port()
    # Without the second, gcsfs asks another service, which no emulator has, what kind of bucket it is.
    variables = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    options = ["start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    return [sys.executable, "-m", "gcp_storage_emulator", *options], variables


def _azure(folder: Path) -> tuple[list[str], dict[str, str]]:
    pytest.importorskip("adlfs")
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not on the PATH")
    port = _free_port()
    address = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_ACCOUNT_KEY};BlobEndpoint={address};"
    )
    options = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(folder)]
    return [command, *options, "--blobPort", str(port)], {"AZURE_STORAGE_CONNECTION_STRING": connection}


_EMULATORS: dict[str, Callable[[Path], tuple[list[str], dict[str, str]]]] = {"gs": _google, "az": _azure}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module", params=_EMULATORS)
def scheme(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command, variables = _EMULATORS[request.param](tmp_path_factory.mktemp(request.param))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            found = re.search(r"127\.0\.0\.1:(\d+)", " ".join(variables.values()))
            assert found is not None
            _wait_for(process, int(found[1]))
            yield request.param
        finally:
            process.kill()
            process.wait()
            fsspec.filesystem(request.param, use_listings_cache=False).clear_instance_cache()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail("the emulator ended")


@pytest.fixture
def place(scheme: str) -> str:
    bucket = f"audit-{next(_NUMBERS)}"
    fsspec.filesystem(scheme, use_listings_cache=False).mkdir(bucket)
    return f"{scheme}://{bucket}/some/lineage"


def rows(store: audit.Store) -> dict[str, list[tuple[object, ...]]]:
    return {table: store.sql(f"FROM {table} ORDER BY ALL").fetchall() for table in SCHEMAS}


def test_the_rows_are_those_of_a_local_store(place: str, tmp_path: Path) -> None:
    for location in (place, str(tmp_path / "lineage")):
        record(location, samples=20, run_id="first", name="a")
        record(location, samples=5, run_id="second", name="b")
    with audit.open(place) as remote, audit.open(tmp_path / "lineage") as local:
        assert rows(remote) == rows(local)
        assert remote.trace(index=3).as_json() == local.trace(index=3).as_json()
        assert remote.diff("a", "b").as_json() == local.diff("a", "b").as_json()
        before = rows(remote)
        assert remote.compact("a").parts_after == 4
        assert remote.compact("a").parts_before == 4  # this one deletes what the first replaced
        assert rows(remote) == before
        assert remote.verify() == []
        remote.remove("b")
    files = filesystem_for(place)
    assert files.list("runs") == ["first"]
    assert len(files.list("runs/first/samples")) == 1
    with Sandbox(place, seconds=60) as sandbox:
        assert sandbox.query("SELECT count(*) FROM samples").rows == [[20]]


def test_one_writer_at_a_time(place: str) -> None:
    record(place, samples=3, run_id="only")
    writer = RunWriter.resume(place, "only")
    with pytest.raises(StoreBusy):
        RunWriter.resume(place, "only")
    writer.append(visit_tables("only", [3]))
    writer.finish("complete")
    with audit.open(place) as store:
        assert (store.run().status, store.run().samples) == ("complete", 4)


def test_of_many_writers_exactly_one_wins(scheme: str, place: str) -> None:
    if scheme == "gs":
        pytest.skip("gcp-storage-emulator does not look at ifGenerationMatch")
    assert winners(place) == [filesystem_for(place).read("prize")]


def test_a_bucket_that_is_not_there(scheme: str) -> None:
    for asked in (
        lambda: record(f"{scheme}://no-such-bucket/x", samples=1),
        lambda: audit.open(f"{scheme}://no-such-bucket/x"),
    ):
        with pytest.raises(StoreNotFound):
            asked()


def test_a_dataset(place: str, pictures: Callable[..., Path]) -> None:
    folder = pictures(count=6)
    files = filesystem_for(place)
    for path in folder.rglob("*.png"):
        files.create(path.relative_to(folder).as_posix(), path.read_bytes())
    remote, local = open_dataset(place), open_dataset(folder)
    assert [*remote.listing()] == [*local.listing()]
    audit.run(place, store=f"{place}-store", capture="digest", workers=2)  # read in processes that were forked
    audit.run(folder, store=folder.parent / "lineage", capture="digest", workers=0)
    query = "SELECT index, source, source_digest, digest FROM samples JOIN stage_outputs USING (index) ORDER BY 1"
    with audit.open(f"{place}-store") as there, audit.open(folder.parent / "lineage") as here:
        assert there.sql(query).fetchall() == here.sql(query).fetchall()
