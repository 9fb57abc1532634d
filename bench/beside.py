"""Beside CleanVision, fastdup, cleanlab and deepchecks in one run: recall and precision of each planted fault, time, memory.

    python -m bench.beside --environments FOLDER

FOLDER has one environment for each tool, named after it (`python -m venv FOLDER/cleanlab`, then its pip). A tool that
does not run there has a row that says so. Pictures: 1,000 with twenty of each fault of beside_cleanvision.py. Labels:
1,797 digits, 5 % of them relabelled, with probabilities of a cross-validated model that all tools are given. The time
of audit is that of its checks; recording, which the pipeline needs anyway, is printed apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.beside_cleanvision import build, run_audit

# Not getrusage: its peak begins with that of the process that started this one.
_END = """
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"found": found, "seconds": time.process_time() - begun, "megabytes": int(peak.split()[1]) / 1024}))
"""
_PICTURES = {
    "cleanvision": """
import json, os, sys, time
from cleanvision import Imagelab
begun = time.process_time()
lab = Imagelab(data_path=sys.argv[1])
lab.find_issues(n_jobs=1, verbose=False)
issues = lab.issues
found = {c[3:-6]: [os.path.relpath(p, sys.argv[1]) for p in issues.index[issues[c]]] for c in issues if c.startswith("is_")}
""",
    "fastdup": """
import json, os, sys, tempfile, time
import fastdup
begun = time.process_time()
work = fastdup.create(work_dir=tempfile.mkdtemp(), input_dir=sys.argv[1])
work.run(ccthreshold=0.9, num_threads=1, print_summary=False)
pairs = work.similarity()
name = lambda p: os.path.relpath(os.path.abspath(p), sys.argv[1])  # relative to the working directory there
found = {"near_duplicates": [], "exact_duplicates": []}
for row in pairs.itertuples():
    kind = "exact_duplicates" if row.distance >= 0.9999 else "near_duplicates" if row.distance >= 0.96 else None
    if kind:
        found[kind] += [name(row.filename_from), name(row.filename_to)]
""",
    "deepchecks": """
import json, sys, time
from pathlib import Path
import numpy as np
from PIL import Image
from deepchecks.vision import VisionData
from deepchecks.vision.checks import ImagePropertyOutliers
from deepchecks.vision.utils.image_properties import default_image_properties
files = sorted(Path(sys.argv[1]).rglob("*.png"))
def batches():
    for at in range(0, len(files), 50):
        some = files[at : at + 50]
        yield {"images": [np.asarray(Image.open(f).convert("RGB")) for f in some],
               "image_identifiers": [str(f.relative_to(sys.argv[1])) for f in some]}
# An outlier has no name there: each property is taken for the faults that change it.
faults = {"Brightness": ["dark", "light"], "Area": ["odd_size"], "Aspect Ratio": ["odd_aspect_ratio"], "RMS Contrast": ["low_information"]}
begun, found = time.process_time(), {}
for one in default_image_properties:
    if one["name"] in faults:  # one at a time: with several, 0.17.3 and later give identifiers of other pictures
        data = VisionData(batch_loader=batches(), task_type="other", reshuffle_data=False)
        value = ImagePropertyOutliers(image_properties=[one]).run(data, with_display=False).value[one["name"]]
        for fault in faults[one["name"]]:
            found[fault] = [str(n) for n in value["outliers_identifiers"]] if isinstance(value, dict) else []
""",
}
_OUR_PROGRAM = """
import json, sys, time
from pathlib import Path
from bench.beside_cleanvision import list_reported
import audit.checks.runner
begun = time.process_time()
found = list_reported(Path(sys.argv[1]))
"""
_LABELS = """
import json, sys, time
import numpy as np
from cleanlab.filter import find_label_issues
given = np.load(sys.argv[1])
begun = time.process_time()
issues = find_label_issues(given["labels"], given["probabilities"], return_indices_ranked_by="self_confidence", n_jobs=1)
found = {"wrong labels": [int(n) for n in issues]}
"""


def run_tool(python: Path, code: str, data: Path) -> dict[str, Any] | str:
    """Return what a tool found in a process of its own environment, or why it did not run."""
    if not python.exists():
        return "not installed"
    done = subprocess.run([str(python), "-c", code + _END, str(data)], capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1][:90]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def labels(file: Path) -> set[int]:
    """Write labels, 5 % of them wrong, and probabilities out of sample; give the wrong ones."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    pixels, right = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.choice(len(right), len(right) // 20, replace=False)
    given = right.copy()
    given[wrong] = (right[wrong] + rng.integers(1, 10, len(wrong))) % 10
    probabilities = cross_val_predict(
        LogisticRegression(max_iter=500), pixels / 16, given, cv=5, method="predict_proba"
    )
    np.savez(file, labels=given, probabilities=probabilities)
    return {int(n) for n in wrong}


def our_labels(file: Path, store: Path) -> tuple[float, dict[str, list[int]]]:
    """Return the seconds of work of `label_issues`, and the labels that it doubts."""
    from audit.api import record
    from audit.checks.config import parse_configuration
    from audit.checks.runner import run_checks

    given = np.load(file)
    with record(store, name="labels") as run:
        chances = np.log(np.maximum(given["probabilities"], 1e-9))
        run.log(indices=list(range(len(chances))), logits=chances.tolist(), labels=given["labels"].tolist())
    begun = time.process_time()
    config = parse_configuration({"max_findings": 5_000}, None)
    report = run_checks(store, only=["label_issues"], config=config, record=False)
    found = [int(finding.index) for finding in report.outcome("label_issues").findings if finding.index is not None]
    return time.process_time() - begun, {"wrong labels": found}


def show(tool: str, found: dict[str, list[Any]], planted: dict[str, list[set[Any]]]) -> None:
    """Print recall and precision of each fault that the tool looks for."""
    for fault, wanted in sorted(planted.items()):
        if fault not in found:
            continue
        got = set(found[fault])
        hits = sum(bool(names & got) for names in wanted)
        right = len(got & set().union(*wanted))
        precision = f"{right / len(got):.2f}" if got else "-"
        print(f"  {tool:12} {fault:18} recall {hits / len(wanted):.2f}  precision {precision}")


def main() -> None:
    """Run every tool on the same data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="a folder with one environment for each tool")
    folder: Path = parser.parse_args().environments
    with tempfile.TemporaryDirectory(prefix="audit-bench-") as place:
        root, store, file = Path(place) / "data", Path(place) / "lineage", Path(place) / "labels.npz"
        planted: dict[str, list[set[Any]]] = dict(build(root))
        wrong = labels(file)
        recorded, _, _ = run_audit(root, store)
        print(f"audit: {recorded:.1f} s of work to record the pictures, which the pipeline needs anyway")
        for tool, code in {"audit": _OUR_PROGRAM, **_PICTURES}.items():
            python = Path(sys.executable) if tool == "audit" else folder / tool / "bin" / "python"
            said = run_tool(python, code, store if tool == "audit" else root)
            if isinstance(said, str):
                print(f"{tool}: does not run here: {said}")
                continue
            print(f"{tool}: pictures {said['seconds']:.1f} s of work, {said['megabytes']:.0f} MB")
            show(tool, said["found"], planted)
        seconds, doubts = our_labels(file, store)
        print(f"audit: labels {seconds:.2f} s of work")
        show("audit", doubts, {"wrong labels": [{n} for n in wrong]})
        said = run_tool(folder / "cleanlab" / "bin" / "python", _LABELS, file)
        if isinstance(said, str):
            print(f"cleanlab: does not run here: {said}")
        else:
            print(f"cleanlab: labels {said['seconds']:.2f} s of work, {said['megabytes']:.0f} MB")
            show("cleanlab", said["found"], {"wrong labels": [{n} for n in wrong]})


if __name__ == "__main__":
    main()
