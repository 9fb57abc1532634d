"""`audit run --engine ray` from the command line: interrupted, resumed, and refused with a sentence that helps."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from ray_material import has_ended, ray_processes, short_folder, write_material
from warm_programs import warm_audit

import audit
from audit.engines.run import resume_run
from audit.errors import MissingExtra, UsageError

pytest.importorskip("ray.data")
pytestmark = pytest.mark.ray


def command(*arguments: str | Path, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [warm_audit(), "run", *map(str, arguments)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_without_a_cluster_and_without_ray(
    pictures: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, store = pictures(), tmp_path / "lineage"
    with pytest.raises(UsageError, match=r"No Ray cluster could be reached at 127\.0\.0\.1:9"):
        audit.run(images, engine="ray", address="127.0.0.1:9", store=store)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'audit-lineage\[ray\]'"):
        audit.run(images, engine="ray", store=store)
    assert not store.exists()


def test_ctrl_c_on_a_cluster_of_its_own(pictures: Callable[..., Path], tmp_path: Path) -> None:
    """The whole way: its own cluster, a worker killed without a word of Ray's, polite end, nothing left running, nothing
    in the home and temporary folders, and resumed."""
    images, store, home, present = pictures(count=24), tmp_path / "lineage", tmp_path / "home", tmp_path / "present"
    home.mkdir()
    present.mkdir()
    pipeline, _ = write_material(tmp_path, pause=0.3, pids=present)
    token = f"mark-{tmp_path.name}"
    with short_folder() as temporary:
        process = command(
            *("--dataset", images, "--pipeline", pipeline, "--store", store, "--engine", "ray", "--batch-size", "2"),
            *("--capture", "digest", "--commit-every", "0.1", "--json"),
            HOME=str(home),
            TMPDIR=str(temporary),
            AUDIT_TEST_MARK=token,
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN=token.ljust(40, "x"),
        )
        watchdog = threading.Timer(300, process.kill)
        watchdog.start()
        wait_for_more(process, store)
        addresses, usage_settings = listening(token)
        os.kill(max(int(one.name.partition("-")[2]) for one in present.iterdir()), signal.SIGKILL)
        wait_for_more(process, store)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        watchdog.cancel()
        assert process.returncode == 130, errors.decode()
        assert b"audit run --resume" in errors
        assert errors.count(b"\n") == 1, errors.decode()
        assert json.loads(output)["status"] == "interrupted"
        assert has_ended(token)
        assert list(home.iterdir()) == []
        assert list(temporary.iterdir()) == []
    # Its processes listen on this machine alone, tell nobody, and serve no dashboard.
    assert addresses
    assert all(ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback for address in addresses)
    assert usage_settings == {"0"}
    done = resume_run(str(store), None)
    assert done.status == "complete"
    with audit.open(store) as opened:
        counts = opened.sql("SELECT count(*), count(DISTINCT index) FROM samples").fetchone()
    assert counts == (24, 24)


def listening(mark: str) -> tuple[list[str], set[str | None]]:
    """Where the processes of a Ray session listen, and their setting of usage statistics."""
    addresses, settings = [], set()
    for number in ray_processes(mark):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(number)
            found = process.net_connections("inet")
            addresses += [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]
            if "raylet" in process.name() or "gcs" in process.name() or "dashboard.py" in " ".join(process.cmdline()):
                settings.add(process.environ().get("RAY_USAGE_STATS_ENABLED"))
    return addresses, settings


def wait_for_more(process: subprocess.Popen[bytes], store: Path) -> None:
    before = samples_in(store)
    while process.poll() is None and samples_in(store) <= before:
        time.sleep(0.05)


def samples_in(store: Path) -> int:
    if not (store / "audit.json").exists():
        return 0
    with audit.open(store) as opened:
        return sum(run.samples for run in opened.runs())
