"""How long a replay takes in `audit ui`: the first one, and the next ones, for which torch is loaded already.

    python -m bench.replay_page [--replays N] [--browser]

Records 64 pictures at `digest`, so that each replay derives every picture as well. Prints milliseconds by the clock, and processor
time of the server and of all that it started. With `--browser` the button is pressed in Chromium, too: printed is also when progress
was shown.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from starlette.testclient import TestClient

from audit.web.app import build
from bench.pictures import make_pictures

SAMPLES = 64
PIPELINE = """
from torchvision import transforms
transform = transforms.Compose([
    transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
"""


def record(place: Path) -> str:
    """Record the pictures in a process of its own, so that this one has not loaded torch; return the store."""
    images = make_pictures(place / "pictures", SAMPLES)
    (place / "pipeline.py").write_text(PIPELINE)
    store = str(place / "lineage")
    options = [
        "--dataset",
        str(images),
        "--pipeline",
        str(place / "pipeline.py"),
        "--store",
        store,
        "--capture",
        "digest",
    ]
    subprocess.run([sys.executable, "-m", "audit", "run", *options], check=True, stdout=subprocess.DEVNULL)
    return store


def measure(store: str, replays: int) -> Iterator[tuple[float, float]]:
    """Milliseconds by the clock and of processor time of each replay, each of another sample."""
    with TestClient(build(store), base_url="http://localhost") as client:
        for index in range(replays):
            begun, used = time.perf_counter(), _processor_seconds()
            path = f"/run/latest/trace/{index}/replay?format=json"
            answer = client.post(path, headers={"origin": "http://localhost"}).json()
            clock = time.perf_counter() - begun
            assert answer["verdict"]["identical"], answer
            yield 1e3 * clock, 1e3 * (_processor_seconds() - used)


def _processor_seconds() -> float:
    """Seconds of processor time of this process and of all that it started, ended ones included."""
    ours = psutil.Process()
    times = [process.cpu_times() for process in (ours, *ours.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


@contextmanager
def _serve(store: str) -> Iterator[str]:
    code = f"from audit.web.server import serve; serve({store!r}, port=0, ready=lambda a: print(a.url, flush=True))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def measure_in_browser(store: str, replays: int) -> Iterator[tuple[float, float]]:
    """Milliseconds from the click to the progress, and to the verdict."""
    from playwright.sync_api import sync_playwright

    program = next(found for name in ("chromium-headless-shell", "chromium") if (found := shutil.which(name)))
    with _serve(store) as address, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]).new_page()
        for index in range(replays):
            page.goto(f"{address}run/latest/trace/{index}")
            button: Any = page.get_by_role("button", name="Replay")
            begun = time.perf_counter()
            button.click()
            page.locator(".doing-bar").wait_for()
            shown = time.perf_counter() - begun
            page.locator("#verdict .status.identical").wait_for(timeout=120_000)
            yield 1e3 * shown, 1e3 * (time.perf_counter() - begun)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--replays", type=int, default=5)
    options.add_argument("--browser", action="store_true", help="also press the button in Chromium")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="audit-replay-page-") as place:
        store = record(Path(place))
        for number, (clock, cpu) in enumerate(measure(store, given.replays), 1):
            print(f"replay {number}: {clock:7.0f} ms, {cpu:7.0f} ms of processor time")
        for number, (shown, answered) in enumerate(
            measure_in_browser(store, given.replays) if given.browser else (), 1
        ):
            print(f"replay {number} in a browser: progress after {shown:5.0f} ms, verdict after {answered:7.0f} ms")


if __name__ == "__main__":
    main()
