"""Make docs/images/*.png: the main pages of `audit ui` over a store that is recorded for it.

    python docs/screenshots.py [FOLDER]

Needs chromium and playwright (pip install -e '.[dev]'). The pictures are reduced to 256 colours, which keeps each
around 50 KB; runs are named, so that the same pages come out whoever makes them, apart from ids and times.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1240, "height": 800}
BEFORE, AFTER = "v2.Resize(16, antialias=True)", "v2.Resize(16, interpolation=v2.InterpolationMode.NEAREST)"


def record(folder: Path) -> None:
    """Two runs over the digits that differ in one stage; as in every shell, the store is ./lineage."""
    other = folder / "nearest.py"
    other.write_text((ROOT / "pipelines" / "digits.py").read_text().replace(BEFORE, AFTER))
    for name, pipeline in (("baseline", "pipelines/digits.py"), ("nearest", str(other))):
        command = [
            *(
                sys.executable,
                "-m",
                "audit",
                "run",
                "--dataset",
                "fixtures/digits/test",
                "--model",
                "fixtures/digits.pt",
            ),
            *("--pipeline", pipeline, "--name", name, "--store", str(folder / "lineage")),
        ]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of `audit ui` over the store."""
    code = "from audit.web.server import serve; serve('lineage', port=0, ready=lambda a: print(a.url, flush=True))"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        time.sleep(2)
        yield address
    finally:
        process.terminate()
        process.wait()


def shoot(page: Page, address: str, target: Path, *, whole: bool = False) -> None:
    """One page as a small PNG."""
    page.goto(address)
    page.wait_for_load_state("networkidle")
    with Image.open(io.BytesIO(page.screenshot(full_page=whole))) as shot:
        # The octree keeps a colour that few pixels have: the red of a mistake must not turn grey.
        small = shot.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        small.save(target, optimize=True)
    sys.stdout.write(f"{target.relative_to(ROOT)}  {target.stat().st_size // 1000} KB\n")


def main(folder: Path) -> None:
    """Record, serve, and shoot each page."""
    record(folder)
    IMAGES.mkdir(parents=True, exist_ok=True)
    found = shutil.which("chromium") or shutil.which("google-chrome")
    with served(folder) as address, sync_playwright() as running:
        with urllib.request.urlopen(address + "?format=json") as answer:
            ids = {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}
        base, other = ids["baseline"], ids["nearest"]
        pages = {
            "runs": "",
            "run": f"run/{base}",
            "gallery": f"run/{base}/gallery?where=label+%3C+6",
            "trace": f"run/{base}/trace/73",
            "compare": f"compare?a={base}&b={other}",
            "sql": "sql?q=SELECT+label_name,+samples,+correct,+accuracy,+mean_loss+FROM+per_class+ORDER+BY+accuracy",
        }
        browser = running.chromium.launch(executable_path=found, args=["--headless", "--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1)
            page = context.new_page()
            for name, path in pages.items():
                if scheme == "light" or name == "trace":
                    suffix = "" if scheme == "light" else "-dark"
                    shoot(page, address + path, IMAGES / f"{name}{suffix}.png", whole=name in ("run", "trace"))
            context.close()
        browser.close()


if __name__ == "__main__":
    # The pages show where the store is: a place that is nobody's home.
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/audit-demo")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    main(place)
    shutil.rmtree(place)
