"""Run the campaign: each member tries to break a promise, by chance from a seed, for a limited time.

    python -m bench.campaign --seed 1 --minutes 30 --write
    python -m bench.campaign damage power_cuts --minutes 5

The minutes are shared by the members, which stop early when they reach their goals. `--write` puts the counts into
docs/RELIABILITY.md; rows of members that did not run stay as they are. Exit code 1 if anything bad happened.
"""

from __future__ import annotations

import argparse
import importlib
import re
import tempfile
import time
import warnings
from pathlib import Path

from bench.campaign.trial import Trial

#: The modules of the members, in the order of the table. Each has GOAL, COUNTS (what is counted) and run(trial).
MEMBERS = (
    *("writer_kills", "engine_kills", "bucket_kills", "errnos", "power_cuts", "damage", "sql_escapes", "broken_files"),
    *("full_disk", "full_places", "memory_kills", "clock", "readers", "many_samples"),
)
PAGE = Path(__file__).parent.parent.parent / "docs" / "RELIABILITY.md"
BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"
_HEAD = "| member | what is counted | tried | goal | bad | also | seconds | seed | date |"
_RULE = "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | --- |"


def run_member(name: str, seed: int, seconds: float, folder: Path) -> tuple[str, int]:
    """Run one member; return its row of the table, and how much was bad."""
    member = importlib.import_module(f"bench.campaign.{name}")
    trial = Trial(seed, seconds, member.GOAL, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        member.run(trial)
    also = ", ".join(f"{what} {count:,}" for what, count in sorted(trial.counts.items()) if count)
    cells = (
        name,
        member.COUNTS,
        f"{trial.tried:,}",
        f"{member.GOAL:,}",
        f"{trial.bad:,}",
        also,
        f"{trial.seconds:.0f}",
        str(seed),
    )
    return f"| {' | '.join(cells)} | {time.strftime('%Y-%m-%d')} |", trial.bad


def write_rows(rows: dict[str, str]) -> None:
    """Put rows into the page, in the order of the members."""
    text = PAGE.read_text()
    block = re.search(f"{BEGIN}(.*){END}", text, re.DOTALL)
    assert block is not None, "the page has its marks"
    kept = {row.split("|")[1].strip(): row for row in block[1].splitlines() if row.startswith("| ")}
    table = "\n".join([_HEAD, _RULE, *(row for name in MEMBERS if (row := (kept | rows).get(name)))])
    PAGE.write_text(text.replace(block[0], f"{BEGIN}\n{table}\n{END}"))


def main() -> int:
    """Run the members that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", nargs="*", metavar="MEMBER", help=", ".join(MEMBERS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--write", action="store_true", help="put the counts into docs/RELIABILITY.md")
    given = parser.parse_args()
    if unknown := set(given.members) - set(MEMBERS):
        parser.error(f"there is no member {sorted(unknown)[0]}")
    chosen = given.members or list(MEMBERS)
    bad, end = 0, time.monotonic() + given.minutes * 60
    for number, name in enumerate(chosen):
        seconds = max(5.0, (end - time.monotonic()) / (len(chosen) - number))
        with tempfile.TemporaryDirectory(prefix="audit-campaign-") as folder:
            row, wrong = run_member(name, given.seed, seconds, Path(folder))
        print(row, flush=True)
        bad += wrong
        if given.write:
            write_rows({name: row})
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
