"""How long a frame of the map takes with 100,000 points, in Chromium without a GPU.

    python -m bench.map_frames [POINTS]

Makes a store in a temporary folder, serves it, moves the map and draws a lasso, and prints the median and the 90th
percentile of the milliseconds between frames. A screen of 60 Hz shows one each 16.7 ms.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from audit.records import Run
from audit.store.maintain.embeddings import write_embeddings
from audit.store.read.reader import Reader
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

#: Drags a pointer over the map, a step for each frame, and gives the milliseconds between frames, in order of size.
DRAG = """async ([shift, steps]) => {
    const canvas = document.querySelectorAll('#map canvas')[1], box = canvas.getBoundingClientRect(), times = [];
    const send = (type, turn) => canvas.dispatchEvent(new PointerEvent(type, { pointerId: 1, bubbles: true, shiftKey: shift, button: 0,
        clientX: box.left + box.width * (0.5 + 0.3 * Math.sin(turn)), clientY: box.top + box.height * (0.5 + 0.3 * Math.cos(turn)) }));
    canvas.setPointerCapture = () => {};
    send('pointerdown', 0);
    for (let n = 0; n <= steps; n += 1) {
        times.push(await new Promise(requestAnimationFrame));
        send('pointermove', (6 * n) / steps);
    }
    send('pointerup', 6);
    return times.slice(1).map((time, n) => time - times[n]).sort((a, b) => a - b);
}"""


def make(place: Path, count: int) -> str:
    """Write a run with a map of so many samples; return its id."""
    writer = RunWriter.create(str(place), Run("", name="map", classes=[f"class {n}" for n in range(10)]))
    keys = np.stack([np.zeros(count), np.arange(count), np.zeros(count)], 1).astype(np.int64)
    named = dict(zip(("epoch", "index", "visit"), keys.T, strict=True))
    columns = {"run_id": [writer.run.run_id] * count, **named, "status": ["ok"] * count}
    writer.append({"samples": table_of("samples", columns)})
    run = writer.finish("complete").run_id
    with Reader(str(place)) as reader:
        vectors = np.random.default_rng(3).normal(size=(count, 4)).astype(np.float32)
        write_embeddings(reader, run, "logits", "pca", keys, vectors[:, :2], vectors)
    return run


def measure(place: Path, run: str, count: int) -> dict[str, list[float]]:
    """Milliseconds between frames while the map moves and while a lasso is drawn."""
    code = (
        f"from audit.web.server import serve; serve({str(place)!r}, port=0, ready=lambda a: print(a.url, flush=True))"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with sync_playwright() as running:
            found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-headless-shell")
            browser = running.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}run/{run}/map")
            page.locator(f"#map[data-ready='{count}']").wait_for()
            page.get_by_title("zoom in (+)").click()
            return {name: page.evaluate(DRAG, [shift, 120]) for name, shift in (("moving", True), ("lasso", False))}
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "lineage")
        times = measure(place, make(place, points), points)
    for name, frames in times.items():
        middle, late = frames[len(frames) // 2], frames[len(frames) * 9 // 10]
        sys.stdout.write(
            f"{name}: {middle:.1f} ms median, {late:.1f} ms 90th percentile, {points:,} points, load {os.getloadavg()[0]:.1f}\n"
        )
