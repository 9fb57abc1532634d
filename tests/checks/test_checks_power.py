"""docs/CHECKS.md says of every check what it asks, and of every statistic how often it finds a fault."""

from __future__ import annotations

import re

import pytest

from audit.checks.documentation import checks_page
from audit.checks.registry import all_checks
from bench.power import TRIALS, check_of

#: Measured on pictures (`python -m bench.copies`), in a table of its own.
MEASURED = {"near_duplicates", "leakage"}


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the first table that has this heading."""
    table = checks_page().partition(heading)[2].partition("\n\n")[0]
    return [re.split(r" \| ", line.strip("| ")) for line in table.splitlines()[2:]]


def _names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_every_check_has_its_question() -> None:
    rows = _rows("| check | question | statistic | assumes |") + _rows("| check | question | rule | assumes |")
    assert {name for row in rows for name in _names(row[0])} == {check.name for check in all_checks()} | {"sql"}


def test_every_statistic_has_its_power() -> None:
    """A check without a statistic says `none`: one sample is found as surely as many."""
    tested = {
        name
        for row in _rows("| check | question | statistic | assumes |")
        for name in _names(row[0])
        if not row[2].startswith("none")
    }
    assert {name for row in _rows("| check | fault |") for name in _names(row[0])} == tested - MEASURED


@pytest.mark.parametrize("trial", TRIALS)
def test_the_page_has_the_row_of_every_simulation(trial: str) -> None:
    rows = [row for row in _rows("| check | fault |") if row[1] == TRIALS[trial].__doc__]
    assert [_names(row[0]) for row in rows] == [[check_of(trial)]]
    assert all(cell.endswith("%") for cell in rows[0][2:6])
