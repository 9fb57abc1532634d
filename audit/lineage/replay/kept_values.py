"""Values that a dataset keeps: it makes them once, and gives them again in later visits without running their stages.

A recording and a replay may meet a sample at different times, so that one of them has stages that the other has not. What the
shorter one began with must then be the output of one of these stages.
"""

from __future__ import annotations

from collections.abc import Mapping

Digests = dict[str, str | None]
_LOAD = "0"


def align(recorded: Mapping[str, str | None], made: Mapping[str, str | None]) -> tuple[Digests, Digests]:
    """Return the digests of both by path, without the stages that one of them took from memory.

    Both are as they were where nothing shows that a value was kept.
    """
    if (path := _find_kept_stage(recorded, made)) is not None:
        rest = {one: digest for one, digest in made.items() if one != _LOAD}
        return _digests_from(recorded, path), {path: made[_LOAD], **rest}
    if (path := _find_kept_stage(made, recorded)) is not None:
        later = _digests_from(made, path)
        del later[path]
        return dict(recorded), {_LOAD: made[path], **later}
    return dict(recorded), dict(made)


def _find_kept_stage(whole: Mapping[str, str | None], part: Mapping[str, str | None]) -> str | None:
    """Return the path of the stage whose output a shorter visit began with; None where there is none."""
    begun = part.get(_LOAD)
    if begun is None or whole.get(_LOAD) == begun:
        return None
    for path, digest in whole.items():
        if path != _LOAD and path in part:
            return None
        if path != _LOAD and digest == begun:
            return path
    return None


def _digests_from(digests: Mapping[str, str | None], path: str) -> Digests:
    paths = list(digests)
    return {one: digests[one] for one in paths[paths.index(path) :]}
