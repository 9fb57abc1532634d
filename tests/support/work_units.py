"""Which tests one process of pytest-xdist gets together: those that share what is expensive to make.

pytest-xdist would hand out tests one by one, and each process would make the stores, servers and browsers of every file
again. The longest units come first: at the end, no process waits long for another.
"""

from __future__ import annotations

from typing import Any

import pytest

#: Folders whose files share a Ray cluster, or a browser and served stores. They take longest.
_FOLDERS = ("tests/engines/ray/", "tests/web/")


def unit_of(nodeid: str) -> str:
    """Return the unit that a test belongs to: its file, or one of the folders."""
    return next((folder for folder in _FOLDERS if nodeid.startswith(folder)), nodeid.partition("::")[0])


def put_long_units_first(items: list[pytest.Item]) -> None:
    """Order tests by their units; the order within a unit stays."""
    items.sort(key=lambda item: (*_FOLDERS, unit := unit_of(item.nodeid)).index(unit))


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what hands out unit after unit, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling  # not installed everywhere

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler
