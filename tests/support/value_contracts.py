"""What every kind of value must do, checked on examples of it."""

from __future__ import annotations

import dataclasses
import pickle
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from audit import values


def state() -> bytes:
    """All random-number generators that observing could disturb."""
    return pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))


def same(a: Any, b: Any) -> bool:
    """Equal type and equal bits, judged without the code under test."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Image.Image):
        transparent = a.info.get("transparency") == b.info.get("transparency")
        palettes = a.mode not in ("P", "PA") or a.getpalette(None) == b.getpalette(None)
        return bool(a.mode == b.mode and a.size == b.size and a.tobytes() == b.tobytes() and transparent and palettes)
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.layout != b.layout or a.is_nested != b.is_nested or a.is_quantized != b.is_quantized:
            return False
        if a.is_nested:
            return same(list(a.unbind()), list(b.unbind()))
        if a.shape != b.shape:
            return False
        if a.is_quantized:
            return a.qscheme() == b.qscheme() and same(a.int_repr(), b.int_repr()) and torch.equal(a, b)
        if a.layout is torch.sparse_coo:
            coalesced = a.is_coalesced() == b.is_coalesced()
            return coalesced and same(a._indices(), b._indices()) and same(a._values(), b._values())
        if a.layout is not torch.strided:
            return same(a.to_sparse(layout=torch.sparse_coo), b.to_sparse(layout=torch.sparse_coo))
        meta = [getattr(a, k, None) == getattr(b, k, None) for k in ("canvas_size", "format", "clamping_mode")]
        flat = [x.as_subclass(torch.Tensor).detach().resolve_conj().resolve_neg().contiguous() for x in (a, b)]
        left, right = (x.reshape(-1).view(torch.uint8) if x.numel() else x for x in flat)
        return all(meta) and (not a.numel() or torch.equal(left, right))
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
        return False
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float | complex):
        return pickle.dumps(a) == pickle.dumps(b)
    return bool(a == b)


def check_kind(name: str, example: Any, folder: Path | None = None) -> None:
    """Observing changes nothing, facts agree with each other, and the value comes back bit for bit."""
    kind = values.KINDS.get(name)
    assert values.kind_of(example) is kind, f"{values.kind_of(example).name} took {example!r}"
    version = example._version if isinstance(example, torch.Tensor) else None
    before = state()
    facts = values.observe(example)
    values.preview(example)
    stored_as, encoded = values.encode(example)
    assert values.digest(example) == facts.digest
    assert state() == before, "drew random numbers"
    if version is not None:
        assert example._version == version
    assert facts.kind == stored_as == name
    assert facts.digest is not None
    assert len(facts.digest) == 32
    assert values.encoded_digest(name, encoded) == facts.digest
    assert facts.bytes >= 0
    assert len(encoded.data) <= facts.bytes + 2_000 + 64 * len(facts.shape or ()) or encoded.encoding == "children"
    back: Any = values.decode(name, encoded)
    assert same(back, example), f"{example!r} came back as {back!r}"
    assert values.digest(back) == facts.digest
    assert values.observe(back).digest == facts.digest
    if folder is not None:
        paths = values.export(example, folder / "stage")
        assert paths
        assert all(path.is_file() for path in paths)
