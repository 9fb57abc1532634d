"""Repeated calls of one stage, in runs that were recorded when a visit had one output for each stage.

Such a run has the output of the last call, and `"calls": N` at the end of its parameters. Now each call has an output of
its own, with the path `1`, `1#2` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

T = TypeVar("T")

_CALLS = re.compile(r'"calls": (\d+)\}$')


def count_calls(params: str | None) -> int:
    """Return how often a stage was called in a visit, as its recorded parameters say; 1 where they do not."""
    found = _CALLS.search(params) if params else None
    return int(found[1]) if found else 1


def last_calls(made: Mapping[str, T], calls: Mapping[str, int], recorded: Collection[str]) -> dict[str, T]:
    """Return what a replay made by path, with the last of `calls[path]` calls under the path itself.

    `recorded` are the paths of the run's stages: where it has an output for each call, nothing is changed.
    """
    found = dict(made)
    for path, count in calls.items():
        further = [f"{path}#{number}" for number in range(2, count + 1)]
        if all(one in made and one not in recorded for one in further):
            found[path] = made[further[-1]]
            for one in further:
                del found[one]
    return found
