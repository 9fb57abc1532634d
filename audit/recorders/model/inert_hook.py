"""Hooks on a user's module that leave copies of it alone.

A model that is deep-copied, pickled or replicated takes its hooks with it. A copy's hooks must neither record nor need
anything of ours: a hook acts for one module only, its deep copy does nothing, and pickled it becomes a function of the standard library
that does nothing, so that a saved model loads where audit is not installed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def _reduce_to_nothing() -> tuple[Any, ...]:
    """Take any arguments and return None; it pickles as part of the standard library."""
    return getattr, (contextlib.nullcontext(), "__exit__")


def _outside_compiled_code(function: Any) -> None:
    """Leave compiled code for the length of the call: traced into a graph, a hook would run once and never again.

    What `torch.compiler.disable` does, without the seconds that it takes to load the compiler.
    """
    function._torchdynamo_disable = True
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))


class Hook:
    """Calls `action` with what torch gives, for the module it was made for and no other."""

    __slots__ = ("_action", "_module")

    def __init__(self, module: nn.Module, action: Callable[..., None]) -> None:
        self._module = weakref.ref(module)
        self._action = action

    def __call__(self, module: nn.Module, *given: Any) -> None:
        # A model that is being traced computes an example: what is done to its values here would become part of the graph.
        if module is self._module() and torch._C._get_tracing_state() is None:
            self._action(*given)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        function, arguments = _reduce_to_nothing()
        return function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce_to_nothing()


_outside_compiled_code(Hook.__call__)
