"""Does memory grow with the dataset? Peak memory of `audit run` over 1,000 and over 100,000 small samples.

    python bench/memory.py [--small N] [--large N]

Each run is a process of its own; the peak is that of the main process, which holds the model and the writer.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = """
import resource, sys, torch
torch.set_num_threads(1)
import audit
run = audit.run(sys.argv[1], model=sys.argv[2] + ":model", pipeline=sys.argv[2], store=sys.argv[3], workers=2, capture="digest", batch_size=64)
assert run.samples == int(sys.argv[4]), run
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
PIPELINE = """
import torch
class Shift:
    def __call__(self, value):
        return value + 1.0
transform = [Shift()]
def dataset(root):
    count = int(root.rsplit("-", 1)[1])
    class Small(torch.utils.data.Dataset):
        def __init__(self):
            self.transform = Shift()
        def __len__(self):
            return count
        def __getitem__(self, index):
            return self.transform(torch.full((8,), float(index))), index % 10
    return Small()
def model():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 10)
"""


def peak(count: int, work: Path) -> int:
    """Peak memory in MB of a run over `count` samples."""
    pipeline = work / "memory_pipeline.py"
    pipeline.write_text(PIPELINE.replace("transform = [Shift()]\n", ""))
    store = work / f"lineage-{count}"
    done = subprocess.run(
        [sys.executable, "-c", RUN, f"samples-{count}", str(pipeline), str(store), str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    shutil.rmtree(store)
    return int(done.stdout.split()[-1])


def main() -> None:
    """Measure both and print the growth."""
    options = argparse.ArgumentParser()
    options.add_argument("--small", type=int, default=1000)
    options.add_argument("--large", type=int, default=100_000)
    given = options.parse_args()
    work = Path(tempfile.mkdtemp())
    try:
        small, large = peak(given.small, work), peak(given.large, work)
    finally:
        shutil.rmtree(work)
    verdict = "ok" if large - small < 50 else "over"
    print(
        f"peak memory: {given.small:,} samples {small} MB, {given.large:,} samples {large} MB, growth {large - small} MB"
    )
    print(f"target: below 50 MB  {verdict}")


if __name__ == "__main__":
    main()
