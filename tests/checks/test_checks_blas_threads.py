"""Matrix products of checks use one thread; afterwards there are as many as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from checks_world import world
from threadpoolctl import threadpool_info, threadpool_limits

from audit.checks.runner import run_checks

_OWN = """
from threadpoolctl import threadpool_info

from audit.checks.base import Check, Finding


class Threads(Check):
    name = "threads"
    description = "How many threads there are."

    def run(self, context):
        yield Finding(str({one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}))
"""


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threadpool_limits(2, user_api="blas"):
        assert _counts() == {2}
        yield


def _counts() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.mark.usefixtures("two_threads")
def test_checks_run_with_one_thread(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(_OWN)
    store = world().write(tmp_path / "lineage")
    report = run_checks(store, only=["threads"], checks=[tmp_path / "threads.py"], record=False)
    assert [outcome.message for outcome in report.outcomes] == ["{1}"]
    assert _counts() == {2}
