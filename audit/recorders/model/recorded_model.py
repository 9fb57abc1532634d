"""A recorded model: which samples each call is about, what it said, and what its layers saw.

The samples are found before the call, so that the layers' hooks know whose values they read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from audit.recorders.batch_tensors import all_tensors
from audit.recorders.items.item_parts import INPUT_KEYS
from audit.recorders.model.batch_tracker import BatchTracker
from audit.recorders.model.graded_targets import GradedHead
from audit.recorders.model.inert_hook import Hook
from audit.recorders.model.layers import LayerHooks
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.ports import OutputPorts
from audit.recorders.model.step import ModelStep

#: At most this many layers are named for each call.
_MOST_NAMED = 20


class CallListener(Protocol):
    """What a recording does with the calls of a model."""

    def begin(
        self, watched: RecordedModel, input_tensor: torch.Tensor | None, arguments: list[Any]
    ) -> ModelStep | None: ...
    def finish(
        self, watched: RecordedModel, step: ModelStep, input_tensor: torch.Tensor | None, output: Any
    ) -> None: ...


class RecordedModel:
    """Hooks on one model, and on its chosen layers."""

    def __init__(
        self,
        model: nn.Module,
        name: str,
        reader: OutputReader,
        layers: LayerHooks | None,
        listener: CallListener,
        tracker: BatchTracker,
        heads: Sequence[GradedHead] = (),
    ) -> None:
        self.model = model
        self.name = name
        self.reader = reader
        #: Its outputs that have targets of their own; empty where it has one graded output.
        self.heads = heads
        self.ports = OutputPorts(model)
        self._tracker = tracker
        self.layers = layers
        self.calls = 0
        self._listener = listener
        self._step: ModelStep | None = None
        self._input_tensor: torch.Tensor | None = None
        # Listed once: walking a large model at each call would be slow.
        self._modules = [(layer, module) for layer, module in model.named_modules() if layer]
        self._handles = [
            model.register_forward_pre_hook(Hook(model, self._make_call_hook()), with_kwargs=True),
            model.register_forward_hook(Hook(model, self._make_return_hook()), with_kwargs=True),
        ]

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        if self.layers is not None:
            self.layers.remove()

    @property
    def readers(self) -> list[OutputReader]:
        """The readers of its graded outputs."""
        return [head.reader for head in self.heads] or [self.reader]

    @property
    def first_reader(self) -> OutputReader:
        """The reader of the output that views grade."""
        return self.readers[0]

    def layers_in_other_mode(self) -> list[str]:
        """Return the outermost layers, a few at most, that are in training mode while the model is not, or the reverse."""
        return layers_in_other_mode(self.model, self._modules)

    def _make_call_hook(self) -> Callable[..., None]:
        def hook(args: Any, kwargs: Any) -> None:
            self.calls += 1
            # What is computed from the input here, or inside a model, does not lead from a batch to another model.
            self._tracker.pause()
            try:
                self._input_tensor = model_input(args, kwargs)
                self._step = self._listener.begin(self, self._input_tensor, [*args, *kwargs.values()])
            except BaseException:
                self._tracker.resume()
                raise
            if self.layers is not None:
                repeated = self._step is not None and self._step.repeats
                self.layers.begin(None if repeated else self._step)

        return hook

    def _make_return_hook(self) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            step, input_tensor = self._step, self._input_tensor
            self._step = self._input_tensor = None
            try:
                if self.layers is not None:
                    self.layers.end()
                if step is not None:
                    self._listener.finish(self, step, input_tensor, output)
                elif input_tensor is not None and input_tensor.dim() and not isinstance(output, torch.Tensor):
                    self.ports.note(output, int(input_tensor.size(0)))
            finally:
                self._tracker.resume()

        return hook


def model_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the tensor whose rows are the samples: the first argument, or the one that is named like an input."""
    for value in (*args, kwargs):
        if isinstance(value, Mapping):
            named = next((value[key] for key in INPUT_KEYS if isinstance(value.get(key), torch.Tensor)), None)
            if isinstance(named, torch.Tensor):
                return named
        found = next(all_tensors(value), None)
        if found is not None:
            return found
    return None


def layers_in_other_mode(model: nn.Module, modules: Sequence[tuple[str, nn.Module]]) -> list[str]:
    """Return the outermost of these layers whose mode is not the model's, 20 at most."""
    mode = getattr(model, "training", False)
    found: list[str] = []
    for name, module in modules:
        # An exported program's modules have no mode.
        if getattr(module, "training", mode) != mode and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
            if len(found) == _MOST_NAMED:
                break
    return found
