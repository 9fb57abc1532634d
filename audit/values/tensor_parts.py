"""Tensors that are not plain memory but consist of plain tensors: sparse, quantised and nested ones."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

from audit.values import composite, hashing
from audit.values.base import DecodeOptions, EncodedValue, damage_error, unpack

#: Names of the parts of each compressed sparse layout.
_COMPRESSED_PARTS = {"sparse_csr": "row", "sparse_bsr": "row", "sparse_csc": "col", "sparse_bsc": "col"}
ENCODING = "parts"


def is_in_parts(value: Any) -> bool:
    """Return whether a tensor can be taken apart and put together again exactly."""
    if hashing.version() < 2 or value.device.type == "meta":
        return False
    torch: Any = sys.modules["torch"]
    if value.is_nested:
        return True
    if value.is_quantized:
        return bool(value.qscheme() in (torch.per_tensor_affine, torch.per_channel_affine))
    return value.layout is torch.sparse_coo or _layout(value) in _COMPRESSED_PARTS


def take_apart(value: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return what it is, as JSON, and the plain tensors that it consists of."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        value = value.detach()
        head: dict[str, Any] = {"layout": _layout(value), "dtype": str(value.dtype).removeprefix("torch.")}
        if value.is_nested:
            return head | {"layout": f"nested {head['layout']}"}, list(value.unbind())
        head["shape"] = list(value.shape)
        if value.is_quantized:
            if value.qscheme() is torch.per_tensor_affine:
                scale = [value.q_scale(), value.q_zero_point()]
                return head | {"layout": "quantized", "scale": scale}, [value.int_repr()]
            scales = [value.q_per_channel_scales(), value.q_per_channel_zero_points()]
            return head | {"layout": "quantized", "axis": value.q_per_channel_axis()}, [value.int_repr(), *scales]
        if value.layout is torch.sparse_coo:
            return head | {"coalesced": value.is_coalesced()}, [value._indices(), value._values()]
        if _COMPRESSED_PARTS[head["layout"]] == "row":
            return head, [value.crow_indices(), value.col_indices(), value.values()]
        return head, [value.ccol_indices(), value.row_indices(), value.values()]


def fingerprint(head: dict[str, Any], marks: list[str | None], size: int) -> tuple[str | None, int]:
    """Return the digest over what it is and the digests of its parts."""
    if None in marks:
        return None, size
    described = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    shape = tuple(head.get("shape", (len(marks),)))
    return hashing.digest_parts(
        "tensor", f"{head['dtype']} {head['layout']}", shape, described, *map(_text, marks)
    ), size


def encode(head: dict[str, Any], parts: list[Any]) -> EncodedValue:
    """Return its parts, one after the other."""
    return EncodedValue(ENCODING, composite.encode(head, parts).data)


def decode(encoded: EncodedValue, options: DecodeOptions) -> Any:
    """Return the tensor back; without torch, a dict of what it consists of."""
    head, parts = composite.decode(EncodedValue("children", encoded.data), options)
    del head["children"]
    if options.numpy_only:
        return head | {"parts": [np.asarray(part) for part in parts]}
    return _put_together(head, parts)


def encoded_digest(encoded: EncodedValue, options: DecodeOptions) -> str | None:
    """Return the digest that the stored tensor has."""
    head, _ = unpack(encoded.data)
    marks = composite.encoded_digests(EncodedValue("children", encoded.data), options)
    del head["children"]
    return fingerprint(head, marks, 0)[0]


def _put_together(head: dict[str, Any], parts: list[Any]) -> Any:
    torch: Any = importlib.import_module("torch")
    layout = str(head["layout"])
    if layout.startswith("nested "):
        return torch.nested.nested_tensor(
            parts, dtype=getattr(torch, head["dtype"]), layout=getattr(torch, layout.removeprefix("nested "))
        )
    if layout == "quantized" and "scale" in head:
        return torch._make_per_tensor_quantized_tensor(parts[0], *head["scale"])
    if layout == "quantized":
        return torch._make_per_channel_quantized_tensor(*parts, head["axis"])
    if layout == "sparse_coo":
        made = torch.sparse_coo_tensor(*parts, head["shape"], check_invariants=True)
        return made._coalesced_(True) if head["coalesced"] else made
    if layout not in _COMPRESSED_PARTS:
        raise damage_error(f"a tensor has no layout {layout!r}")
    return torch.sparse_compressed_tensor(*parts, head["shape"], layout=getattr(torch, layout), check_invariants=True)


def _layout(value: Any) -> str:
    return str(value.layout).removeprefix("torch.")


def _text(mark: str | None) -> bytes:
    return str(mark).encode()
