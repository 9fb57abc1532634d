"""Build a named torchvision or timm classifier, with weights or hollow: without memory for its weights.

A hollow one has the right parameter names and shapes at almost no cost, which is how weights are compared with an
architecture, and how they are loaded without first drawing random values that are then thrown away.
Refuses to download anything: every builder is called without pretrained weights.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Shapes = dict[str, tuple[int, ...]]

# A number of classes that is not another dimension of any known model, so it identifies the head.
SENTINEL = 9973


@dataclass(frozen=True)
class Architecture:
    """A named builder of `library`, with the arguments that make it fit certain weights."""

    library: str  # "torchvision" or "timm"
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def qualified_name(self) -> str:
        """Return the name for `--arch`; a timm name gets a prefix if torchvision has it too."""
        return f"timm/{self.name}" if self.library == "timm" and self.name in torchvision_names() else self.name

    def __str__(self) -> str:
        return self.name if self.library == "torchvision" else f"{self.library}'s {self.name}"


class _EmptyOnMeta(TorchFunctionMode):
    """Uninitialised tensors get no memory; computed ones stay real.

    `torch.device("meta")` would also catch tensors that a constructor computes with (torchvision's RegNets read
    block widths back out of them), and would lose buffers that no state dict holds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


@lru_cache(maxsize=1)
def torchvision_names() -> tuple[str, ...]:
    """Return every torchvision image classifier."""
    from torchvision import models

    return tuple(models.list_models(module=models))


@lru_cache(maxsize=1)
def has_timm() -> bool:
    """Return whether timm is installed; asking does not import it."""
    return importlib.util.find_spec("timm") is not None


@lru_cache(maxsize=1)
def timm_names() -> tuple[str, ...]:
    """Return every timm architecture; none if timm is not installed."""
    if not has_timm():
        return ()
    import timm

    return tuple(timm.list_models())


def build(architecture: Architecture, num_classes: int) -> nn.Module:
    """Return a model with random weights; the global generators keep their state."""
    with _ignore_warnings():
        return _construct(architecture, num_classes)


def build_hollow(architecture: Architecture, num_classes: int) -> nn.Module:
    """Return a model without memory for its weights; with weights if that is not possible."""
    with _ignore_warnings():
        try:
            with _EmptyOnMeta():
                return _construct(architecture, num_classes)
        except (RuntimeError, NotImplementedError):
            return _construct(architecture, num_classes)


def expected_shapes(architecture: Architecture, num_classes: int) -> Shapes:
    """Return the names and shapes of that model's weights, without creating them."""
    with _ignore_warnings():
        try:
            with _EmptyOnMeta():
                model = _construct(architecture, num_classes)
        except (RuntimeError, NotImplementedError):
            # Some of timm's constructors run a forward pass to find a size, which needs all tensors on one device.
            with torch.device("meta"):
                model = _construct(architecture, num_classes)
    return shapes_of(model.state_dict())


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        yield


def _construct(architecture: Architecture, num_classes: int) -> nn.Module:
    arguments = dict(architecture.arguments)
    model: nn.Module
    if architecture.library == "timm":
        import timm

        model = timm.create_model(architecture.name, pretrained=False, num_classes=num_classes, **arguments)
        return model
    from torchvision import models

    if architecture.name in ("googlenet", "inception_v3"):
        arguments.setdefault("init_weights", False)  # the default draws weights for seconds, and warns
    if architecture.name not in torchvision_names():
        arguments.setdefault("weights_backbone", None)  # the default of detectors is to download one
    model = models.get_model(architecture.name, weights=None, num_classes=num_classes, **arguments)
    return model


def shapes_of(state: Mapping[str, torch.Tensor]) -> Shapes:
    """Return the names and shapes of a state dict for comparison.

    Counters of batch norm layers are left out: files older than PyTorch 0.4.1, and some converters, do not have them.
    """
    return {name: tuple(tensor.shape) for name, tensor in state.items() if not name.endswith(".num_batches_tracked")}
