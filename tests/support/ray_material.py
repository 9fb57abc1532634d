"""Pictures, a random pipeline and a model that Ray's workers build quickly: torch and numpy, nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from warm_programs import warm_ray_worker

import audit
from audit.engines.ray.cluster import prepare_own
from audit.store.filesystem import filesystem_for

# Before anything imports ray: it reads the environment only once.
prepare_own()

#: Time and place of work differ between two runs by nature; nothing else may.
TABLES = {
    "samples": "* EXCLUDE (run_id, worker)",
    "stage_outputs": "* EXCLUDE (run_id, microseconds)",
    "payloads": "* EXCLUDE (run_id)",
    "stages": "* EXCLUDE (run_id)",
    "predictions": "* EXCLUDE (run_id)",
}

#: Draws from every global generator and from one that it holds. `pause` slows it down, `trap` kills the process at a
#: picture with a corner of that colour, `pids` is where each process leaves its number.
PIPELINE = """
import os, random, signal, time
import numpy as np
import torch
from torch import nn

PAUSE = {pause}
TRAP = {trap!r}
PIDS = {pids!r}

def present(role):
    if PIDS:
        open(os.path.join(PIDS, role + "-" + str(os.getpid())), "w").close()

def as_array(picture):
    present("recorder")
    if picture.getpixel((0, 0)) == TRAP:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(PAUSE)
    return np.asarray(picture, dtype=np.float32) / 255

class Jitter:
    def __init__(self):
        self.generator = np.random.default_rng(0)
    def __call__(self, array):
        return array + self.generator.normal(0, 0.1, array.shape).astype(np.float32) * random.random()

def shifted(array):
    return np.roll(array, np.random.randint(0, 4), axis=1)

def noisy(array):
    return torch.from_numpy(array).permute(2, 0, 1) + torch.rand(1)

mode = "keep"
transform = [as_array, Jitter(), shifted, noisy]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        present("model")
        return self.head(self.conv(x).relu().mean((2, 3)))

def model():
    return Net()
"""


def write_material(
    folder: Path, *, pause: float = 0.0, trap: tuple[int, int, int] | None = None, pids: Path | None = None
) -> tuple[Path, Path]:
    """A pipeline file and a checkpoint for it."""
    name = f"ray_pipeline_{folder.name.replace('-', '_')}_{len(list(folder.glob('ray_pipeline_*.py')))}"
    pipeline = folder / f"{name}.py"
    pipeline.write_text(PIPELINE.format(pause=pause, trap=trap, pids=str(pids) if pids else None))
    scope: dict[str, Any] = {}
    exec(pipeline.read_text(), scope)
    torch.manual_seed(1)
    checkpoint = folder / f"{name}.pt"
    torch.save(scope["Net"]().state_dict(), checkpoint)
    return pipeline, checkpoint


def rows_of(store: Path | str, run: str) -> dict[str, list[Any]]:
    """Everything that a run holds, as text, in a stable order."""
    with audit.open(store) as opened:
        return {
            table: sorted(map(repr, opened.sql(f"SELECT {columns} FROM {table}", run=run).fetchall()))
            for table, columns in TABLES.items()
        }


def find_unlisted(store: Path | str, run_id: str) -> list[str]:
    """Parts of a run that its manifest does not list."""
    with audit.open(store) as opened:
        listed = {part.file for part in opened.reader.manifest(run_id).parts}
    files, folder = filesystem_for(str(store)), f"runs/{run_id}"
    # The records of commits are not parts; in a bucket they stay (docs/FORMAT.md).
    tables = [name for name in files.list(folder) if name != "log" and files.is_folder(f"{folder}/{name}")]
    there = {f"{table}/{name}" for table in tables for name in files.list(f"{folder}/{table}")}
    return sorted(there - listed)


def node_options() -> dict[str, Any]:
    """Return options of a node that is small, and whose workers need not import torch."""
    return {"object_store_memory": 100 * 2**20, "include_dashboard": False, "setup_worker_path": warm_ray_worker()}


@contextlib.contextmanager
def ray_nodes(*cpus: int) -> Iterator[Any]:
    """Start a Ray cluster of several nodes on this machine, the first its head, and connect this process to it.

    All its files lie in one temporary folder. `temp_dir` alone does not suffice: `Cluster` writes the address of the
    current cluster into Ray's default folder, which only the environment moves.
    """
    import ray
    from ray.cluster_utils import Cluster

    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **node_options()})
        try:
            for number in cpus[1:]:
                cluster.add_node(num_cpus=number, **node_options())
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Make a temporary folder with a short path, because Ray's sockets lie below it; remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ray-t-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def state_of(folder: Path) -> dict[Path, int]:
    """When each file below a folder was last changed; empty where there is no folder."""
    return {path: path.lstat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def ray_processes(session: str) -> list[int]:
    """Living processes of a Ray session, known by its folder in their command or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if session.encode() in text:
                    found.append(int(entry.name))
    return found


def has_ended(session: str, seconds: float = 60) -> bool:
    """Whether every process of a session ends in time."""
    deadline = time.monotonic() + seconds
    while ray_processes(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
