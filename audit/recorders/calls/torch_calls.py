"""Which tensors the user's own code changed during one visit, seen by a torch function mode.

Unlike a profile function, a mode sees operators (`x * 2`), assignments to items (`x[0] = 1`) and what a function in C returns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from audit.recorders.calls.callables import is_a, is_library_file
from audit.recorders.stages.stand_in import current_visit

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
#: Functions that make a tensor of what is not one.
_OF_LISTS = {"tensor", "as_tensor", "asarray", "LongTensor", "FloatTensor"}
#: Functions that make a value out of none.
_MAKERS = {
    *("arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "load", "normal", "ones", "ones_like"),
    *("rand", "rand_like", "randint", "randn", "randn_like", "randperm", "zeros", "zeros_like"),
}
#: Functions that ask, or pass a value on as it is.
_NEUTRAL = {"__get__", "detach", "requires_grad_", "share_memory_", "pin_memory", "contiguous", "numpy", "__iter__"}


class TorchCalls(TorchFunctionMode):
    """Lists the tensors that operations of the user's own code made or changed."""

    def __init__(self) -> None:
        super().__init__()
        #: By identity, tensors that were changed, or made of other values. They are kept so that no other takes its identity.
        self.changed: dict[int, Any] = {}
        #: The same after stage 0 was recorded: such a tensor may be in the item beside what the stages returned.
        self.later: dict[int, Any] = {}
        #: Tensors that were made of a list, an array or a number, by identity, with what they were made of.
        self.sources: dict[int, tuple[Any, Any]] = {}
        #: Tensors that were made of no other value.
        self.generated: dict[int, Any] = {}
        #: Where the user's own code has called a function in C that may read values, such as `get_tensor` of safetensors.
        self.reading: FrameType | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _MAKERS:
            self._keep_generated(result)
        elif name not in _NEUTRAL and self._is_called_by_user():
            self._note(name, args, kwargs or {}, result, self.later if is_load_noted() else self.changed)
        return result

    def _keep_generated(self, result: Any) -> None:
        if is_a(result, torch.Tensor):
            self.generated[id(result)] = result

    def _is_generated(self, values: Iterable[Any]) -> bool:
        """Return whether an operation was given no tensors but those made out of nothing, such as `torch.arange`."""
        tensors = [value for value in values if is_a(value, torch.Tensor)]
        return bool(tensors) and all(id(tensor) in self.generated for tensor in tensors)

    def _note(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, noted: dict[int, Any]
    ) -> None:
        if self._is_generated((*args, *kwargs.values())):
            self._keep_generated(result)
            return
        if name == "__getitem__" and not is_a(args[1], (torch.Tensor, list)):
            return
        if name in _OF_LISTS:
            if args:
                self.sources[id(result)] = result, args[0]
            return
        is_in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        changed = [args[0]] if is_in_place and args else [result, kwargs.get("out")]
        for value in changed:
            for part in value if is_a(value, (list, tuple)) else [value]:
                if is_a(part, torch.Tensor):
                    noted[id(part)] = part

    def _is_called_by_user(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None and frame is not self.reading and not is_library_file(frame.f_code.co_filename)

    def forget_values(self) -> None:
        """Let go of the values."""
        self.changed, self.later, self.sources, self.generated = {}, {}, {}, {}


def is_load_noted() -> bool:
    """Return whether stage 0 of the visit under way is recorded: what is changed then is between stages, or inside one."""
    visit = current_visit()
    return visit is not None and 0 in visit.rows
