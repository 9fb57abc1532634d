"""What does one more block cost the driver of a run on many machines? It adopts parts that others wrote, and commits them.

    python -m bench.driver [--blocks N] [--every N]

A block is what a worker writes for one task: a part of each of four tables. `--every` is how many blocks come between two
commits. Printed are the processor time for each block, at the beginning and at the end, and how many GPUs one driver follows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from audit.records import Part
from audit.store.tally import Tally
from audit.store.wire import table_of
from audit.store.write.block import BlockWriter
from audit.store.write.writer import RunWriter

TABLES = ("samples", "sample_sources", "stage_outputs", "payloads")
#: Samples of one block, as engines/ray makes them of 16 batches of 64, and samples a second of one GPU.
BLOCK_SAMPLES = 1024
GPU_SAMPLES = 1000


def measure(blocks: int, every: int, place: Path) -> list[float]:
    """Return the processor time of each adoption, commits included."""
    writer = RunWriter.create(str(place))
    writer.commit_every(1e9)
    block = BlockWriter(str(place), writer.run.run_id, 0)
    block.append({name: table_of(name, {"index": [1]}) for name in TABLES})
    written = block.finish()
    folder = place / "runs" / writer.run.run_id
    seconds = []
    for number in range(blocks):
        parts = tuple(_copy(part, number, folder) for part in written.parts)
        begun = time.process_time()
        writer.adopt(parts, Tally(samples=BLOCK_SAMPLES))
        if number % every == every - 1:
            writer.flush()
        seconds.append(time.process_time() - begun)
    writer.finish("complete")
    return seconds


def _copy(part: Part, number: int, folder: Path) -> Part:
    """Return a part of another name with the same content."""
    copied = replace(part, file=part.file.replace("-0000000-", f"-{number + 1:07d}-"))
    (folder / copied.file).hardlink_to(folder / part.file)
    return copied


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--blocks", type=int, default=5000)
    options.add_argument("--every", type=int, default=1000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        seconds = measure(given.blocks, given.every, Path(place))
    tenth = max(given.blocks // 10, given.every)
    first, last = (sum(part) / len(part) for part in (seconds[:tenth], seconds[-tenth:]))
    print(f"{given.blocks:,} blocks: {1e3 * first:.3f} ms each at first, {1e3 * last:.3f} ms at the end")
    print(f"one core adopts {1 / last:,.0f} blocks a second: {BLOCK_SAMPLES / last / GPU_SAMPLES:,.0f} GPUs")


if __name__ == "__main__":
    main()
