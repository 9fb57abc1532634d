"""Rules of operations that make one tensor of several."""

from __future__ import annotations

from dataclasses import replace

from audit.recorders.model.row_origins import OperationCall, Origins, Row, RowOrigins


def concatenate(call: OperationCall) -> Origins:
    """Put batches one after the other; rows of unknown tensors are not samples. Along another axis all must be the same."""
    parts = list(call.argument(0, "tensors"))
    origins = [call.lookup(part) for part in parts]
    known = next((one for one in origins if one is not None and one.axis is not None), None)
    if known is None or known.axis is None:
        return None
    if call.argument(1, "dim", 0) % call.result.dim() != known.axis:
        return known if all(one is not None and one.rows == known.rows for one in origins) else None
    rows: list[Row] = []
    for part, one in zip(parts, origins, strict=True):
        is_aligned = one is not None and one.axis == known.axis
        rows += one.rows if one is not None and is_aligned else [None] * part.shape[known.axis]
    operations = dict.fromkeys(name for one in origins if one is not None for name in one.operations)
    return RowOrigins(tuple(rows), known.axis, tuple(operations))


def stack(call: OperationCall) -> Origins:
    """Follow `stack`: single samples become a batch; batches of the same samples stay side by side."""
    parts = list(call.argument(0, "tensors"))
    origins = [call.lookup(part) for part in parts]
    known = next((one for one in origins if one is not None), None)
    if known is None:
        return None
    axis = call.argument(1, "dim", 0) % call.result.dim()
    if known.axis is None:
        single = [
            one.rows[0] if one is not None and one.axis is None and len(one.rows) == 1 else None for one in origins
        ]
        return RowOrigins(tuple(single), axis, known.operations)
    if any(one is None or one.rows != known.rows or one.axis != known.axis for one in origins):
        return None
    return replace(known, axis=known.axis + (axis <= known.axis))
