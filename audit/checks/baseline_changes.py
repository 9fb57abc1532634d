"""What an update changes in a baseline file, for the person who reviews it: a file of digests explains nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from audit.checks.baseline import Baseline, Item, export_baseline, of_run, read_baseline
from audit.checks.shared.source_pairs import pairs
from audit.checks.shared.stage_pairs import stage_pairs
from audit.class_names import identify_class
from audit.lineage.diff.mcnemar import p_value
from audit.records import Stage
from audit.store.read.reader import Reader

#: Sources that are named for each kind of change; the others are counted.
_MOST_NAMED = 20
#: The kinds of change of a source, in the order in which they are shown.
KINDS = ("newly wrong", "newly right", "predicted otherwise", "label changed", "bytes changed", "added", "removed")


@dataclass(slots=True)
class BaselineChanges:
    """The differences of two baselines. `before` is None if there was no file."""

    path: str
    now: Baseline
    before: Baseline | None = None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    #: Up to 20 lines for each kind.
    named: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    stages: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    @property
    def chance(self) -> float:
        """Return the probability of so uneven a number of regressions and fixes by chance (McNemar's exact test)."""
        return p_value(self.counts["newly wrong"], self.counts["newly right"])

    @property
    def is_empty(self) -> bool:
        """Return whether nothing differs that a reviewer must know."""
        return self.before is not None and not any((*self.counts.values(), self.stages, self.code))


def update_baseline(
    reader: Reader, reference: str | None, path: str | os.PathLike[str], *, write: bool = True
) -> BaselineChanges:
    """Return what a run changes in a baseline file, and replace the file unless `write` is False."""
    text = os.fspath(path)
    before = read_baseline(text) if os.path.exists(text) else None
    now = of_run(reader, reference)
    changes = BaselineChanges(text, now, before)
    if before is not None:
        _compare(changes, before, now)
    if write:
        export_baseline(reader, now.run_id, path)
    return changes


def _compare(changes: BaselineChanges, before: Baseline, now: Baseline) -> None:
    for old, new in pairs(before.sources(), now.sources()):
        for kind, line in _changes_of(old, new, before, now):
            changes.counts[kind] += 1
            if len(changes.named[kind]) < _MOST_NAMED:
                changes.named[kind].append(line)
    changes.stages = _stage_changes(before.stages, now.stages)
    modules = before.code.keys() | now.code.keys()
    changes.code = sorted(module for module in modules if before.code.get(module) != now.code.get(module))


def _changes_of(old: Item | None, new: Item | None, before: Baseline, now: Baseline) -> list[tuple[str, str]]:
    if old is None or new is None:
        return [("added", new.source)] if new is not None else [("removed", old.source)] if old is not None else []
    found = []
    if old.digest != new.digest:
        found.append(("bytes changed", new.source))
    if identify_class(before.classes, old.label) != identify_class(now.classes, new.label):
        found.append(
            (
                "label changed",
                f"{new.source}: {identify_class(before.classes, old.label)} → {identify_class(now.classes, new.label)}",
            )
        )
    was, is_now = identify_class(before.classes, old.predicted), identify_class(now.classes, new.predicted)
    if was != is_now:
        right = [item.label is not None and item.predicted == item.label for item in (old, new)]
        kind = {(True, False): "newly wrong", (False, True): "newly right"}.get(
            (right[0], right[1]), "predicted otherwise"
        )
        found.append((kind, f"{new.source}: {was} → {is_now}"))
    return found


def _stage_changes(before: list[Stage], now: list[Stage]) -> list[str]:
    """Return a line for each stage that differs. A stage that was added moves the others, and changes none of them."""
    found = []
    for old, new in stage_pairs(before, now):
        if old is None or new is None:
            found += [f"{new.path} {new.name}: added"] if new else [f"{old.path} {old.name}: removed"] if old else []
        elif old.parameters != new.parameters:
            found.append(f"{new.path} {new.name}: {old.parameters} → {new.parameters}")
        elif old.source_code_digest != new.source_code_digest:
            found.append(f"{new.path} {new.name}: other code")
    return found
