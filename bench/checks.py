"""What judging a large run costs: every default check over a million samples and five million stage outputs.

    python -m bench.checks                   1,000,000 samples, and 100,000 perceptual hashes
    python -m bench.checks --samples 100000 --each   a row for each check, measured alone

The store is written with the writer that records runs; each check is timed in one process, and the process's
largest memory is printed. Checks that replay or read source files have nothing to read here and are skipped, visibly.
With `--each`, every check is asked alone, after one that opened everything: processor time of all threads, and what it read
of the store, as a share of the store's bytes. A check that reads more than all of it goes over something twice.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from audit.records import Run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

STAGES = ("load", "Resize", "CenterCrop", "ToTensor", "Normalize")
CLASSES = 10
CHUNK = 50_000
#: Largest memory that the checks may take, and longest time, on the million.
MOST_SECONDS, MOST_BYTES = 20.0, 2 * 2**30


def build(place: Path, samples: int) -> None:
    """A run of one clean dataset, without payloads."""
    rng = np.random.default_rng(0)
    classes = [f"class-{n}" for n in range(CLASSES)]
    writer = RunWriter.create(str(place), Run("", name="bench", classes=classes, expected=samples))
    run_id = writer.run.run_id
    count = len(STAGES)
    parameters = [
        "{}",
        '{"size": 256}',
        '{"size": 224}',
        "{}",
        '{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}',
    ]
    writer.append({"stages": table_of("stages", {
        "run_id": [run_id] * count, "stage": list(range(count)), "path": [str(n) for n in range(count)],
        "name": list(STAGES), "qualname": [f"bench.{name}" for name in STAGES], "parameters": parameters,
        "random": [False] * count,
    })})  # fmt: skip
    for start in range(0, samples, CHUNK):
        writer.append(_chunk(rng, run_id, start, min(start + CHUNK, samples), classes))
    writer.finish("complete")


def _digests(rng: np.random.Generator, count: int, size: int) -> pa.Array:
    text = np.frombuffer(rng.bytes(count * size).hex().encode(), dtype=f"S{2 * size}")
    return pa.array(text.astype(f"U{2 * size}"), pa.string())


def _chunk(rng: np.random.Generator, run_id: str, start: int, end: int, classes: list[str]) -> dict[str, pa.Table]:
    count = end - start
    index = np.arange(start, end)
    label = rng.integers(0, CLASSES, count)
    shared = {"run_id": pa.repeat(run_id, count), "epoch": np.zeros(count, np.int32), "index": index}
    shared |= {"visit": np.zeros(count, np.int32)}
    names = pa.array(classes).take(pa.array(label))
    samples = table_of("samples", shared | {
        "split": pa.repeat("test", count),
        "source": [f"class-{n}/{i:08d}.jpg" for n, i in zip(label, index, strict=True)],
        "root": pa.repeat("/nowhere", count), "source_digest": _digests(rng, count, 32),
        "source_bytes": rng.integers(10_000, 200_000, count), "label": label, "label_name": names,
        "status": pa.repeat("ok", count), "batch": index // 32, "position": (index % 32).astype(np.int32),
    })  # fmt: skip
    logits = rng.normal(0, 1, (count, CLASSES)).astype(np.float32)
    wrong = rng.random(count) < 0.05
    logits[np.arange(count), np.where(wrong, (label + 1) % CLASSES, label)] += 6
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    predicted = logits.argmax(axis=1)
    last = _digests(rng, count, 16)
    outputs = [_stage(rng, shared, stage, last if stage == len(STAGES) - 1 else None) for stage in range(len(STAGES))]
    predictions = table_of("predictions", shared | {
        "label": label, "label_name": names, "predicted": predicted,
        "predicted_name": pa.array(classes).take(pa.array(predicted)),
        "confidence": probabilities.max(axis=1), "correct": predicted == label,
        "loss": -np.log(probabilities[np.arange(count), label]), "logits": logits, "probabilities": probabilities,
        "input_digest": last, "batch": index // 32, "position": (index % 32).astype(np.int32), "step": index // 32,
    })  # fmt: skip
    return {"samples": samples, "stage_outputs": pa.concat_tables(outputs), "predictions": predictions}


def _stage(rng: np.random.Generator, shared: dict[str, Any], stage: int, digest: pa.Array | None) -> pa.Table:
    count = len(shared["index"])
    picture = stage < 3
    shape = ((375, 500, 3), (256, 341, 3), (224, 224, 3), (3, 224, 224), (3, 224, 224))[stage]
    low, high = ((0, 255), (0, 255), (0, 255), (0, 1), (-2.1, 2.6))[stage]
    mean = rng.normal((low + high) / 2, (high - low) / 12, count)
    return table_of("stage_outputs", shared | {
        "stage": np.full(count, stage, np.int32), "name": pa.repeat(STAGES[stage], count),
        "kind": pa.repeat("image" if picture else "tensor", count),
        "dtype": pa.repeat("uint8" if picture else "float32", count), "shape": np.tile(np.array(shape), (count, 1)),
        "mode": pa.repeat("RGB", count) if picture else pa.nulls(count, pa.string()),
        "digest": digest if digest is not None else _digests(rng, count, 16), "changed": np.ones(count, bool),
        "min": low + rng.random(count) * 0.01, "max": high - rng.random(count) * 0.01, "mean": mean,
        "std": np.full(count, (high - low) / 5), "zeros": rng.integers(0, 100, count),
        "nonfinite": np.zeros(count, np.int64),
        "bytes": np.full(count, 150_528), "microseconds": rng.random(count).astype(np.float32),
        "payload": pa.repeat("none", count),
    })  # fmt: skip


def judge(place: Path) -> dict[str, Any]:
    """Run the default checks in this process: seconds of each, and the largest memory."""
    from audit.checks.runner import run_checks

    begun, worked = time.perf_counter(), time.process_time()
    report = run_checks(str(place), record=False)
    return {
        "seconds": time.perf_counter() - begun,
        "worked": time.process_time() - worked,
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "checks": [(o.check, o.status, round(o.seconds, 2), o.message) for o in report.outcomes],
    }


def judge_each(place: Path) -> list[tuple[str, str, float, float]]:
    """Each default check alone: its name, its status, seconds of processor time, and how much of the store it read."""
    from audit.checks.runner import run_checks
    from audit.store.read.duckdb_files import PartFile
    from audit.store.read.reader import Reader

    size = sum(path.stat().st_size for path in place.rglob("*.parquet"))
    read = 0
    plain = PartFile.read

    def count_bytes(self: PartFile, count: int = -1) -> bytes:
        nonlocal read
        data = plain(self, count)
        read += len(data)
        return data

    PartFile.read = count_bytes  # type: ignore[method-assign]
    rows: list[tuple[str, str, float, float]] = []
    names = [outcome.check for outcome in run_checks(str(place), record=False).outcomes]
    for name in names:
        # A reader of its own: what one check has asked for is not kept for the next.
        with Reader(str(place)) as reader:
            reader.sql("SELECT count(*) FROM samples").fetchall()
            read, worked = 0, time.process_time()
            (outcome,) = run_checks(reader, only=[name], record=False).outcomes
            rows.append((name, outcome.status, time.process_time() - worked, read / size))
    return rows


def hashes(count: int) -> float:
    """Seconds to find near duplicates among perceptual hashes, a tenth of which are in clusters."""
    from audit.checks.shared.hashes import near_pairs

    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**63, count, dtype=np.uint64)
    planted = count // 20
    values[-planted:] = values[:planted] ^ (np.uint64(1) << rng.integers(0, 64, planted).astype(np.uint64))
    begun = time.perf_counter()
    pairs = near_pairs(values, 3)
    seconds = time.perf_counter() - begun
    assert len(pairs) >= planted
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--store", type=Path, help="use this place, and keep it")
    parser.add_argument("--each", action="store_true", help="measure each check alone")
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.judge:
        print(json.dumps(judge(given.judge)))
        return
    folder = given.store or Path(tempfile.mkdtemp(prefix="audit-bench-"))
    try:
        if not (folder / "lineage").exists():
            begun = time.perf_counter()
            build(folder / "lineage", given.samples)
            print(f"built {given.samples:,} samples in {time.perf_counter() - begun:.1f} s")
        if given.each:
            for name, status, worked, share in sorted(judge_each(folder / "lineage"), key=lambda row: -row[2]):
                print(f"{worked:7.2f} s CPU  {share:5.0%} of the store read  {status:5} {name}")
            return
        # A process of its own, so that the memory is that of the checks and not of the building.
        command = [sys.executable, "-m", "bench.checks", "--judge", str(folder / "lineage")]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    finally:
        if given.store is None:
            shutil.rmtree(folder)
    for name, status, seconds, message in sorted(found["checks"], key=lambda row: -row[2]):
        print(f"{seconds:7.2f} s  {status:5} {name:20} {message[:90]}")
    print(
        f"all: {found['seconds']:.1f} s (at most {MOST_SECONDS:.0f}), {found['worked']:.1f} s of work, "
        f"{found['bytes'] / 2**20:,.0f} MiB (at most {MOST_BYTES / 2**20:,.0f})"
    )
    for count in (10_000, 100_000, 1_000_000):
        print(f"near duplicates among {count:,} hashes: {hashes(count):.2f} s")


if __name__ == "__main__":
    main()
