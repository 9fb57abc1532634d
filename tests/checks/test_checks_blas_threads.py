"""Matrix products of checks use one thread; afterwards there are as many as before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from checks_world import world

from audit.checks.blas_threads import _openblas, single_blas_thread
from audit.checks.runner import run_checks

_OWN = """
from audit.checks.base import Check, Finding
from audit.checks.blas_threads import _openblas


class Threads(Check):
    name = "threads"
    description = "How many threads there are."

    def run(self, context):
        yield Finding(str(_openblas()[0]()))
"""


@pytest.fixture
def two_threads() -> None:
    found = _openblas()
    if found is None:
        pytest.skip("numpy was built with another library")
    found[1](2)


def _count() -> int:
    found = _openblas()
    assert found is not None
    return found[0]()


@pytest.mark.usefixtures("two_threads")
def test_checks_run_with_one_thread(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(_OWN)
    store = world().write(tmp_path / "lineage")
    report = run_checks(store, only=["threads"], checks=[tmp_path / "threads.py"], record=False)
    assert [outcome.message for outcome in report.outcomes] == ["1"]
    assert _count() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_last_of_several_users_restores_the_number() -> None:
    entered, leave = threading.Event(), threading.Event()

    def use() -> None:
        with single_blas_thread():
            entered.set()
            assert leave.wait(60)

    other = threading.Thread(target=use)
    with single_blas_thread():
        other.start()
        assert entered.wait(60)
    assert _count() == 1
    leave.set()
    other.join()
    assert _count() == 2
