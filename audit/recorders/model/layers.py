"""What layers saw and produced: hooks that read, and change neither outputs nor gradients.

Gradients are read by hooks on the tensors. Module-level backward hooks would put a node of their own into the graph, and
then an in-place ReLU behind the layer fails.
"""

from __future__ import annotations

import difflib
import fnmatch
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from audit.errors import UsageError
from audit.recorders.model.inert_hook import Hook
from audit.recorders.model.sample_axis import OTHER, SampleAxis
from audit.recorders.model.step import ModelStep
from audit.recorders.model.tensor_statistics import describe
from audit.store.write.payload_filter import Selection

Layers = Sequence[str | type[nn.Module]]
#: What wrappers put before a module's name.
_WRAPPERS = ("module.", "_orig_mod.")


@dataclass(frozen=True, slots=True)
class LayerPolicy:
    """Which layers are recorded, what of them, and when."""

    layers: Layers = ()
    keep: str | Callable[[torch.Tensor], torch.Tensor] = "stats"
    backward: bool = False
    per_sample: bool = True
    every: int = 1
    indices: frozenset[int] | None = None
    when: str | Callable[[dict[str, Any]], bool] | None = None
    budget: int = 256 * 2**20

    def __post_init__(self) -> None:
        if not callable(self.keep) and self.keep not in ("stats", "full"):
            raise UsageError(f"keep cannot be {self.keep!r}.", hint="Use 'stats', 'full' or a function of the tensor.")
        if not isinstance(self.every, int) or self.every < 1:
            raise UsageError(f"every cannot be {self.every!r}.", hint="Give a whole number of steps, at least 1.")
        if not isinstance(self.budget, (int, float)) or not self.budget >= 0:
            raise UsageError(f"budget cannot be {self.budget!r}.", hint="Give a number of bytes.")
        if self.when is not None and not callable(self.when) and not isinstance(self.when, str):
            raise UsageError(
                f"when cannot be {self.when!r}.", hint="Give an SQL condition over predictions, or a function."
            )

    def condition(self) -> Selection | None:
        """Return `when` as a condition over predictions, checked."""
        if not isinstance(self.when, str):
            return None
        try:
            return Selection(self.when)
        except UsageError as error:
            raise UsageError(f"when={self.when!r} is not a condition over predictions.", hint=error.hint) from error


def choose_samples(indices: Iterable[Any] | None) -> frozenset[int] | None:
    """Return `indices` as numbers; None for all samples."""
    if indices is None:
        return None
    try:
        return frozenset(operator.index(index) for index in indices)
    except TypeError:
        raise UsageError(
            f"indices cannot be {indices!r}.", hint="Give a list of sample numbers, such as [0, 2]."
        ) from None


def find_layers(model: nn.Module, wanted: Layers) -> dict[str, nn.Module]:
    """Return the modules that names, patterns or types mean; raise with the nearest names where one matches nothing."""
    if isinstance(wanted, (str, type)):
        raise UsageError(
            f"layers cannot be {wanted!r}.", hint="Give a list: names, patterns such as 'layer4.*', or types."
        )
    named = {_plain_name(name): module for name, module in model.named_modules() if name}
    found: dict[str, nn.Module] = {}
    for wish in wanted:
        if isinstance(wish, type):
            matched = {name: module for name, module in named.items() if isinstance(module, wish)}
        elif not isinstance(wish, str):
            raise UsageError(
                f"A layer cannot be chosen by a {type(wish).__name__}.",
                hint="Give names, patterns such as 'layer4.*', or types such as nn.ReLU.",
            )
        else:
            pattern = _plain_name(wish)
            matched = {name: module for name, module in named.items() if fnmatch.fnmatchcase(name, pattern)}
        if not matched:
            raise _no_layer(wish, named)
        found |= matched
    return found


def _plain_name(name: str) -> str:
    """Return a layer's name without what DataParallel, DDP and torch.compile put before it."""
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _no_layer(wish: str | type, named: dict[str, nn.Module]) -> UsageError:
    if isinstance(wish, type):
        kinds = sorted({type(module).__name__ for module in named.values()})
        near = difflib.get_close_matches(wish.__name__, kinds, n=5, cutoff=0.3) or kinds[:8]
        return UsageError(f"No layer of the model is a {wish.__name__}.", hint=f"Types in it: {', '.join(near)}.")
    near = difflib.get_close_matches(wish, named, n=5, cutoff=0.3) or list(named)[:8]
    return UsageError(
        f"No layer of the model matches {wish!r}.", hint=f"Similar names: {', '.join(near) or 'it has none'}."
    )


@dataclass(slots=True)
class LayerReading:
    """One tensor at one port of one layer, described while it was there."""

    layer: str
    layer_type: str
    direction: str
    port: str
    rows: list[dict[str, Any]]
    #: The row of the model's input that each belongs to; None where the one row is the whole batch's.
    places: list[int] | None
    #: Copies of the values, where they are to be kept; which of them are is decided when the loss is known.
    values: list[torch.Tensor] | None = None


class LayerHooks:
    """Hooks on the chosen layers of one model, under one policy. They act only while a step is under way."""

    def __init__(self, model: nn.Module, policy: LayerPolicy) -> None:
        self.policy = policy
        self.condition = policy.condition()
        self.modules = find_layers(model, policy.layers)
        self.fired: dict[str, int] = dict.fromkeys(self.modules, 0)
        #: Bytes of kept values so far.
        self.spent = 0
        self._axis = SampleAxis()
        self.problem: str | None = None
        self._step: ModelStep | None = None
        self._wanted: list[int] | None = None
        self._handles: list[Any] = []
        for name, module in self.modules.items():
            # Inputs before the call: an in-place layer has overwritten them after it.
            before, after = (
                Hook(module, self._make_input_hook(name, module)),
                Hook(module, self._make_output_hook(name, module)),
            )
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after))

    def remove(self) -> None:
        """Take every hook away."""
        self._step = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def silent_layers(self) -> list[str]:
        """Return the layers whose hook never fired."""
        return [name for name, count in self.fired.items() if count == 0]

    def begin(self, step: ModelStep | None) -> None:
        """Gather the values of this step from now on, if the policy wants any of it."""
        self._step = self._wanted = None
        if step is None or step.number % self.policy.every:
            return
        if self.policy.indices is not None:
            wanted = [row for row, index in enumerate(step.columns["index"]) if index in self.policy.indices]
            if not wanted:
                return
            self._wanted = wanted
        self._step = step

    def end(self) -> None:
        """Gather no more values of the call; gradients still find their step."""
        self._step = None

    def parameter_gradients(self, step: ModelStep) -> None:
        """Note the gradients of the layers' own parameters, as the optimizer is about to use them."""
        if not self.policy.backward or step.number % self.policy.every:
            return
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters(recurse=False):
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    with self._guard_hook(name):
                        rows = describe(parameter.grad.detach(), per_sample=False)
                        kind = type(module).__name__
                        step.seen.append((self, LayerReading(name, kind, "backward", f"parameter.{key}", rows, None)))

    def _make_input_hook(self, name: str, module: nn.Module) -> Callable[..., None]:
        kind = type(module).__name__

        def hook(args: Any, kwargs: Any) -> None:
            if self._step is not None:
                self._read(name, kind, "input", (*args, kwargs) if kwargs else args, self._step)

        return hook

    def _make_output_hook(self, name: str, module: nn.Module) -> Callable[..., None]:
        kind = type(module).__name__

        def hook(_: Any, output: Any) -> None:
            self.fired[name] += 1
            if (step := self._step) is not None:
                self._read(name, kind, "output", output, step)
                step.calls[name] = step.calls.get(name, 0) + 1

        return hook

    def _guard_hook(self, name: str) -> _HookGuard:
        return _HookGuard(self, name)

    def _read(self, name: str, kind: str, side: str, value: Any, step: ModelStep) -> None:
        with self._guard_hook(name):
            calls = step.calls.get(name, 0)
            for port, tensor in _iterate_tensors(side, value):
                # A layer that is called more than once in a step, a shared ReLU, has its calls numbered.
                port = f"{port}@{calls}" if calls else port
                self._note(step, name, kind, "forward", port, tensor)
                if side == "output" and self.policy.backward and tensor.requires_grad:
                    reader = self._backward(step, name, kind, port, self._wanted)
                    tensor.register_hook(reader)  # type: ignore[no-untyped-call]

    def _backward(
        self, step: ModelStep, name: str, kind: str, port: str, wanted: list[int] | None
    ) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            if not step.written:
                with self._guard_hook(name):
                    self._note(step, name, kind, "backward", port, gradient, wanted)

        return hook

    def _note(
        self,
        step: ModelStep,
        name: str,
        kind: str,
        direction: str,
        port: str,
        tensor: torch.Tensor,
        wanted: list[int] | None = None,
    ) -> None:
        value, count = tensor.detach(), len(step.rows)
        wanted = wanted if wanted is not None else self._wanted
        key = name, direction, port
        self._axis.note(key, value, step.size)
        axis = self._axis.first_axis(key)
        per_sample = self.policy.per_sample and axis != OTHER
        places = (wanted if wanted is not None else list(range(count))) if per_sample else None
        if places is not None and len(places) < step.size:
            value = value[[step.inputs[place] for place in places]]
        rows = [row | {"axis": axis} for row in describe(value, per_sample=per_sample)]
        kept = self._value_to_keep(value)
        if kept is not None and per_sample and not (kept.dim() and kept.shape[0] == len(rows)):
            # A function that makes one value of the whole batch: it is that of no sample.
            whole = [row | {"axis": axis} for row in describe(value, per_sample=False)]
            step.seen.append((self, LayerReading(name, kind, direction, port, whole, None, [kept])))
            kept = None
        each = None if kept is None else (list(kept) if per_sample else [kept])
        step.seen.append((self, LayerReading(name, kind, direction, port, rows, places, each)))

    def _value_to_keep(self, value: torch.Tensor) -> torch.Tensor | None:
        if self.policy.keep == "stats" or self.spent >= self.policy.budget:
            return None
        kept = self.policy.keep(value) if callable(self.policy.keep) else value
        return torch.as_tensor(kept).detach().to("cpu", copy=True)


class _HookGuard:
    """Reading a layer draws nothing, builds no graph, and never raises into the model."""

    __slots__ = ("_grad", "_hooks", "_name")

    def __init__(self, hooks: LayerHooks, name: str) -> None:
        self._hooks = hooks
        self._name = name
        self._grad = torch.no_grad()

    def __enter__(self) -> None:
        self._grad.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        self._grad.__exit__(kind, error, trace)
        if error is None or not isinstance(error, Exception):
            return False
        self._hooks.problem = self._hooks.problem or f"layer {self._name}: {type(error).__name__}: {error}"
        return True


def _iterate_tensors(prefix: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every floating tensor in a layer's inputs or outputs, each with its port."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield f"{prefix}.0" if "." not in prefix else prefix, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _iterate_tensors(f"{prefix}.{key}", item)
    elif isinstance(value, (tuple, list)):
        for position, item in enumerate(value):
            yield from _iterate_tensors(f"{prefix}.{position}", item)
