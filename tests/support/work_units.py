"""Which tests one process of pytest-xdist gets together: those that share what is expensive to make.

pytest-xdist would hand out tests one by one, and each process would make the stores, servers and browsers of every file
again. The longest units come first: at the end, no process waits long for another.
"""

from __future__ import annotations

from typing import Any

import pytest

#: Folders whose files share a Ray cluster, or a browser and served stores. They take longest.
_FOLDERS = ("tests/web/", "tests/engines/ray/")
#: Files of these folders that share little with the others: they are units of their own.
_OWN_UNITS = ("tests/web/test_web_pages.py", "tests/web/test_odd_runs.py", "tests/web/test_web_guard.py")
#: Units of more than a quarter of a minute, the longest first. At the end of a run the short ones fill all processes.
_LONG = (
    *_FOLDERS,
    *_OWN_UNITS,
)


def unit_of(nodeid: str) -> str:
    """Return the unit that a test belongs to: its file, or one of the folders."""
    file = nodeid.partition("::")[0]
    return file if file in _OWN_UNITS else next((folder for folder in _FOLDERS if file.startswith(folder)), file)


def put_long_units_first(items: list[pytest.Item]) -> None:
    """Order tests by their units; the order within a unit stays."""
    places = {unit: place for place, unit in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(unit_of(item.nodeid), len(places)))


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what hands out unit after unit, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling  # not installed everywhere

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler
