"""`audit run --engine ray` from the command line: interrupted, resumed, and refused with a sentence that helps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ray_material import gone, write_material

import audit

pytest.importorskip("ray.data")
pytestmark = pytest.mark.xdist_group("ray")


def command(*arguments: str | Path, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "audit", "run", *map(str, arguments)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_without_a_cluster_and_without_ray(pictures: Callable[..., Path], tmp_path: Path) -> None:
    images = pictures()
    process = command("--dataset", images, "--engine", "ray", "--address", "127.0.0.1:9", "--store", tmp_path / "s")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert b"There is no Ray cluster to be reached at 127.0.0.1:9" in errors
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'ray':\n"
        "            raise ModuleNotFoundError('No module named ray')\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    process = command("--dataset", images, "--engine", "ray", "--store", tmp_path / "s", PYTHONPATH=str(tmp_path))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert b"pip install 'audit-lineage[ray]'" in errors
    assert not (tmp_path / "s").exists()


def test_ctrl_c_on_a_cluster_of_its_own(pictures: Callable[..., Path], tmp_path: Path) -> None:
    """The whole way: its own cluster, polite end, nothing left running, nothing in the home directory, and resumed."""
    images, store, home = pictures(count=24), tmp_path / "lineage", tmp_path / "home"
    home.mkdir()
    pipeline, _ = write_material(tmp_path, pause=0.2)
    token = f"mark-{tmp_path.name}"
    process = command(
        *("--dataset", images, "--pipeline", pipeline, "--store", store, "--engine", "ray", "--batch-size", "2"),
        *("--capture", "digest", "--commit-every", "0.1"),
        HOME=str(home),
        AUDIT_TEST_MARK=token,
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=token.ljust(40, "x"),
    )
    watchdog = threading.Timer(300, process.kill)
    watchdog.start()
    while process.poll() is None and not samples_in(store):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    watchdog.cancel()
    assert process.returncode == 130, errors.decode()
    assert b"audit run --resume" in errors
    assert b"Traceback" not in errors
    assert gone(token)
    assert list(home.iterdir()) == []
    done = subprocess.run(
        [sys.executable, "-m", "audit", "run", "--resume", "last", "--store", str(store), "--json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["status"] == "complete"
    with audit.open(store) as opened:
        counts = opened.sql("SELECT count(*), count(DISTINCT index) FROM samples").fetchone()
    assert counts == (24, 24)


def samples_in(store: Path) -> int:
    if not (store / "audit.json").exists():
        return 0
    with audit.open(store) as opened:
        return sum(run.samples for run in opened.runs())
