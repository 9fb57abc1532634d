"""How often checks report something in runs that have no fault, at 30, 100, 1,000 and 10,000 samples.

    python -m bench.alarms [--rounds 100] [--sizes 30 100]

Each round makes a random clean pair of runs: a baseline and a run of the same model on the same files, with two splits.
Labels follow the probabilities, a random stage acts as often as its `p`, and half of the predictions that differ from the
baseline became better. The number of classes, the accuracy and the rarity of classes differ from round to round. All default checks judge the run against
the baseline, as `audit check --baseline` does. A warning or an error is a false alarm; notes are counted apart. A check that
compares what must be equal, such as `prediction_flips`, is left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from audit.checks.runner import run_checks
from audit.records import Run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

SIZES = {30: 100, 100: 100, 1_000: 60, 10_000: 12}
STAGES = ("load", "RandomHorizontalFlip", "ToTensor")
#: These compare two runs exactly; the predictions of these two differ on purpose. Rare classes are rare on purpose.
LEFT_OUT_CHECKS = ("prediction_flips", "class_balance", "reproducible")


class CleanPair:
    """What two runs on the same files have in common, and what each of them adds."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self.rng, self.count = rng, count
        self.classes = int(rng.choice([few for few in (2, 3, 10, 50) if 10 * few <= count]))
        self.logits = rng.normal(0, rng.choice([1.0, 3.0, 6.0]), (count, self.classes))
        if rng.random() < 0.5:
            self.logits += np.log(rng.dirichlet(np.full(self.classes, 2.0)) + 0.02)
        powers = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        self.labels = np.minimum((shares.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1), self.classes - 1)
        # A class without any sample is a fault.
        for absent in set(range(self.classes)) - set(self.labels.tolist()):
            self.labels[absent] = absent
            self.logits[absent, absent] = self.logits[absent].max() + 6
        # A random stage in an evaluation split is a fault.
        self.splits = np.where(rng.random(count) < 0.75, "train", "more")
        self.batches = rng.permutation(count)
        self.bytes = rng.integers(10_000, 200_000, count)
        self.mean = rng.normal(120, 20, count)
        self.size = rng.integers(200, 400, (count, 2))

    def write(self, place: Path, name: str) -> None:
        """Write one run: the same model, of which some predictions differ by chance."""
        # As many predictions turn right as wrong only if the change does not know the labels, and is small.
        moved = self.logits + self.rng.normal(0, 0.05, self.logits.shape)
        powers = np.exp(moved - moved.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        predicted, rows = moved.argmax(axis=1), np.arange(self.count)
        classes = [f"class-{n}" for n in range(self.classes)]
        writer = RunWriter.create(str(place), Run("", name=name, classes=classes, expected=self.count, unrecorded=[]))
        keys = {"run_id": pa.repeat(writer.run.run_id, self.count), "epoch": np.zeros(self.count, np.int32)}
        keys |= {"index": rows, "visit": np.zeros(self.count, np.int32)}
        batch = {"batch": self.batches // 16, "position": (self.batches % 16).astype(np.int32)}
        names = pa.array(classes).take(pa.array(self.labels))
        digests = [f"{n:064x}" for n in range(self.count)]
        flipped = self.rng.random(self.count) < 0.5
        writer.append({
            "stages": self._stages(writer.run.run_id),
            "samples": table_of("samples", keys | batch | {
                "split": self.splits, "source": [f"{n:06d}.jpg" for n in range(self.count)], "root": pa.repeat("/nowhere", self.count),
                "source_digest": digests, "source_bytes": self.bytes, "label": self.labels, "label_name": names,
                "status": pa.repeat("ok", self.count),
            }),
            "stage_outputs": pa.concat_tables([self._outputs(keys, stage, flipped) for stage in range(len(STAGES))]),
            "predictions": table_of("predictions", keys | batch | {
                "label": self.labels, "label_name": names, "predicted": predicted,
                "predicted_name": pa.array(classes).take(pa.array(predicted)), "confidence": shares.max(axis=1),
                "correct": predicted == self.labels, "loss": -np.log(np.maximum(shares[rows, self.labels], 1e-30)),
                "logits": moved.astype(np.float32), "probabilities": shares.astype(np.float32),
                "input_digest": [_digest(n, len(STAGES) - 1, flipped[n]) for n in range(self.count)], "step": self.batches // 16,
            }),
        })  # fmt: skip
        writer.finish("complete")

    def _stages(self, run_id: str) -> pa.Table:
        count = len(STAGES)
        parameters = [json.dumps({"p": 0.5}) if "Random" in name else "{}" for name in STAGES]
        return table_of("stages", {
            "run_id": [run_id] * count, "stage": list(range(count)), "path": [str(n) for n in range(count)], "name": list(STAGES),
            "qualname": [f"transforms.{name}" for name in STAGES], "parameters": parameters,
            "random": ["Random" in name for name in STAGES],
        })  # fmt: skip

    def _outputs(self, keys: dict[str, Any], stage: int, flipped: np.ndarray[Any, Any]) -> pa.Table:
        picture, scale = stage < 2, 1.0 if stage < 2 else 1 / 255
        height, width = self.size.T
        shape = np.column_stack(
            [height, width, np.full(self.count, 3)] if picture else [np.full(self.count, 3), height, width]
        )
        spread = self.rng.normal(50, 5, self.count)
        return table_of("stage_outputs", keys | {
            "stage": np.full(self.count, stage, np.int32), "name": pa.repeat(STAGES[stage], self.count),
            "kind": pa.repeat("image" if picture else "tensor", self.count), "dtype": pa.repeat("uint8" if picture else "float32", self.count),
            "shape": shape, "mode": pa.repeat("RGB", self.count) if picture else pa.nulls(self.count, pa.string()),
            "digest": [_digest(n, stage, flipped[n]) for n in range(self.count)],
            "changed": flipped if stage == 1 else np.ones(self.count, bool),
            "min": np.zeros(self.count), "max": np.full(self.count, 255 * scale), "mean": self.mean * scale, "std": spread * scale,
            "zeros": self.rng.integers(1, 100, self.count), "nonfinite": np.zeros(self.count, np.int64), "bytes": height * width * 3,
            "microseconds": np.ones(self.count, np.float32), "payload": pa.repeat("none", self.count),
        })  # fmt: skip


def _digest(index: int, stage: int, flipped: bool) -> str:
    return f"{index * 100 + stage * 10 + (flipped if stage else 0):032x}"


def count_alarms(size: int, rounds: int, seed: int = 0) -> tuple[Counter[str], Counter[str], dict[str, str]]:
    """Return how many rounds each check failed, and was not skipped, with one message of each."""
    failed: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    said: dict[str, str] = {}
    for number in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="audit-alarms-"))
        try:
            pair = CleanPair(np.random.default_rng([seed, size, number]), size)
            pair.write(folder / "lineage", "before")
            pair.write(folder / "lineage", "now")
            report = run_checks(folder / "lineage", "now", baseline="before", skip=LEFT_OUT_CHECKS, record=False)
        finally:
            shutil.rmtree(folder)
        for outcome in report.outcomes:
            judged[outcome.check] += outcome.status != "skip"
            if outcome.status in ("fail", "error") and outcome.severity != "info":
                failed[outcome.check] += 1
                said.setdefault(outcome.check, outcome.message)
    return failed, judged, said


def main() -> None:
    """Print the false alarms of each size, and how many checks judged something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="for each size; by default 100, and fewer of the large ones")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    given = parser.parse_args()
    for size in given.sizes:
        rounds = given.rounds or SIZES.get(size, 20)
        failed, judged, said = count_alarms(size, rounds)
        print(
            f"{size:,} samples, {rounds} rounds: {sum(count > 0 for count in judged.values())} checks judged",
            flush=True,
        )
        for check, count in failed.most_common():
            print(f"  {count} of {judged[check]}: {check}: {said[check][:160]}", flush=True)


if __name__ == "__main__":
    main()
