"""Which tests take long or start a process, as last measured: `make quick` leaves them out without a mark on each of them.

`make slow-tests` measures and writes the list. A test that is new and slow is marked by hand (`pytest.mark.slow`) until then.
Processor time counts: on a busy machine the clock would put other tests on the list each time.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import STARTS_A_PROCESS

LIST = Path(__file__).with_suffix(".txt")
#: A function with all its parameters together, in seconds.
_MOST = 0.2
#: After so many seconds a test is given up: it is on the list already.
_PATIENCE = 2.0
_SPENT_KEY = "processor seconds"
_TAKES_LONG = "it takes long"


def mark_slow(items: list[pytest.Item]) -> None:
    """Mark the tests of the list."""
    slow = {*LIST.read_text().split()}
    for item in items:
        if function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)


def function_of(nodeid: str) -> str:
    """Return the name of a test without its parameters."""
    return nodeid.partition("[")[0]


class SlowTestMeter:
    """Measures each test in the process that runs it, and spends no time on what is known to be slow."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        signal.signal(signal.SIGVTALRM, _give_up)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._seconds[function_of(item.nodeid)] > _MOST:
            pytest.skip(_TAKES_LONG)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        # What a fixture of several tests needs would count for the first of them.
        before = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            spent = time.process_time() - before
            self._seconds[function_of(item.nodeid)] += spent
            item.user_properties.append((_SPENT_KEY, spent))


def _give_up(*_: object) -> None:
    pytest.skip(_TAKES_LONG)


class SlowTestWriter:
    """Adds up what the processes measured, and writes the list when all tests have run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = function_of(report.nodeid)
        if report.skipped and any(reason in str(report.longrepr) for reason in (STARTS_A_PROCESS, _TAKES_LONG)):
            self._seconds[name] += _MOST + 1
        elif report.when == "call":
            self._seconds[name] += sum(float(str(value)) for key, value in report.user_properties if key == _SPENT_KEY)

    def pytest_sessionfinish(self) -> None:
        LIST.write_text("".join(f"{name}\n" for name in sorted(self._seconds) if self._seconds[name] > _MOST))
