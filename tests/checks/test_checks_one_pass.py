"""The number of queries of a check does not grow with the samples: none asks once for each of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from checks_world import world

from audit.checks.runner import run_checks
from audit.records import Progress
from audit.store.read.reader import Reader


class _Counting(Reader):
    """A reader that counts the queries of each check."""

    check = ""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.queries: Counter[str] = Counter()

    def sql(self, *given: Any, **options: Any) -> Any:
        self.queries[self.check] += 1
        return super().sql(*given, **options)

    def follow(self, progress: Progress) -> None:
        """Count for the check that runs now."""
        self.check = progress.doing or ""


def _count(place: Path, samples: int) -> Counter[str]:
    """Return the number of queries of each check on a run and its baseline."""
    for name in ("before", "now"):
        made = world(samples, name=name)
        for row in made.tables["samples"]:
            row["split"] = "test" if row["index"] % 4 else "train"
        made.write(place / "lineage")
    with _Counting(str(place / "lineage")) as reader:
        run_checks(reader, "now", baseline="before", record=False, progress=reader.follow)
        return reader.queries


def test_no_check_asks_more_often_if_there_are_more_samples(tmp_path: Path) -> None:
    few, many = _count(tmp_path / "few", 240), _count(tmp_path / "many", 1_200)
    # Checks that need pictures, boxes or layers have nothing to ask here.
    assert len(many) > 30
    assert {check: count for check, count in many.items() if check and count > few[check]} == {}
