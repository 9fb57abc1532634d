"""Which tests take long or start a process, as last measured: `make quick` leaves them out without a mark on each of them.

`make slow-tests` measures and writes the list. A test that is new and slow is marked by hand (`pytest.mark.slow`) until then.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from processes import STARTS_A_PROCESS

LIST = Path(__file__).with_suffix(".txt")
#: A function with all its parameters together, in seconds.
_MOST = 0.3


def mark_slow(items: list[pytest.Item]) -> None:
    """Mark the tests of the list."""
    slow = {*LIST.read_text().split()}
    for item in items:
        if function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)


def function_of(nodeid: str) -> str:
    """Return the name of a test without its parameters."""
    return nodeid.partition("[")[0]


class SlowTestWriter:
    """Adds up how long each test takes, and writes the list when all have run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and STARTS_A_PROCESS in str(report.longrepr):
            self._seconds[function_of(report.nodeid)] += _MOST + 1
        elif report.when == "call":  # what a fixture of several tests needs would count for the first of them
            self._seconds[function_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        LIST.write_text("".join(f"{name}\n" for name in sorted(self._seconds) if self._seconds[name] > _MOST))
