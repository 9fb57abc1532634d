"""The options and the result of loading a model, which all formats share.

Imports no torch, so that naming these types costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class LoadOptions:
    """The options for loading a model of any format."""

    arch: str | None = None
    trust: bool = False
    device: str = "cpu"
    builder: Callable[[], nn.Module] | None = None


@dataclass
class LoadedModel:
    """A model ready to predict: in eval mode, on its device, with all that its file said about itself."""

    module: nn.Module
    spec: str
    digest: str
    format: str  # state_dict, checkpoint, torchscript, exported, safetensors, huggingface or function
    arch: str | None = None
    classes: list[str] | None = None
    num_classes: int | None = None
    preset: object | None = None  # the preprocessing of that architecture, for `presets.flatten_preset`
    notes: list[str] = field(default_factory=list)  # messages for the user
    expected: dict[str, Any] | None = None  # the normalisation that it states, see expected_input.py
    output: str | None = None  # what its output means, where the architecture says it
    extras: dict[str, object] = field(default_factory=dict)  # plain facts that the checkpoint holds, such as its epoch

    @property
    def name(self) -> str:
        """Return the architecture, else the name of the class."""
        return self.arch or type(self.module).__name__
