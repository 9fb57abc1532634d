"""Side by side with CleanVision: 1,000 pictures, twenty of each of nine faults; who finds which, and at what cost.

    python -m bench.beside_cleanvision --python VENV/bin/python     (an environment with `pip install cleanvision`)

CleanVision needs no torch and is run in a process of its own. Ours counts the checks alone; recording the run, which
the pipeline needs anyway, is listed separately. A duplicate is counted where either picture of the pair is named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

SIDE = (200, 160)
FAULTS = ("dark", "light", "blurry", "odd_aspect_ratio", "grayscale", "odd_size", "near_duplicates", "low_information")
FAULT_WORDS = {
    "is dark": "dark", "is bright": "light", "is blurry": "blurry", "odd aspect": "odd_aspect_ratio",
    "is grey": "grayscale", "odd size": "odd_size", "low information": "low_information",
    "the same content": "exact_duplicates", "looks the same": "near_duplicates",
}  # fmt: skip
THEIR_PROGRAM = """
import json, os, sys, time
from cleanvision import Imagelab
begun = time.process_time()
lab = Imagelab(data_path=sys.argv[1])
lab.find_issues(n_jobs=1, verbose=False)
issues = lab.issues
found = {c[3:-6]: [os.path.relpath(p, sys.argv[1]) for p in issues.index[issues[c]]] for c in issues if c.startswith("is_")}
print(json.dumps({"work": time.process_time() - begun, "found": found}))
"""


def picture(seed: int) -> Image.Image:
    """Soft shapes and some noise."""
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(SIDE, Image.Resampling.BICUBIC)
    noisy = np.asarray(soft, dtype=np.int16) + rng.integers(-20, 21, (SIDE[1], SIDE[0], 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def spoil(image: Image.Image, fault: str, number: int) -> Image.Image:
    """The picture with one fault."""
    pixels = np.asarray(image)
    if fault == "dark":
        return Image.fromarray((pixels * 0.06).astype(np.uint8))
    if fault == "light":
        return Image.fromarray((235 + pixels * 0.05).clip(0, 255).astype(np.uint8))
    if fault == "blurry":
        return image.filter(ImageFilter.GaussianBlur(8))
    if fault == "odd_aspect_ratio":
        return image.resize((400, 60))
    if fault == "grayscale":
        return image.convert("L").convert("RGB")
    if fault == "odd_size":
        return image.resize((3000, 2400) if number % 2 else (12, 10))
    if fault == "near_duplicates":
        return picture(number + 20).resize((180, 144))
    return Image.fromarray((125 + pixels // 64).astype(np.uint8))


def build(root: Path, count: int = 1_000) -> dict[str, list[set[str]]]:
    """Write the pictures; gives for each fault the sets of names of which one must be reported."""
    planted: dict[str, list[set[str]]] = {}
    for number in range(count):
        folder = root / f"class-{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        file, place = folder / f"{number:04d}.png", number % 50
        name = f"{folder.name}/{file.name}"
        image = picture(number)
        if place < len(FAULTS):
            image = spoil(image, FAULTS[place], number)
            names = {name} | ({f"class-{(number + 20) % 4}/{number + 20:04d}.png"} if place == 6 else set())
            planted.setdefault(FAULTS[place], []).append(names)
        image.save(file)
        if place == 40:
            shutil.copy(file, folder / f"{number:04d}-copy.png")
            planted.setdefault("exact_duplicates", []).append({name, f"{folder.name}/{number:04d}-copy.png"})
    return planted


def run_audit(root: Path, store: Path) -> tuple[float, float, dict[str, list[str]]]:
    """Seconds of work for the run and for the checks, and what was found."""
    from audit.api import run

    pipeline = store.parent / "pipeline.py"
    pipeline.write_text(
        "from torchvision.transforms import v2\ntransform = v2.Compose([v2.Resize((64, 64)), v2.ToImage()])\n"
    )
    begun = time.process_time()
    run(root, pipeline=pipeline, store=store, workers=0)
    recorded, begun = time.process_time() - begun, time.process_time()
    found = list_reported(store)
    return recorded, time.process_time() - begun, found


def list_reported(store: Path) -> dict[str, list[str]]:
    """Return the pictures that the checks report, by fault."""
    from audit.checks.config import parse_configuration
    from audit.checks.runner import run_checks

    config = parse_configuration({"max_findings": 5_000}, None)
    only = ["image_quality", "duplicates", "near_duplicates"]
    report = run_checks(store, only=only, config=config, record=False)
    found: dict[str, list[str]] = {}
    for finding in (finding for outcome in report.outcomes for finding in outcome.findings):
        fault = next(fault for said, fault in FAULT_WORDS.items() if said in finding.message)
        found.setdefault(fault, []).append(str(finding.source))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="the Python of an environment with CleanVision")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="audit-bench-") as place:
        root = Path(place) / "data"
        planted = build(root)
        recorded, worked, found = run_audit(root, Path(place) / "lineage")
        theirs = None
        if given.python:
            done = subprocess.run(
                [given.python, "-c", THEIR_PROGRAM, str(root)], capture_output=True, text=True, check=True
            )
            theirs = json.loads(done.stdout.splitlines()[-1])
    print(f"audit: {worked:.1f} s of work for the checks (recording took {recorded:.1f} s)")
    if theirs:
        print(f"CleanVision: {theirs['work']:.1f} s of work")
    for fault, wanted in sorted(planted.items()):
        line = f"{fault:18} planted {len(wanted)}"
        for name, reported in (("audit", found), ("CleanVision", theirs["found"] if theirs else None)):
            if reported is not None:
                got = set(reported.get(fault, ()))
                hit = sum(bool(names & got) for names in wanted)
                line += f"  {name}: {hit} found, {len(got - set().union(*wanted))} others"
        print(line)


if __name__ == "__main__":
    main()
