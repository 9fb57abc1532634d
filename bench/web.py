"""How long each page of `audit ui` takes over one run of 1,000,000 samples.

    python bench/web.py [FOLDER] [SAMPLES]

Makes the store once (two minutes) if FOLDER has none, then asks each page five times: the first answer has nothing
cached, the others are what a reader meets from then on. Prints milliseconds by the clock and of processor time (the server and
the processes it started, the work it begins for later included: the next request waits until that has ended); the promise is
200 for each page. On a busy machine only the processor time means anything.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import psutil
from PIL import Image
from starlette.testclient import TestClient

from audit.lineage.queries.gallery_rows import ORDERS
from audit.records import Run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter
from audit.web.app import build

CLASSES = 10
BRUSHED_RANGES = '{"confidence": [0.5, 0.6], "stage:1:mean": [0.2, 0.4]}'
STEP = 50_000
#: Seconds of processor time within 0.3 s that are not work: the server's own clocks.
_IDLE = 0.02


def make(place: str, samples: int, name: str = "million", seed: int = 0) -> str:
    """A store of one run with this many samples, three stages, previews, and a model that is often right."""
    rng = np.random.default_rng(seed)
    classes = [f"class {n}" for n in range(CLASSES)]
    run = Run("", name=name, dataset="synthetic", classes=classes, capture="preview")
    writer = RunWriter.create(place, run)
    stages = [
        {"stage": n, "path": str(n), "name": s, "qualname": s} for n, s in enumerate(("load", "Resize", "ToTensor"))
    ]
    writer.append({"stages": table_of("stages", {"run_id": [writer.run.run_id] * 3, **_columns(stages)})})
    pictures = [_picture(rng) for _ in range(64)]
    for start in range(0, samples, STEP):
        writer.append(_block(rng, writer.run.run_id, start, min(STEP, samples - start), classes, pictures))
    return writer.finish("complete").run_id


def _columns(rows: list[dict[str, object]]) -> dict[str, list[object]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def _picture(rng: np.random.Generator) -> bytes:
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(out, "JPEG", quality=75)
    return out.getvalue()


def _block(
    rng: np.random.Generator, run_id: str, start: int, count: int, classes: list[str], pictures: list[bytes]
) -> dict[str, object]:
    index = np.arange(start, start + count)
    key: dict[str, Any] = {
        "run_id": [run_id] * count,
        "epoch": np.zeros(count, np.int32),
        "index": index,
        "visit": np.zeros(count, np.int32),
    }
    label = rng.integers(0, CLASSES, count)
    logits = rng.normal(size=(count, CLASSES)).astype(np.float32)
    logits[np.arange(count), label] += rng.gamma(2.0, 2.0, count).astype(np.float32)
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = shifted / shifted.sum(1, keepdims=True)
    predicted = probabilities.argmax(1)
    names = np.array(classes, object)
    labels = {"label": label, "label_name": names[label], "batch": index // 32}
    tables = {
        "samples": {
            **key,
            **labels,
            "split": ["test"] * count,
            "source": [f"{label[n]}/{start + n:07d}.png" for n in range(count)],
            "root": ["/data"] * count,
            "status": ["ok"] * count,
            "worker": np.zeros(count, np.int32),
        },
        "predictions": {
            **key,
            **labels,
            "predicted": predicted,
            "predicted_name": names[predicted],
            "confidence": probabilities.max(1),
            "correct": predicted == label,
            "loss": -np.log(probabilities[np.arange(count), label]),
            "logits": logits,
            "probabilities": probabilities,
            "step": index // 32,
        },
        "stage_outputs": _stage_outputs(rng, key, count),
        "payloads": {
            **key,
            "stage": np.zeros(count, np.int32),
            "form": ["preview"] * count,
            "kind": ["image"] * count,
            "encoding": ["image/jpeg"] * count,
            "data": [pictures[n % len(pictures)] for n in range(count)],
        },
    }
    return {name: table_of(name, columns) for name, columns in tables.items()}


def _stage_outputs(rng: np.random.Generator, key: dict[str, Any], count: int) -> dict[str, object]:
    """Return the columns of three stages of each sample."""
    stacked = {name: np.tile(column, 3) if not isinstance(column, list) else column * 3 for name, column in key.items()}
    stage = np.repeat(np.arange(3, dtype=np.int32), count)
    return {
        **stacked,
        "stage": stage,
        "name": np.array(["load", "Resize", "ToTensor"], object)[stage],
        "kind": ["image"] * (2 * count) + ["tensor"] * count,
        "dtype": ["uint8"] * (2 * count) + ["float32"] * count,
        "digest": [f"{n:032x}" for n in rng.integers(0, 2**62, 3 * count)],
        "changed": np.ones(3 * count, bool),
        "min": np.zeros(3 * count),
        "max": np.ones(3 * count),
        "mean": rng.random(3 * count),
        "std": rng.random(3 * count),
        "microseconds": rng.gamma(2.0, 300.0, 3 * count).astype(np.float32),
        "payload": ["preview"] * (3 * count),
    }


def measure(place: str) -> list[tuple[str, float, float, float, float]]:
    """Milliseconds, clock and processor, of each page over a fresh server: the first answer, the median of four more."""
    with TestClient(build(place), base_url="http://localhost") as client:
        time.sleep(3)  # a server is up for a while before anyone looks
        a, b = (run["run_id"] for run in client.get("/?format=json").json()["runs"][:2])
        where = "where=label+%3D+2+AND+NOT+correct"
        block = client.get(f"/run/{a}/gallery?{where}&format=json").json()
        first, index = block["after"], block["samples"][-1]["index"]
        pages = {
            "runs": "/",
            "run": f"/run/{a}",
            "gallery": f"/run/{a}/gallery?{where}",
            "gallery block": f"/run/{a}/gallery/block?{where}",
            "gallery block, next": f"/run/{a}/gallery/block?"
            + urlencode({"where": "label = 2 AND NOT correct", "after": first}),
            "gallery block, by source": f"/run/{a}/gallery/block?where=source+LIKE+%27%25123.png%27",
            "gallery block, all samples": f"/run/{a}/gallery/block?where=",
            **{
                f"gallery block, by {order}": f"/run/{a}/gallery/block?{where}&" + urlencode({"order": order})
                for order in ORDERS
            },
            "gallery block, brushed": f"/run/{a}/gallery/block?where=&" + urlencode({"filter": BRUSHED_RANGES}),
            "gallery count": f"/run/{a}/gallery/count?{where}",
            "gallery filters": f"/run/{a}/gallery/filters?{where}",
            "trace": f"/run/{a}/trace/765432",
            "trace, next and previous": f"/run/{a}/trace/{index}/steps?{where}&order=loss",
            "trace, similar samples": f"/run/{a}/trace/765432/similar",
            "checks": f"/run/{a}/checks",
            "curves": f"/run/{a}/curves",
            "map": f"/run/{a}/map",
            "picture": f"/run/{a}/picture/345678/0",
            "compare": f"/compare?a={b}&b={a}",
            "training": f"/run/{a}/training",
            "sql": f"/sql?q=SELECT+*+FROM+predictions+WHERE+run_id+=+%27{a}%27+AND+index+=+4711",
            "panel counts": f"/run/{b}/panel/counts",
            "panel timings": f"/run/{b}/panel/timings",
            "compare result": f"/compare/result?a={b}&b={a}",
            "training series": f"/run/{a}/training/series",
        }
        found = [(name, *_measure_page(client, path)) for name, path in pages.items()]
        client.get(f"/compare?a={a}&b={b}")  # begins a comparison that takes a while
        return [*found, ("sql, during a comparison", *_measure_page(client, pages["sql"], settle=False))]


def _measure_page(client: TestClient, path: str, settle: bool = True) -> tuple[float, float, float, float]:
    clock, processor = [], []
    for _ in range(5):
        begun, used = time.perf_counter(), _processor_seconds()
        answer = client.get(path)
        clock.append(1e3 * (time.perf_counter() - begun))
        assert answer.status_code == 200, (path, answer.text[:300])
        time.sleep(0.3)  # as people do; a spare process for the next query is made meanwhile
        before = used
        while settle and (now := _processor_seconds()) - before > _IDLE:
            before = now
            time.sleep(0.3)
        processor.append(1e3 * (_processor_seconds() - used))
    return clock[0], statistics.median(clock[1:]), processor[0], statistics.median(processor[1:])


def _processor_seconds() -> float:
    """Seconds of processor time of this process and of all that it started, ended ones included."""
    total = 0.0
    ours = psutil.Process()
    for process in (ours, *ours.children(recursive=True)):
        try:
            spent = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "/tmp/audit-bench-web"
    if not Path(folder, "audit.json").exists():
        begun = time.perf_counter()
        for seed in (0, 1):
            make(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000, f"million-{seed}", seed)
        print(f"made the store in {time.perf_counter() - begun:.0f} s")
    print(
        f"{'page':<28}{'first ms':>10}{'then ms':>10}{'first cpu':>12}{'then cpu':>10}   load {os.getloadavg()[0]:.1f}"
    )
    for name, *taken in measure(folder):
        print(
            f"{name:<28}"
            + "".join(f"{value:>{width}.0f}" for value, width in zip(taken, (10, 10, 12, 10), strict=True))
        )
