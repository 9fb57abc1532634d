"""The rule of a tensor that is one sample, without an axis of samples."""

from __future__ import annotations

from dataclasses import replace

from audit.recorders.model.row_origins import OperationCall, Origins


def follow_single(call: OperationCall) -> Origins:
    """Follow one sample without an axis of samples: it stays one, or becomes a batch of one."""
    origins, value, result = call.origins, call.value, call.result
    if origins is None or len(origins.rows) != 1:
        return None
    is_batch = result.dim() == value.dim() + 1 and result.shape[0] == 1 and result.numel() == value.numel()
    return replace(origins, axis=0 if is_batch else None)
