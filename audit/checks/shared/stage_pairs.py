"""The stages of two pipelines, paired in their order: a stage that was added or removed moves the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from audit.records import Stage


def stage_pairs(before: list[Stage], now: list[Stage]) -> Iterator[tuple[Stage | None, Stage | None]]:
    """Yield each stage with the one that has its place in the other pipeline; None if it was added or removed."""
    old, new = ([stage.qualname for stage in stages] for stages in (before, now))
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from zip(before[a:b], now[c:d], strict=True)
            continue
        yield from ((stage, None) for stage in before[a:b])
        yield from ((None, stage) for stage in now[c:d])
