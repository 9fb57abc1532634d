"""How long comparing two runs of a million predictions and five million stage outputs takes, and how much memory.

    python -m bench.diff [--samples 1000000] [--dir /tmp/somewhere] [--json]

Two synthetic runs are written through the store's own writer, then compared in a process of its own, so that the
peak is the comparison's alone. Of B's samples some are renamed, replaced, added and relabelled; half of all diverge
at the third stage; two in a hundred are predicted otherwise. Target: 10 s and 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from audit.records import Run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

CLASSES = 10
STAGES = ("load", "Resize", "CenterCrop", "ToTensor", "Normalize")
CHUNK = 100_000


def hexes(numbers: np.ndarray, width: int) -> np.ndarray:
    """Distinct looking digests, one for each number."""
    rows = np.empty((len(numbers), width // 16), dtype=">u8")
    for column in range(rows.shape[1]):
        rows[:, column] = (numbers + np.uint64(column)) * np.uint64(0x9E3779B97F4A7C15) ^ numbers >> np.uint64(7)
    return np.frombuffer(rows.tobytes().hex().encode(), dtype=f"S{width}").astype(f"U{width}")


def write_run(store: str, name: str, samples: int, *, second: bool) -> None:
    """One run; the second differs from the first in every way that a diff reports."""
    writer = RunWriter.create(store, Run("", name=name, classes=[str(c) for c in range(CLASSES)]))
    run_id = writer.run.run_id
    writer.append({"stages": stages_table(run_id, second)})
    for begin in range(0, samples, CHUNK):
        index = np.arange(begin, min(begin + CHUNK, samples))
        key = {"run_id": [run_id] * len(index), "epoch": np.zeros(len(index), int), "visit": np.zeros(len(index), int)}
        writer.append(chunk(index, key, second))
    writer.finish("complete")


def stages_table(run_id: str, second: bool) -> object:
    """Five stages, of which the second run's CenterCrop has another size."""
    sizes = ["{}", '{"size": [256]}', f'{{"size": [{192 if second else 224}]}}', "{}", "{}"]
    return table_of(
        "stages",
        {
            "run_id": [run_id] * len(STAGES),
            "stage": list(range(len(STAGES))),
            "path": [str(n) for n in range(len(STAGES))],
            "name": list(STAGES),
            "qualname": [f"torchvision.transforms.v2.{name}" for name in STAGES],
            "parameters": sizes,
            "random": [False] * len(STAGES),
        },
    )


def chunk(index: np.ndarray, key: dict[str, object], second: bool) -> dict[str, object]:
    """The rows of some samples, of all three tables."""
    unsigned = index.astype(np.uint64)
    name = np.char.add(np.char.add("class/", np.char.zfill(index.astype(str), 9)), ".jpg")
    label = index % CLASSES
    predicted = np.where(index % 37 == 0, (label + 1) % CLASSES, label)
    source = unsigned * np.uint64(2)
    diverges = np.zeros(len(index), bool)
    if second:
        name = np.where(index % 1000 == 1, np.char.add("moved/", name), name)
        source = np.where(index % 1000 == 2, source + np.uint64(1), source)
        name = np.where(index % 1000 == 3, np.char.add("new/", name), name)
        source = np.where(index % 1000 == 3, source + np.uint64(1), source)
        label = np.where(index % 1000 == 4, (label + 1) % CLASSES, label)
        predicted = np.where(index % 51 == 0, (label + 2) % CLASSES, predicted)
        diverges = index % 2 == 0
    count, names = len(index), np.array([str(c) for c in range(CLASSES)])
    samples = key | {
        "index": index, "source": name, "root": ["/data"] * count, "source_digest": hexes(source, 64),
        "source_bytes": index % 100_000, "label": label, "label_name": names[label], "status": ["ok"] * count,
    }  # fmt: skip
    logits = np.random.default_rng(int(index[0])).standard_normal((count, CLASSES), dtype=np.float32)
    last = digest_of(unsigned, len(STAGES) - 1, diverges)
    predictions = key | {
        "index": index, "label": label, "label_name": names[label], "predicted": predicted,
        "predicted_name": names[predicted], "correct": predicted == label, "confidence": logits.max(axis=1),
        "logits": logits, "probabilities": logits, "input_digest": last,
    }  # fmt: skip
    return {
        "samples": table_of("samples", samples),
        "predictions": table_of("predictions", predictions),
        "stage_outputs": table_of("stage_outputs", outputs(unsigned, key, diverges)),
    }


def outputs(index: np.ndarray, key: dict[str, object], diverges: np.ndarray) -> dict[str, object]:
    """The stage outputs of some samples, visit by visit as a recording writes them."""
    width, count = len(STAGES), len(index)
    digests = np.stack([digest_of(index, stage, diverges) for stage in range(width)], axis=1).reshape(-1)
    return {
        "run_id": [key["run_id"][0]] * (count * width),  # type: ignore[index]
        "epoch": np.zeros(count * width, int),
        "visit": np.zeros(count * width, int),
        "index": np.repeat(index.astype(np.int64), width),
        "stage": np.tile(np.arange(width), count),
        "name": np.tile(np.array(STAGES), count),
        "kind": ["tensor"] * (count * width),
        "digest": digests,
        "changed": np.ones(count * width, bool),
        "mean": np.repeat(index.astype(float), width),
    }


def digest_of(index: np.ndarray, stage: int, diverges: np.ndarray) -> np.ndarray:
    """From the third stage on, a diverging sample has another digest."""
    other = (diverges & (stage >= 2)).astype(np.uint64)
    return hexes((index * np.uint64(len(STAGES)) + np.uint64(stage)) * np.uint64(2) + other, 32)


def measure(store: str) -> dict[str, object]:
    """Compare in this process; seconds and peak resident memory."""
    from audit.lineage.diff.diff import diff
    from audit.store.read.reader import Reader

    with Reader(store) as reader:
        begun, worked = time.perf_counter(), time.process_time()
        found = diff(reader, "a", "b", rows=1000)
        seconds, processor = time.perf_counter() - begun, time.process_time() - worked
        summary = found.as_json()
    counts = {key: summary[key] for key in ("matched", "divergent", "counts", "first_divergent_stage", "mcnemar_p")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "processor_seconds": processor, "peak_mb": peak, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--dir", help="Where the store is kept; built there once.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        store = str(Path(options.dir or temporary) / f"diff-{options.samples}")
        if not os.path.exists(store):
            for name in ("a", "b"):
                write_run(store, name, options.samples, second=name == "b")
        rounds = []
        for _ in range(options.rounds):
            command = [sys.executable, "-m", "bench.diff", "--measure", store]
            rounds.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    rounds.sort(key=lambda found: float(found["seconds"]))
    middle = rounds[len(rounds) // 2]
    if options.json:
        print(json.dumps(middle))
        return
    print(f"{options.samples:,} predictions and {options.samples * len(STAGES):,} stage outputs on each side")
    # On a busy machine the clock says little: the processor time of all threads says what it took.
    taken = f"{middle['seconds']:.2f} s (target 10), {middle['processor_seconds']:.2f} s of processor time"
    print(f"diff: {taken}, peak {middle['peak_mb']:,.0f} MB (target 2,000)")
    print(f"matched {middle['matched']:,}, {middle['counts']}, first divergent stage {middle['first_divergent_stage']}")


if __name__ == "__main__":
    main()
