"""Where a torch function mode stands on the stack of modes of a thread."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _pop_torch_function_stack, _push_on_torch_function_stack
from torch.overrides import TorchFunctionMode


def _take_stack() -> list[Any]:
    return [_pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())][::-1]


def place_at_bottom(mode: TorchFunctionMode) -> None:
    """Put a mode below the user's own, whose end takes away the topmost; but above a default device, the lowest."""
    if mode in _current_modes():
        return
    stack = _take_stack()
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    bottom = 1 if stack and stack[0] is default else 0
    for each in (*stack[:bottom], mode, *stack[bottom:]):
        _push_on_torch_function_stack(each)


def remove_mode(mode: TorchFunctionMode) -> bool:
    """Take a mode off the stack; return whether it was there."""
    if mode not in _current_modes():
        return False
    for each in _take_stack():
        if each is not mode:
            _push_on_torch_function_stack(each)
    return True


def _current_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(n) for n in range(torch._C._len_torch_function_stack())]
