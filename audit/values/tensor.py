"""torch tensors of every dtype that is plain memory, torchvision's tv_tensors included.

torch is never imported to look at a value: a value can be a tensor only if torch is loaded. Sparse, quantised and nested
ones are taken apart (tensor_parts.py). Tensors without elements in memory (meta tensors, parameters of lazy modules) are
refused, and so `other`. Gradients, `requires_grad`, device and strides are not kept.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np

from audit.values import array, compression, hashing, palette, statistics, tensor_parts, thumbnail, tv
from audit.values import native as loops
from audit.values.base import (
    DecodeOptions,
    EncodedValue,
    Facts,
    Preview,
    ValueKind,
    damage_error,
    excerpt,
    pack,
    unpack,
)

# What numpy calls the same memory; the rest (bfloat16, float8…) it has no name for.
_NUMPY = {
    "bool": "?", "uint8": "u1", "int8": "i1", "uint16": "<u2", "int16": "<i2", "uint32": "<u4", "int32": "<i4",
    "uint64": "<u8", "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8",
    "complex128": "<c16",
}  # fmt: skip
_names: dict[Any, str] = {}  # of torch's dtypes
#: How the elements of a plain tensor may be encoded, the commonest of a layer's output first.
ENCODINGS = ("bytes+zstd", "raw", "palette+rows+zstd", "unit+rows+zstd", "rows+zstd", "zstd")


class TensorKind(ValueKind):
    """torch.Tensor; tv_tensors decode to their own type, other subclasses to a plain tensor."""

    name = "tensor"
    is_first_of_its_types = True
    digest_rows = (
        (
            "tensor",
            "torch's name: `float32`, `bfloat16`…",
            "the shape",
            "the elements; conjugation and negation resolved. Of a torchvision tv_tensor then `\\|` and a JSON object, keys sorted, no spaces: `type` (`BoundingBoxes`, `Image`…) and, as far as it has them, `canvas_size` [height, width], `clamping_mode`, `format`. Of another subclass (a Parameter, a class of one's own) then `\\|` and such an object: `type` (`module.Class`), and of a tv_tensor the same three",
        ),
        (
            "tensor in parts",
            "dtype and layout: `float32 sparse_coo`, `sparse_csr`, `sparse_csc`, `sparse_bsr`, `sparse_bsc`, `quantized`, `nested strided`, `nested jagged`",
            "the shape; of a nested one the number of its tensors",
            "the block's header (below) without `children` as JSON, keys sorted, no spaces; then the digests of the parts as ASCII",
        ),
    )
    encoding_rows = (
        (
            "tensor",
            "`raw`, `zstd`, `bytes+zstd`, `rows+zstd`, `unit+rows+zstd`",
            "block; header `dtype`, `shape`, `tv` (null, or a tv_tensor's `type`, `format`, `canvas_size`, `clamping_mode`), `class` (of another subclass, as in its digest); body the elements in C order; a row is the last dimension",
        ),
        (
            "tensor",
            "`palette+rows+zstd`",
            "as above; header also `tables`, the number of entries for each channel (the first dimension, or one table for all); body the tables, float32 little-endian, then the frame",
        ),
        ("image, tensor", "`derived`", "block; header as above, with `of`, and `at` or `map`"),
        (
            "tensor",
            "`parts`",
            "as `children` below; header `layout`, `dtype`, `shape`, and of a sparse_coo one `coalesced`, of a quantized one `scale` [scale, zero point] or `axis`; parts: indices and values; or compressed indices, plain indices, values; or integers (and scales, zero points); or the nested tensors",
        ),
    )

    def matches(self, value: object) -> bool:
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
            return False
        tensor: Any = value
        if tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
            return bool(tensor.device.type != "meta") and not _is_empty_parameter(tensor)
        return tensor_parts.is_in_parts(tensor)

    def fingerprint(self, value: Any) -> tuple[str | None, int]:
        if _is_in_parts(value):
            head, parts = tensor_parts.take_apart(value)
            marks = [self.fingerprint(part) for part in parts]
            return tensor_parts.fingerprint(head, [mark for mark, _ in marks], sum(size for _, size in marks))
        plain = _to_plain(value)
        raw = _memory(plain)
        meaning = tv.metadata_of(value), tv.class_of(value)
        return self._digest(_dtype(plain), tuple(plain.shape), raw, *meaning), raw.size

    def _digest(
        self,
        dtype: str,
        shape: tuple[int, ...],
        raw: Any,
        metadata: dict[str, Any] | None,
        own_class: dict[str, Any] | None,
    ) -> str:
        if metadata is None and own_class is None:
            return hashing.digest_parts(self.name, dtype, shape, raw)
        return hashing.digest_parts(
            self.name, dtype, shape, raw, tv.encode_metadata(metadata), tv.encode_metadata(own_class, 3)
        )

    def observe(self, value: Any) -> Facts:
        if _is_in_parts(value):
            return self._observe_parts(value)
        plain = _to_plain(value)
        dtype, shape, raw = _dtype(plain), tuple(plain.shape), _memory(plain)
        digest = self._digest(dtype, shape, raw, tv.metadata_of(value), tv.class_of(value))
        stats = statistics.of_array(_numbers(dtype, raw, plain))
        return Facts(self.name, dtype, shape, tv.mode_of(value), digest, *stats, raw.size)

    def observe_fast(self, value: Any) -> Facts | None:
        """Return the facts of a plain float32 or uint8 tensor in memory of its own; None for every other tensor."""
        if loops.native is None or (_fast is None and not _find_torch()):
            return None
        found: Facts | None = loops.native.tensor(value, _fast)
        return found

    def row_digests(self, value: Any) -> list[str] | None:
        """Return the digest of each row of a plain float32 or uint8 tensor; None for every other tensor."""
        if loops.native is None or (_fast is None and not _find_torch()):
            return None
        found: list[str] | None = loops.native.rows(value, _fast)
        return found

    def _observe_parts(self, value: Any) -> Facts:
        digest, size = self.fingerprint(value)
        head, parts = tensor_parts.take_apart(value)
        shape = tuple(head.get("shape", (len(parts),)))
        return Facts(self.name, head["dtype"], shape, head["layout"], digest, *statistics.NO_STATISTICS, size)

    def preview_fast(self, value: Any) -> Preview | None:
        """Return the preview of a plain float32 or uint8 tensor that looks like a picture; None for every other tensor."""
        if loops.native is None or (_fast is None and not _find_torch()):
            return None
        if tiny := loops.native.tiny_tensor(value, _fast, thumbnail.TINY):
            return Preview("image/png", tiny)
        small = loops.native.shrink_tensor(value, _fast, thumbnail.SIDE)
        return None if small is None else thumbnail.of_bytes(*small)

    def preview(self, value: Any) -> Preview | None:
        if _is_in_parts(value):
            head, _ = tensor_parts.take_apart(value)
            return excerpt(f"{head['layout']} tensor of {head['dtype']} {head.get('shape', '')}".rstrip())
        values = _as_array(_to_plain(value))
        return thumbnail.of_array(values) or array.describe(values)

    def encode(self, value: Any) -> EncodedValue:
        if _is_in_parts(value):
            return tensor_parts.encode(*tensor_parts.take_apart(value))
        plain = _to_plain(value)
        dtype, shape, raw = _dtype(plain), list(plain.shape), _memory(plain)
        header: dict[str, Any] = {"dtype": dtype, "shape": shape, "tv": tv.metadata_of(value)}
        if own_class := tv.class_of(value):
            header["class"] = own_class
        encoding, body = _compress(dtype, shape, raw, header)
        return EncodedValue(encoding, pack(header, body))

    def encoded_digest(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> str | None:  # noqa: B008
        if encoded.encoding == tensor_parts.ENCODING:
            return tensor_parts.encoded_digest(encoded, options)
        header, body = unpack(encoded.data)
        raw = np.ascontiguousarray(_expand(encoded.encoding, header, body))
        return self._digest(header["dtype"], tuple(header["shape"]), raw, header.get("tv"), header.get("class"))

    def decode(self, encoded: EncodedValue, options: DecodeOptions = DecodeOptions()) -> Any:  # noqa: B008
        if encoded.encoding == tensor_parts.ENCODING:
            return tensor_parts.decode(encoded, options)
        header, body = unpack(encoded.data)
        raw = _expand(encoded.encoding, header, body)
        dtype, shape = header["dtype"], tuple(header["shape"])
        if options.numpy_only:
            return _without_torch(dtype, raw).reshape(shape)
        import torch

        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise damage_error(f"this torch has no dtype {dtype!r}")
        tensor = torch.from_numpy(raw.copy()).view(kind).reshape(shape) if raw.size else torch.empty(shape, dtype=kind)
        return tv.rebuild(tensor, header.get("tv"))

    def export(self, value: Any, stem: Path) -> list[Path]:
        if _is_in_parts(value):
            path = stem.with_name(stem.name + ".txt")
            path.write_text(f"{value}\n", encoding="utf-8")
            return [path]
        return array.export_array(_as_array(_to_plain(value)), stem)


#: What the compiled loops compare a tensor's attributes with, and the names of those; looked up once. The order is theirs.
_fast: tuple[Any, ...] | None = None


def _find_torch() -> bool:
    global _fast
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "uint8"):
        return False
    _fast = (
        *(torch.Tensor, torch.float32, torch.uint8, torch.strided),
        *("tensor", "float32", "uint8"),
        *("dtype", "is_cpu", "layout", "is_nested", "is_contiguous", "is_neg", "_is_zerotensor", "data_ptr", "shape"),
        Facts,
    )
    return True


def torch_names() -> tuple[Any, ...]:
    """Return what the compiled loops must know of torch, which is loaded."""
    if _fast is None and not _find_torch():
        return ()
    return _fast or ()


def _is_empty_parameter(value: Any) -> bool:
    """Return whether it is a parameter of a lazy module, which has no elements yet."""
    torch: Any = sys.modules["torch"]
    return hashing.version() >= 3 and torch.nn.parameter.is_lazy(value)


def _is_in_parts(value: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return value.layout is not torch.strided or value.is_quantized or value.is_nested


def _to_plain(value: Any) -> Any:
    """Return the same elements as a plain, detached, contiguous tensor on the CPU; the same memory where possible."""
    torch: Any = sys.modules["torch"]
    if type(value) is torch.Tensor and value.is_cpu and value.is_contiguous():
        simple = not (value.requires_grad or value.is_neg() or value.is_complex())
        if simple:
            return value
    with torch.no_grad():
        tensor = value if type(value) is torch.Tensor else value.as_subclass(torch.Tensor)
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.device.type != "cpu":
            tensor = tensor.cpu()
        if tensor.is_complex() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        return tensor.contiguous()


def _memory(plain: Any) -> Any:
    """Return a flat uint8 array over the tensor's elements, which keeps them alive.

    Not by `Tensor.numpy`: that marks the storage as one that can no longer be resized, which is a change.
    """
    size = plain.numel() * plain.element_size()
    if not size:
        return np.empty(0, np.uint8)
    if plain._is_zerotensor():  # torch keeps no memory for these zeros
        return np.zeros(size, np.uint8)
    address = plain.data_ptr()
    if not address:  # a stand-in for a tensor, such as a tracer's
        raise ValueError("a tensor without memory")
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    memory.owner = plain
    return np.frombuffer(memory, np.uint8)


def _dtype(plain: Any) -> str:
    found = _names.get(plain.dtype)
    if found is None:
        found = _names[plain.dtype] = str(plain.dtype).removeprefix("torch.")
    return found


def _numbers(dtype: str, raw: Any, plain: Any) -> Any:
    """Return the elements as numpy numbers; types that numpy lacks are widened exactly."""
    if dtype in _NUMPY:
        return raw.view(_NUMPY[dtype])
    torch: Any = sys.modules["torch"]
    return plain.reshape(-1).to(torch.complex64 if plain.is_complex() else torch.float32).numpy()


def _as_array(plain: Any) -> Any:
    return _numbers(_dtype(plain), _memory(plain), plain).reshape(tuple(plain.shape))


def _without_torch(dtype: str, raw: Any) -> Any:
    """Return bfloat16 widened to float32; what numpy has no name for as raw uint8 (only one-byte types are left then)."""
    if dtype in _NUMPY:
        return raw.view(_NUMPY[dtype])
    if dtype == "bfloat16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype == "complex32":
        pairs = raw.view("<f2").astype(np.float32)
        return pairs.view(np.complex64)
    return raw


def _compress(dtype: str, shape: list[int], raw: Any, header: dict[str, Any]) -> tuple[str, bytes]:
    row = shape[-1] if shape else 0
    picture = len(shape) >= 2 and row > 1
    if dtype == "float32" and picture:
        found = _float_picture(shape, raw.view("<f4"), row, header)
        if found is not None:
            return found
    width = raw.size // max(1, int(np.prod(shape, dtype=np.int64)))
    if dtype in ("uint8", "int8") and picture and raw.size > row:
        return compression.compress_smallest(raw, raw.size, "rows+zstd", compression.subtract_rows(raw, row))
    if width in (2, 4, 8) and raw.size:
        return compression.compress_smallest(raw, raw.size, "bytes+zstd", compression.split_bytes(raw, width))
    return compression.compress_smallest(raw, raw.size, "zstd", raw)


def _float_picture(shape: list[int], flat: Any, row: int, header: dict[str, Any]) -> tuple[str, bytes] | None:
    """Return levels of one byte where the floats have no more in them; None where they do."""
    if flat.size <= row:
        return None
    levels = palette.unit_levels(flat)
    if levels is not None:
        return "unit+rows+zstd", compression.compress(compression.subtract_rows(levels, row))
    channels = shape[0] if len(shape) == 3 and shape[0] <= 16 else 1
    tables, parts = [], []
    for channel in flat.reshape(channels, -1):
        found = palette.table_levels(channel)
        if found is None:
            return None
        tables.append(found[0])
        parts.append(found[1])
    header["tables"] = [table.size for table in tables]
    frame = compression.compress(compression.subtract_rows(np.concatenate(parts), row))
    body = b"".join(table.tobytes() for table in tables) + frame
    if len(body) < flat.nbytes:
        return "palette+rows+zstd", body
    del header["tables"]
    return None


def _expand(encoding: str, header: dict[str, Any], body: memoryview) -> Any:
    """Return the raw bytes of the elements, undoing `_compress`."""
    if encoding not in ENCODINGS:
        raise damage_error(f"a tensor has no encoding {encoding!r} of its own")
    shape = header["shape"]
    count = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if encoding == "raw":
        return np.frombuffer(body, np.uint8)
    if encoding == "unit+rows+zstd":
        levels = compression.add_rows(np.frombuffer(compression.decompress(body, count), np.uint8), shape[-1])
        return (levels.astype(np.float32) / np.float32(255)).view(np.uint8)
    if encoding == "palette+rows+zstd":
        return _from_palette(header, body, count)
    size = count * _width(header["dtype"])
    flat = np.frombuffer(compression.decompress(body, size), np.uint8)
    if encoding == "rows+zstd":
        return compression.add_rows(flat, shape[-1])
    if encoding == "bytes+zstd":
        return compression.join_bytes(flat, size // count)
    return flat


def _from_palette(header: dict[str, Any], body: memoryview, count: int) -> Any:
    sizes = header["tables"]
    tables = np.frombuffer(body[: 4 * sum(sizes)], "<f4")
    frame = compression.decompress(body[4 * sum(sizes) :], count)
    indices = compression.add_rows(np.frombuffer(frame, np.uint8), header["shape"][-1]).reshape(len(sizes), -1)
    starts = np.cumsum([0, *sizes])
    parts = [tables[starts[i] : starts[i + 1]].take(indices[i]) for i in range(len(sizes))]
    return np.concatenate(parts).view(np.uint8)


def _width(dtype: str) -> int:
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype]).itemsize
    return {"bfloat16": 2, "complex32": 4}.get(dtype, 1)
