"""How two runs called their models: in which mode and precision, on which device, in batches of which size.

The same checkpoint gives other logits for the same input when one of these differs, so a diff names them.
"""

from __future__ import annotations

from typing import Any

from audit.lineage.diff.matching import Side
from audit.store.read.scratch import Scratch

_MODES = {"train": "training", "eval": "evaluation"}


def call_changes(scratch: Scratch, a: Side, b: Side) -> dict[str, tuple[Any, Any]]:
    """Return what differs in the calls, with both values; what one of the runs did not record is left out."""
    ours, theirs = _calls(scratch, a), _calls(scratch, b)
    return {
        name: (ours[name], theirs[name])
        for name in ours
        if None not in (ours[name], theirs[name]) and ours[name] != theirs[name]
    }


def _calls(scratch: Scratch, side: Side) -> dict[str, str | int | None]:
    (largest,) = scratch.row(f"SELECT max(position) + 1 FROM predictions WHERE {side.rows}")
    phases = scratch.rows(f"SELECT DISTINCT phase FROM steps WHERE {side.rows} AND phase IS NOT NULL ORDER BY 1")
    odd = scratch.rows(f"SELECT DISTINCT unnest(other_mode) AS layer FROM calls WHERE {side.rows} ORDER BY 1")
    recipe = side.run.recipe
    return {
        # A Dropout in training mode inside a model in evaluation mode, say.
        "layers in the other mode": ", ".join(str(layer) for (layer,) in odd) or "none recorded",
        "mode": " and ".join(_MODES.get(phase, str(phase)) for (phase,) in phases) or None,
        "device": recipe.get("device") or recipe.get("output_device"),
        "output dtype": recipe.get("output_dtype"),
        "batch size": recipe.get("batch_size") or largest,
    }
