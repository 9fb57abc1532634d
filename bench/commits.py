"""What a commit costs at the beginning and at the end of a long run.

python bench/commits.py [--commits 10000]

Prints the least and the middle time of the first and of the last hundred commits, their ratio, and the bytes that all commits
wrote beside the parts. A commit here holds one part of two rows, so that the manifest is what is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

from audit.store.durable_files import DurableFiles
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    count = parser.parse_args().commits
    written = _count_manifest_bytes()
    with tempfile.TemporaryDirectory(prefix="audit-commits-") as place:
        writer = RunWriter.create(place)
        times = [_commit(writer, number) for number in range(count)]
        writer.finish("complete")
        size = os.path.getsize(f"{place}/runs/{writer.run.run_id}/run.json")
    first, last = times[:100], times[-100:]
    for name, some in (("first 100", first), ("last 100", last)):
        print(
            f"{name}: least {min(some) * 1e3:.2f} ms, middle {statistics.median(some) * 1e3:.2f} ms of processor time"
        )
    print(f"ratio of the middles: {statistics.median(last) / statistics.median(first):.2f}")
    print(f"all {count} commits: {sum(times):.1f} s; the dearest, with a snapshot: {max(times) * 1e3:.0f} ms")
    print(f"run.json at the end: {size / 2**20:.1f} MiB; written for manifests in all: {sum(written) / 2**20:.1f} MiB")


def _commit(writer: RunWriter, number: int) -> float:
    run_id = writer.run.run_id
    rows = {"run_id": [run_id] * 2, "epoch": [0, 0], "index": [2 * number, 2 * number + 1], "visit": [0, 0]}
    table = table_of("samples", rows | {"status": ["ok", "ok"]})
    begun = time.process_time()
    writer.append({"samples": table})
    writer.flush()
    return time.process_time() - begun


def _count_manifest_bytes() -> list[int]:
    written: list[int] = []
    for name in ("create", "replace"):
        real = getattr(DurableFiles, name)

        def count_bytes(self: Any, path: str, data: Any, real: Any = real) -> None:
            if path.endswith(".json"):
                written.append(len(data))
            real(self, path, data)

        setattr(DurableFiles, name, count_bytes)
    return written


if __name__ == "__main__":
    main()
