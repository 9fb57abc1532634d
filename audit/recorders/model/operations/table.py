"""Which rule follows which function of torch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from audit.recorders.model.operations import join_rules, row_rules, shape_rules, value_rules
from audit.recorders.model.row_origins import Rule

_KEEPING_OPERATIONS = (
    "to float double half bfloat16 int long short char bool type type_as cpu cuda clone contiguous detach pin_memory "
    "requires_grad_ as_subclass alias interpolate upsample grid_sample avg_pool2d max_pool2d adaptive_avg_pool2d "
    "one_hot normalize"
)
_ELEMENTWISE_OPERATIONS = (
    "add sub subtract mul multiply div divide true_divide rsub __rsub__ __rdiv__ __radd__ __rmul__ neg negative abs pow "
    "__rpow__ sqrt rsqrt square exp log log1p log2 log10 clamp clip clamp_min clamp_max round floor ceil trunc remainder "
    "fmod floor_divide __floordiv__ __rfloordiv__ lerp masked_fill nan_to_num maximum minimum "
    "__add__ __sub__ __mul__ __truediv__ __rtruediv__ __iadd__ __isub__ __imul__ __itruediv__ __idiv__ __neg__ "
    "bitwise_and __and__ bitwise_right_shift __rshift__ bitwise_left_shift __lshift__ addcmul addcdiv"
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(_KEEPING_OPERATIONS.split(), value_rules.keep),
    **dict.fromkeys(_ELEMENTWISE_OPERATIONS.split(), value_rules.follow_elementwise),
    **dict.fromkeys(
        (f"{name}_" for name in _ELEMENTWISE_OPERATIONS.split() if not name.startswith("_")),
        value_rules.follow_elementwise,
    ),
    **dict.fromkeys(
        ["permute", "transpose", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "adjoint"], shape_rules.permute
    ),
    **dict.fromkeys(
        ["view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel"],
        shape_rules.reshape,
    ),
    **dict.fromkeys(["expand", "expand_as", "broadcast_to", "repeat", "tile"], shape_rules.repeat),
    **dict.fromkeys(["flip"], row_rules.flip),
    **dict.fromkeys(["chunk", "split", "tensor_split", "split_with_sizes"], row_rules.split),
    **dict.fromkeys(["cat", "concat", "concatenate"], join_rules.concatenate),
    "pad": value_rules.pad,
    "where": value_rules.where,
    "conv2d": value_rules.depthwise,
    "roll": row_rules.roll,
    "rot90": row_rules.rotate,
    "index_select": row_rules.index_select,
    "unbind": row_rules.unbind,
    "narrow": row_rules.narrow,
    "select": row_rules.select,
    "repeat_interleave": shape_rules.repeat_interleave,
    "stack": join_rules.stack,
    "copy_": value_rules.copy_,
    "__getitem__": row_rules.getitem,
    "__setitem__": value_rules.assign,
    **dict.fromkeys(
        ["numpy", "__array__", "__dlpack__", "untyped_storage", "storage", "data_ptr"],
        value_rules.expose,
    ),
}

_IN_PLACE = frozenset(["__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__setitem__"])
#: Names with the ending of an operation in place, which change no value.
_HARMLESS = frozenset(["requires_grad_", "share_memory_", "rename_", "resize_as_sparse_"])
#: Operations that hand on each sample's values as they are.
UNCHANGING_OPERATIONS = frozenset(
    [
        "clone",
        "contiguous",
        "detach",
        "alias",
        "pin_memory",
        "requires_grad_",
        "as_subclass",
        "cpu",
        "cuda",
        "cat",
        "concat",
        "concatenate",
        "stack",
        "copy_",
    ]
)


@functools.cache
def list_functions() -> Mapping[Any, tuple[Rule, str, bool]]:
    """Return every function that is followed: its rule, its name, and whether it changes its first argument."""
    table: dict[Any, tuple[Rule, str, bool]] = {}
    homes = (torch.Tensor, torch, functional)
    for name, rule in RULES.items():
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name not in _HARMLESS)
        for home in homes:
            if (function := getattr(home, name, None)) is not None:
                table[function] = (rule, name, in_place)
    for name in dir(torch.Tensor):
        if name.endswith("_") and not name.endswith("__") and name not in RULES and name not in _HARMLESS:
            table[getattr(torch.Tensor, name)] = (value_rules.overwrite, name, True)
    for name, rule in (
        ("T", shape_rules.permute),
        ("mT", shape_rules.permute),
        ("H", shape_rules.permute),
        ("data", value_rules.keep),
    ):
        table[getattr(torch.Tensor, name).__get__] = (rule, name, False)
    table[torch.Tensor.data.__set__] = (value_rules.overwrite, "data", True)  # type: ignore[attr-defined]
    return table
