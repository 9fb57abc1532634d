"""Full shared memory: what a worker cannot share travels by value, and no row and no prediction is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from places import REPOSITORY

#: Runs with 160 kilobytes of shared memory, mounted for this process alone: room for the queues, and for one batch.
PROGRAM = """
import contextlib
import sys
from pathlib import Path
from bench.campaign.mounts import mount_privately
import audit
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((3, 40, 40), float(index)), index % 3

if __name__ == "__main__":
    place, images, pipeline = sys.argv[1:]
    if not mount_privately("/dev/shm", 160):
        sys.exit(77)
    done = audit.run(images, pipeline=pipeline, store=place, workers=2, batch_size=4, capture="full", stall_timeout=60)
    print(done.status, done.samples, done.failed)
    with audit.open(place) as store:
        again = store.replay(done.run_id, workers=2)
        print(again.checked, again.identical)
        print(store.sql("SELECT count(*) FROM payloads").fetchone()[0] > 0, store.verify())
    with audit.record(place, name="loop", capture="full") as run:
        data = run.dataset(Numbers())
        for batch in DataLoader(data, batch_size=2, num_workers=2, collate_fn=lambda items: [float(x.mean()) for x, _ in items]):
            pass
    with audit.open(place) as store:
        print(store.sql("SELECT count(*) FROM samples", run="loop").fetchone()[0])
    with open("/dev/shm/rest", "wb", buffering=0) as rest, contextlib.suppress(OSError):
        while True:
            rest.write(bytes(4096))
    with audit.record(place, name="full") as run:
        data = run.dataset(Numbers())
        print([float(data[at][0].mean()) for at in range(3)], [type(data).__name__, *run.run.warnings][:2])
"""


@pytest.mark.workers
def test_nothing_is_lost_and_nothing_hangs(pictures: Callable[..., Path], folder_on_disk: Path) -> None:
    images = shutil.copytree(pictures(count=24, size=(60, 60)), folder_on_disk / "images")
    pipeline = folder_on_disk / "roomy.py"
    pipeline.write_text(
        "import numpy as np\nimport torch\n\n\ndef as_tensor(picture):\n    return torch.from_numpy(np.array(picture))\n\n\ntransform = [as_tensor]\n"
    )
    program = folder_on_disk / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, folder_on_disk / "lineage", images, pipeline],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    if done.returncode == 77:
        pytest.skip("cannot mount here")
    *whole, full = done.stdout.splitlines()
    assert whole == ["complete 24 0", "24 24", "True []", "24"], done.stderr
    assert full.startswith("[0.0, 1.0, 2.0] ['Numbers', 'Recording failed: "), done.stderr
