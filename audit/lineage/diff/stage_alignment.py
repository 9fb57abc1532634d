"""Which stage of one pipeline is which stage of another, when stages were dropped, added, moved or replaced.

Pure arithmetic on the rows of `stages`. The result is a walk through both pipelines at once: after each step it says
whose output to look at on either side. It does not look at outputs: `divergence` does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from audit.plainjson import JsonObject
from audit.records import Stage

Change = Literal["same", "changed", "replaced", "removed", "added", "moved"]


@dataclass(frozen=True, slots=True)
class AlignmentStep:
    """One step of the walk. `at_a` and `at_b` are the last stages that have run by then; None before the first."""

    number: int
    change: Change
    a: Stage | None
    b: Stage | None
    at_a: int | None
    at_b: int | None
    is_target: bool = False

    @property
    def name(self) -> str:
        """The stage's name in the first pipeline, or in the second for one that only it has."""
        stage = self.a or self.b
        assert stage is not None
        return stage.name

    @property
    def is_random(self) -> bool:
        """Whether either side draws random numbers here."""
        return bool((self.a and self.a.random) or (self.b and self.b.random))

    def as_json(self) -> JsonObject:
        """Return it as `--json` prints it."""
        return {
            "name": self.name,
            "change": self.change,
            "a": _place(self.a),
            "b": _place(self.b),
            "parameters": parameter_changes(self.a, self.b) if self.a and self.b else [],
        }


def _place(stage: Stage | None) -> dict[str, int | str] | None:
    return {"stage": stage.stage, "path": stage.path, "name": stage.name} if stage else None


def align(a: Sequence[Stage], b: Sequence[Stage]) -> list[AlignmentStep]:
    """Return the walk through both pipelines: first what leads to the model's input, then what leads to the label."""
    steps: list[AlignmentStep] = []
    for is_target in (False, True):
        ours = [stage for stage in a if stage.is_target == is_target]
        theirs = [stage for stage in b if stage.is_target == is_target]
        at_a: int | None = None
        at_b: int | None = None
        for change, left, right in _name_edits(_edits(ours, theirs)):
            at_a = left.stage if left else at_a
            at_b = right.stage if right else at_b
            steps.append(AlignmentStep(len(steps), change, left, right, at_a, at_b, is_target))
    return steps


def likeness(a: Stage, b: Stage) -> int:
    """Return how much two stages have in common: 0 is nothing that makes them the same stage."""
    if a.name != b.name:
        return 0
    same_code = a.source_code_digest == b.source_code_digest
    if a.qualname != b.qualname and not (same_code and a.source_code_digest):
        return 4
    # The same code in another module is the same stage: train.py and serve.py may both define it.
    return 5 + 2 * (a.parameters == b.parameters) + same_code


Pair = tuple[Stage | None, Stage | None]


def _edits(a: list[Stage], b: list[Stage]) -> list[Pair]:
    """Return the pairing in order that keeps the most likeness, and between two pairs what only one side has."""
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            alike = likeness(a[i], b[j])
            paired = alike + best[i + 1][j + 1] if alike else 0
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    edits: list[Pair] = []
    i = j = 0
    while i < len(a) and j < len(b):
        alike = likeness(a[i], b[j])
        if alike and best[i][j] == alike + best[i + 1][j + 1]:
            edits.append((a[i], b[j]))
            i, j = i + 1, j + 1
            continue
        lone_a, lone_b = (best[i][j] == rest for rest in (best[i + 1][j], best[i][j + 1]))
        # Where either may go first the description decides, not the side: a diff read backwards is the same diff.
        if lone_a and (not lone_b or _description(a[i]) < _description(b[j])):
            edits.append((a[i], None))
            i += 1
        else:
            edits.append((None, b[j]))
            j += 1
    edits.extend((stage, None) for stage in a[i:])
    edits.extend((None, stage) for stage in b[j:])
    return edits


def _description(stage: Stage) -> tuple[str, ...]:
    return tuple(str(word) for word in (stage.name, stage.qualname, stage.parameters, stage.source_code_digest))


def _name_edits(edits: list[Pair]) -> list[tuple[Change, Stage | None, Stage | None]]:
    """Return what each edit means: a stage that only one side has may have moved, or may stand in another's place."""
    moved = _find_moved(
        [left for left, right in edits if left and not right], [right for left, right in edits if right and not left]
    )
    named: list[tuple[Change, Stage | None, Stage | None]] = []
    removed: list[Stage] = []
    added: list[Stage] = []

    def close_gap() -> None:
        # What stands between two common stages: one for one where both have some, the rest on its own.
        for position in range(max(len(removed), len(added))):
            left = removed[position] if position < len(removed) else None
            right = added[position] if position < len(added) else None
            named.append(("replaced" if left and right else "removed" if left else "added", left, right))
        removed.clear()
        added.clear()

    for left, right in edits:
        if left and right:
            close_gap()
            same = likeness(left, right) == likeness(left, left)
            named.append(("same" if same else "changed", left, right))
        elif left and left.stage in moved[0]:
            close_gap()
            named.append(("moved", left, None))
        elif right and right.stage in moved[1]:
            close_gap()
            named.append(("moved", None, right))
        elif left:
            removed.append(left)
        elif right:
            added.append(right)
    close_gap()
    return named


def _find_moved(removed: list[Stage], added: list[Stage]) -> tuple[set[int], set[int]]:
    left, right = set[int](), set[int]()
    for stage in removed:
        partner = next((other for other in added if likeness(stage, other) >= 5 and other.stage not in right), None)
        if partner is not None:
            left.add(stage.stage)
            right.add(partner.stage)
    return left, right


class ParameterChange(TypedDict):
    """A setting of a stage that differs; None on a side that does not have it."""

    parameter: str
    a: Any
    b: Any


def parameter_changes(a: Stage, b: Stage) -> list[ParameterChange]:
    """Return each setting that differs, with both values; one that a side does not have is None there."""
    ours, theirs = _parse_parameters(a.parameters), _parse_parameters(b.parameters)
    return [
        {"parameter": key, "a": ours.get(key), "b": theirs.get(key)}
        for key in sorted({*ours, *theirs})
        if ours.get(key, _NO_STAGE) != theirs.get(key, _NO_STAGE)
    ]


_NO_STAGE = object()


def _parse_parameters(parameters: str | None) -> JsonObject:
    try:
        found = json.loads(parameters or "{}")
    except ValueError:
        return {"": parameters}
    return found if isinstance(found, dict) else {"": found}
