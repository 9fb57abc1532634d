"""Side by side with deepchecks: 1,000 pictures, for what both look at: odd pictures, and drift against a baseline.

    python -m bench.beside_deepchecks --python VENV/bin/python     (an environment with deepchecks, see bench/README.md)

deepchecks is run in a process of its own, `ImagePropertyOutliers` for the faults and `LabelDrift` and
`ImagePropertyDrift` for the drift. Ours counts the checks alone; recording the run is listed separately. An outlier has no
name there, so a picture counts as found by deepchecks when any property calls it an outlier.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from bench.beside_cleanvision import build, run_audit

#: What both look at: brightness, area, aspect and contrast are properties of deepchecks.
SHARED_PROPERTIES = ("dark", "light", "odd_aspect_ratio", "odd_size", "low_information")
THEIR_PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy as np, torch
from PIL import Image
from deepchecks.vision import VisionData
from deepchecks.vision.checks import ImagePropertyDrift, ImagePropertyOutliers, LabelDrift
from deepchecks.vision.utils.image_properties import default_image_properties
def data(root):
    files = sorted(Path(root).rglob("*.png"))
    def batches():
        for at in range(0, len(files), 50):
            some = files[at : at + 50]
            yield {"images": [np.asarray(Image.open(f).convert("RGB")) for f in some],
                   "labels": [int(f.parent.name[-1]) for f in some],
                   "image_identifiers": [str(f.relative_to(root)) for f in some]}
    return VisionData(batch_loader=batches(), task_type="classification", reshuffle_data=False)
begun = time.process_time()
ImagePropertyOutliers().run(data(sys.argv[1]), with_display=False)
middle = time.process_time()
outliers = {}
for one in default_image_properties:  # with several at once, 0.17.3 gives identifiers of other pictures
    value = ImagePropertyOutliers(image_properties=[one]).run(data(sys.argv[1]), with_display=False).value
    outliers |= {k: [str(n) for n in v["outliers_identifiers"]] for k, v in value.items() if isinstance(v, dict)}
later = time.process_time()
same, other = {}, {}
for into, root in ((same, sys.argv[2]), (other, sys.argv[3])):
    before, now = data(sys.argv[1]), data(root)
    found = LabelDrift().run(before, now, with_display=False).value
    into |= {k: v["Drift score"] for k, v in found.items()}
    found = ImagePropertyDrift().run(data(sys.argv[1]), data(root), with_display=False).value
    into |= {k: v["Drift score"] for k, v in found.items()}
print(json.dumps({"outliers": outliers, "seconds": [middle - begun, time.process_time() - later],
                  "same": same, "other": other}))
"""


def darken(root: Path, to: Path, *, drifted: bool) -> None:
    """Every second picture of a folder; `drifted`: darker, and the last class all but gone."""
    for number, file in enumerate(sorted(root.rglob("*.png"))):
        rare = file.parent.name == "class-3" and number % 20 != 1
        if number % 2 and not (drifted and rare):
            target = to / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            if drifted:
                Image.open(file).convert("RGB").point(lambda level: int(level * 0.7)).save(target)
            else:
                shutil.copy(file, target)


def our_drift(place: Path) -> tuple[float, dict[str, list[str]]]:
    """Seconds of work, and what is reported for the same and of the drifted pictures against all."""
    from audit.api import run
    from audit.checks.runner import run_checks

    for name in ("same", "other"):
        run(place / name, pipeline=place / "pipeline.py", store=place / "lineage", name=name, workers=0)
    begun = time.process_time()
    reported: dict[str, list[str]] = {}
    for name in ("same", "other"):
        report = run_checks(place / "lineage", name, baseline="latest~2", only=["drift"], record=False)
        reported[name] = [finding.message for finding in report.outcome("drift").findings]
    return time.process_time() - begun, reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python of an environment with deepchecks")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="audit-bench-") as folder:
        place = Path(folder)
        root = place / "data"
        planted = build(root)
        darken(root, place / "same", drifted=False)
        darken(root, place / "other", drifted=True)
        recorded, worked, found = run_audit(root, place / "lineage")
        drifting, reported = our_drift(place)
        roots = [str(root), str(place / "same"), str(place / "other")]
        done = subprocess.run([given.python, "-c", THEIR_PROGRAM, *roots], capture_output=True, text=True, check=True)
        theirs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    odd = {name for names in theirs["outliers"].values() for name in names}
    print(
        f"audit: {worked:.1f} s of work for odd pictures, {drifting:.1f} s for drift (recording took {recorded:.1f} s)"
    )
    print("deepchecks: {:.1f} s of work for odd pictures, {:.1f} s for drift".format(*theirs["seconds"]))
    for fault in SHARED_PROPERTIES:
        wanted = planted[fault]
        hits = [sum(bool(names & got) for names in wanted) for got in (set(found.get(fault, ())), odd)]
        print(f"{fault:18} planted {len(wanted)}  audit: {hits[0]} found  deepchecks: {hits[1]} found")
    clean = odd - {name for names in planted.values() for some in names for name in some}
    others = {name for fault in SHARED_PROPERTIES for name in found.get(fault, ())} - {
        name for names in planted.values() for some in names for name in some
    }
    print(f"without a fault    audit: {len(others)} reported  deepchecks: {len(clean)} reported")
    for name in ("same", "other"):
        scores = ", ".join(f"{key} {score:.2f}" for key, score in theirs[name].items())
        print(f"drift, {name}: audit reports {len(reported[name])}: {'; '.join(reported[name]) or 'nothing'}")
        print(f"drift, {name}: deepchecks scores {scores}")


if __name__ == "__main__":
    main()
