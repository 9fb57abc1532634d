"""Make docs/images/*.webp: the main pages of `audit ui` over a store that is recorded for it.

    python docs/screenshots.py [FOLDER]

Needs chromium and playwright (pip install -e '.[dev]'). The pictures are WebP, which keeps photographs and
text apart at 50 KB each; runs are named, so that the same pages come out on every machine, apart from ids and times.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1240, "height": 800}
#: What a reader sees of a long page.
TALLEST = 1_130
BEFORE, AFTER = "144, antialias=True", "144, interpolation=v2.InterpolationMode.NEAREST"


def record(folder: Path) -> None:
    """Two runs over photographs that differ in one stage, and a map; as in every shell, the store is ./lineage."""
    cut = [sys.executable, str(ROOT / "fixtures" / "make_photos.py"), "photos"]
    audit = [sys.executable, "-m", "audit"]
    shutil.copy(ROOT / "fixtures" / "photos_pipeline.py", folder / "pipeline.py")
    shutil.copy(ROOT / "fixtures" / "photos.pt", folder / "photos.pt")
    (folder / "nearest.py").write_text((folder / "pipeline.py").read_text().replace(BEFORE, AFTER))
    common = ["--dataset", "photos/test", "--model", "photos.pt", "--capture", "full"]
    commands = [
        cut,
        [*audit, "run", *common, "--pipeline", "pipeline.py", "--name", "baseline", "--tag", "team=vision"],
        [*audit, "run", *common, "--pipeline", "nearest.py", "--name", "nearest"],
        [*audit, "embed", "baseline", "--layer", "avgpool"],
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for command in commands:
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


@contextmanager
def serve_store(folder: Path) -> Iterator[str]:
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


def shoot(
    page: Page, address: str, target: Path, *, whole: bool = False, act: Callable[[Page], None] | None = None
) -> None:
    """One page as a small picture; `act` clicks first."""
    page.goto(address)
    page.wait_for_load_state("networkidle")
    if act is not None:
        act(page)
    with Image.open(io.BytesIO(page.screenshot(full_page=whole))) as shot:
        shown = shot.convert("RGB").crop((0, 0, shot.width, min(shot.height, TALLEST)))
        shown.save(target, "WEBP", quality=86, method=6)
    sys.stdout.write(f"{target.relative_to(ROOT)}  {target.stat().st_size // 1000} KB\n")


def look(page: Page) -> None:
    """Open the viewer: two stages side by side."""
    page.get_by_title("look at the exact values").nth(5).click()
    page.get_by_label("show").select_option("side by side")
    page.get_by_label("picture B").select_option(index=3)
    page.locator('.viewer[data-ready*=","]').wait_for()
    page.mouse.move(420, 380)


def point(page: Page) -> None:
    """Wait for the points of the map, and point at one."""
    page.locator("#map[data-ready]").wait_for()
    box = page.locator("#map").bounding_box()
    assert box is not None
    for x in range(int(box["width"]) // 5, int(box["width"]), 9):
        page.mouse.move(box["x"] + x, box["y"] + box["height"] * 0.55)
        if page.locator("#map-tip").is_visible():
            break
    page.wait_for_load_state("networkidle")


ACTS: dict[str, Callable[[Page], None]] = {"viewer": look, "map": point}


def main(folder: Path) -> None:
    """Record, serve, and shoot each page."""
    record(folder)
    IMAGES.mkdir(parents=True, exist_ok=True)
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-headless-shell")
    with serve_store(folder) as address, sync_playwright() as running:
        with urllib.request.urlopen(address + "?format=json") as answer:
            ids = {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}
        base, other = ids["baseline"], ids["nearest"]
        with urllib.request.urlopen(f"{address}run/{base}/gallery?format=json") as answer:
            worst = next(s for s in json.load(answer)["samples"] if s["label_name"] == "motorcycle")["index"]
        pages = {
            "runs": "",
            "run": f"run/{base}",
            "gallery": f"run/{base}/gallery",
            "trace": f"run/{base}/trace/{worst}",
            "viewer": f"run/{base}/trace/{worst}",
            "map": f"run/{base}/map",
            "compare": f"compare?a={base}&b={other}",
            "sql": "sql?q=SELECT+label_name,+samples,+correct,+accuracy,+mean_loss%0AFROM+per_class+"
            "WHERE+run_id+=+run_of('baseline')+ORDER+BY+accuracy",
        }
        browser = running.chromium.launch(executable_path=found, args=["--headless", "--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1)
            page = context.new_page()
            for name, path in pages.items():
                if scheme == "light" or name == "trace":
                    suffix = "" if scheme == "light" else "-dark"
                    shoot(
                        page,
                        address + path,
                        IMAGES / f"{name}{suffix}.webp",
                        whole=name in ("run", "trace"),
                        act=ACTS.get(name),
                    )
            context.close()
        browser.close()


if __name__ == "__main__":
    # The pages show where the store is: a place that is nobody's home.
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/audit-demo")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    main(place)
    shutil.rmtree(place)
