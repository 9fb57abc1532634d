"""How large the difference between two stage outputs is, over a few samples that show it.

Values come from the store where they were kept, else they are derived again from the source, which takes a working
pipeline and time: so at most one sample of each kind of divergence. What cannot be measured is reported, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from audit.errors import AuditError, CodeNotTrusted
from audit.lineage.trace import Trace
from audit.plainjson import JsonObject
from audit.sources.builder import can_be_rebuilt
from audit.sources.trust import is_derivable


@dataclass(slots=True)
class Magnitude:
    """Largest and mean absolute difference; `why` says why they are missing."""

    max: float | None = None
    mean: float | None = None
    samples: int = 0
    a: str | None = None
    b: str | None = None
    why: str | None = None

    def as_json(self) -> JsonObject:
        """Return it as `--json` prints it."""
        return asdict(self)


def measure(
    examples: Sequence[tuple[Trace, Trace]], at_a: int | None, at_b: int | None, *, derive: bool = True
) -> Magnitude:
    """Return the difference between stage `at_a` of the first of each pair and stage `at_b` of the second."""
    if at_a is None or at_b is None:
        return Magnitude(why="only one side has such a stage")
    found = Magnitude()
    largest: list[float] = []
    means: list[float] = []
    for number, (ours, theirs) in enumerate(examples):
        if number == 0:
            found.a, found.b = _facts(ours, at_a), _facts(theirs, at_b)
        try:
            may_derive = derive and number == 0
            pair = (_array(ours, at_a, may_derive), _array(theirs, at_b, may_derive))
        except (AuditError, OSError) as error:
            found.why = found.why or str(error)
            continue
        if pair[0] is None or pair[1] is None:
            found.why = found.why or "the outputs were not stored, or are not numbers"
        elif pair[0].shape != pair[1].shape:
            found.why = found.why or "the outputs have different shapes"
        elif pair[0].size:
            gap = _gap(pair[0], pair[1])
            largest.append(float(gap.max()))
            means.append(float(gap.mean()))
    if largest:
        found.max, found.mean, found.samples, found.why = max(largest), sum(means) / len(means), len(largest), None
    return found


def is_stored(pair: tuple[Trace, Trace], at_a: int | None, at_b: int | None) -> bool:
    """Return whether both outputs were kept whole."""
    levels = [
        next((row["payload"] for row in found.stages if row["stage"] == stage), None)
        for found, stage in zip(pair, (at_a, at_b), strict=True)
    ]
    return levels == ["full", "full"]


def _gap(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        gap: np.ndarray[Any, Any] = np.abs(a.astype(wide) - b.astype(wide))
    # NaN against NaN, or infinity against itself, is not a difference; against anything else it is an endless one.
    same = (a == b) | ((a != a) & (b != b))
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


def _array(trace: Trace, stage: int, may_derive: bool) -> np.ndarray[Any, Any] | None:
    row = next((row for row in trace.stages if row["stage"] == stage), None)
    if row is None or (row["payload"] != "full" and not (may_derive and can_be_rebuilt(trace.run.recipe))):
        return None
    if row["payload"] != "full" and not is_derivable(trace.run, trace.trust):
        raise CodeNotTrusted(
            f"the outputs of the run {trace.run.run_id} were not stored, and deriving them would execute code that "
            "this machine did not record, or that has changed since (--trust allows it)"
        )
    value = trace.value(stage, numpy_only=True)
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        value = tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return None
    return array if array.dtype.kind in "biufc" else None


def _facts(trace: Trace, stage: int) -> str | None:
    row = next((row for row in trace.stages if row["stage"] == stage), None)
    if row is None:
        return None
    shape = "×".join(str(length) for length in row["shape"] or ())
    words = [str(word) for word in (row["kind"], row["mode"] or row["dtype"], shape) if word]
    if None not in (row["min"], row["max"], row["mean"]):
        words.append(f"[{row['min']:.4g}, {row['max']:.4g}] mean {row['mean']:.4g}")
    return " ".join(words)
